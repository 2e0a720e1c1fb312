"""Why an engine did not start: the root cause among the tracebacks of its processes, as vLLM 0.32 writes them."""

from __future__ import annotations

import pytest

from tracegrad.compose.engine.failed_start import explain, read_failed_start

CORE = "(EngineCore pid=25473) ERROR 11-28 05:35:06 [core.py:1510] "
WORKER = "(VllmWorker-0 pid=25563) ERROR 11-28 05:35:04 [multiproc_executor.py:953] "
WARNING = (
    'WARNING 11-28 05:33:58 [interface.py:202] Failed to import from vllm._C: ModuleNotFoundError("No module named '
    "'vllm._C'\")\n"
)
OF_WORKER = "WorkerProc initialization failed in a background process. See stack trace for root cause."
SERVER = """Traceback (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
  File "vllm/v1/engine/utils.py", line 1431, in wait_for_engine_startup
    raise RuntimeError(
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}
"""


def traced(mark: str, *exceptions: str) -> str:
    """As a process logs one exception raised from another."""
    lines: list[str] = []
    for exception in exceptions:
        if lines:
            lines += ["", "The above exception was the direct cause of the following exception:", ""]
        lines += ["Traceback (most recent call last):", '  File "vllm/x.py", line 1, in start', "    go()", "    ^^^^"]
        lines += exception.splitlines()
    return "".join(f"{mark}{line}\n" for line in lines)


@pytest.mark.parametrize(
    ("log", "cause", "is_lasting"),
    [
        (
            WARNING + traced(WORKER, "ModuleNotFoundError: No module named 'flash'") + traced(CORE, f"Exception: "
            f"{OF_WORKER}") + "Process EngineCore:\n" + traced("", f"Exception: {OF_WORKER}") + SERVER,
            "ModuleNotFoundError: No module named 'flash'",
            True,
        ),
        (
            traced(CORE, "ImportError: libx.so: no symbol") + traced("", "ImportError: libx.so: no symbol")
            + SERVER,
            "ImportError: libx.so: no symbol",
            True,
        ),
        (
            WARNING + traced(CORE, "KeyError: 'rope'", "ValueError: cannot load") + SERVER,
            "KeyError: 'rope'",
            False,
        ),
        (
            traced(CORE, "ModuleNotFoundError: No module named 'x'", "torch.OutOfMemoryError: CUDA out of memory")
            + SERVER,
            "ModuleNotFoundError: No module named 'x'",
            False,
        ),
        (
            "Traceback (most recent call last):\n  File \"a.py\"\npydantic_core._pydantic_core.ValidationError: 1 "
            "validation error for ModelConfig\n  Value error, the checkpoint has no config.json\n    For further ...\n",
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig Value error, the "
            "checkpoint has no config.json For further ...",
            False,
        ),
        (WARNING + SERVER, SERVER.splitlines()[-1], False),
        (WARNING + "Segmentation fault\n", "", False),
    ],
    ids=["a worker", "the core", "raised from", "out of memory", "validation", "no root cause", "no exception"],
)  # fmt: skip
def test_the_root_cause_is_the_first_exception_of_the_process_that_failed(
    log: str, cause: str, is_lasting: bool
) -> None:
    """Not of those that waited for it; a module that is missing lasts where it is the cause, not where it is warned
    of, or beside what may pass."""
    failed = read_failed_start(log)
    assert (failed.cause, failed.is_lasting) == (cause, is_lasting)


def test_processes_that_write_at_once_are_told_apart() -> None:
    """Line by line in turn."""
    one, other = traced(WORKER, "ImportError: a").splitlines(), traced(CORE, f"Exception: {OF_WORKER}").splitlines()
    log = "\n".join(line for pair in zip(one, other, strict=True) for line in pair)
    assert read_failed_start(log + "\n" + SERVER).cause == "ImportError: a"


def test_a_plugin_that_does_not_load_is_no_root_cause() -> None:
    """vLLM logs its exceptions and goes on; what fails then is the cause, which may pass."""
    plugin = f"{CORE}Failed to load plugin x\n" + traced(
        CORE, "KeyError: 'y'", "ModuleNotFoundError: No module named 'y'"
    )
    failed = read_failed_start(plugin + traced(CORE, "ConnectionError: no hub", "OSError: no config") + SERVER)
    assert (failed.cause, failed.is_lasting) == ("ConnectionError: no hub", False)
    alone = read_failed_start(plugin + f"{CORE}EngineCore failed\n" + traced(CORE, "ImportError: z") + SERVER)
    assert (alone.cause, alone.is_lasting) == ("ImportError: z", True)


def test_a_core_that_was_killed_may_start_next_time() -> None:
    """It left no exception; its number is a signal's."""
    failed = read_failed_start(SERVER.replace("'EngineCore': 1", "'EngineCore': -9"))
    assert (failed.is_passing, failed.is_lasting) == (True, False)


def test_a_missing_module_is_explained() -> None:
    """vLLM itself by its own sentence."""
    assert "[engine] python" in (explain("ModuleNotFoundError: No module named 'flash'") or "")
    assert "there is no vLLM" in (explain("ModuleNotFoundError: No module named 'vllm'") or "")
    assert explain(WARNING) is None
