"""What is said when a program's libraries are not there: which, and the extra that brings them."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.packaging.programs import PROGRAMS
from tracegrad.compose import cli
from tracegrad.compose.run import serve
from tracegrad.schemas.errors import FATAL_EXIT_STATUS


def without(module: str) -> Any:
    """A program whose first import fails."""

    def start(*_: object) -> None:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    return start


@pytest.mark.parametrize("name", serve.NAMES)
def test_a_program_without_its_libraries_names_the_extra(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And ends for good: a restart would find no more."""
    monkeypatch.setattr(serve, "_set_up_logging", lambda *_: None)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("tracegrad.compose.run.serve.RunDir.open", without("some.library"))
    with caplog.at_level(logging.ERROR):
        assert serve.serve(name, tmp_path, stage="credit" if name == "streams" else None) == FATAL_EXIT_STATUS
    (said,) = caplog.messages
    extra = said.partition("tracegrad[")[2].partition("]")[0]
    assert extra in PROGRAMS and f"serve {name} needs the module some.library" in said
    assert ("[trainer] python" in said) == (extra in ("streams", "trainer"))


def test_a_command_without_its_libraries_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One message, no traceback."""
    monkeypatch.setattr(cli, "app", lambda **_: without("huggingface_hub")())
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == FATAL_EXIT_STATUS
    assert capsys.readouterr().err.startswith("tracegrad: this command needs the module huggingface_hub")


def test_a_module_of_ours_that_is_missing_is_no_extra() -> None:
    """The installation is broken; the traceback says where."""
    with pytest.raises(ModuleNotFoundError, match="tracegrad"):
        serve.lacking(ModuleNotFoundError("no tracegrad.x", name="tracegrad.x"), "serve llm", "gateway")
    assert sys.executable in serve.lacking(ModuleNotFoundError("no x", name="x"), "serve llm", "gateway")
