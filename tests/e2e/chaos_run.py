"""A run of the calculator in which every process is killed while work is in flight in it; a worker of each stage joins
and leaves.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.e2e.chaos import Killed, Killer
from tests.e2e.engine_beside import EngineBeside
from tests.e2e.evidence import looks
from tests.e2e.live_run import ROOT, TRACEGRAD, LiveRun, Observer, extra_worker
from tests.serving import is_alive, until
from tests.tiny_models import small_model
from tracegrad.compose.local_kafka.broker import LocalKafka
from tracegrad.schemas.topics import STREAMS

CALCULATOR = ROOT / "examples" / "calculator"
MIN_STEPS = 10
ENDLESS = 100_000
"""Steps while there is killing to do: how fast the machine is must not decide what is killed."""
SETTINGS = {
    "trainer.groups_per_step": 4,
    "tasks.group_size": 4,
    "streams.workers": 2,
    "kafka.partitions": 4,
    "agent.concurrency": 16,
    # Whatever is killed, an attempt that it aborts gets another one.
    "tasks.max_attempts": 8,
}


def make_run(
    folder: Path,
    *,
    engine: EngineBeside | None = None,
    is_killed_before_marker: bool = False,
    model: Path | None = None,
    settings: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> LiveRun:
    """A small run of the calculator; `start` starts it or goes on with it. `engine`: not vLLM, but that one. `model`:
    not the demo's policy, but that one. `environ`: besides what there is."""
    for name, count_ in (("tasks", 64), ("eval", 4)):
        lines = (CALCULATOR / f"{name}.jsonl").read_text().splitlines()
        (folder / f"{name}.jsonl").write_text("\n".join(lines[:count_]) + "\n")
    command = [TRACEGRAD, "train", str(CALCULATOR / "tracegrad.toml"), "--run", "chaos", "--runs-dir", str(folder)]
    command += ["--tasks", str(folder / "tasks.jsonl"), "--json"]
    command += ["--eval-tasks", str(folder / "eval.jsonl")]
    command += ["--model", str(model)] if model is not None else []
    chosen = {**SETTINGS, **({"engine.url": engine.url} if engine else {}), **(settings or {})}
    for key, value in chosen.items():
        command += ["--set", f"{key}={value}"]
    env = {**os.environ, **(environ or {})}
    if is_killed_before_marker:
        env["PYTHONPATH"] = os.pathsep.join((str(Path(__file__).parent / "failpoint"), str(ROOT)))
    beside = {"engine": engine.pid} if engine else {}
    return LiveRun(command, folder / "chaos", folder / "train.out", env, beside)


def light_policy(folder: Path) -> Path:
    """The demo's tokenizer and a model of a tenth of its size, with random weights: a step takes no time beside all
    else, and of a policy whose answers are scripted nothing more is asked."""
    shutil.copytree(CALCULATOR / "policy", folder)
    told = json.loads((folder / "config.json").read_text())
    kept = {name: told[name] for name in ("vocab_size", "max_position_embeddings", "eos_token_id", "pad_token_id")}
    small_model("qwen3", **kept, hidden_size=32, intermediate_size=32, num_hidden_layers=1).save_pretrained(folder)
    return folder


def drive(run: LiveRun, folder: Path, say: Callable[[str], None], *, engine: bool = True) -> Killer:
    """Starts the run, kills every process in it, stops it in order and lets it go on to its end."""
    run.start("--steps", str(ENDLESS))
    until(lambda: run.poll() is not None or (run.path / "endpoints.json").is_file(), 240, what="the run's addresses")
    with Observer(run) as seen:
        until(lambda: run.poll() is not None or seen.step >= 1, 400, what="the first step")
        assert run.poll() is None, run.tail()
        killer = Killer(run, looks(run, seen, per_host=SETTINGS["agent.concurrency"] // 2), say)
        with _extra_workers(run, folder, killer):
            killer.strike("trainer", "streams-normalize-0", "runner", "streams-credit-0", "weight-sync", "otlp")
            for stage in STREAMS:
                has = until(partial(run.worker, stage, 2), 60, what=f"partitions of {stage.value}-2")
                say(f"{'':9} worker {stage.value}-2 joined and has {has}")
            killer.strike("streams-assemble-0", "tasks", "llm")
            _progress(run, seen)
            killer.strike("agent-host")
        _progress(run, seen)
        if engine:
            killer.strike("engine")
            _progress(run, seen)
        killer.strike("kafka")
        _progress(run, seen)
        killer.strike("streams-normalize-1", "streams-assemble-1", "streams-credit-1")
        until(lambda: seen.open_attempts, 60, what="open attempts")
        say(f"{'':9} SIGKILL of the supervisor: {len(seen.open_attempts)} attempts open, step {seen.step}")
        family = run.kill()
        until(lambda: not any(map(is_alive, family)), 20, what="the end of all that it started")
        run.start("--steps", str(ENDLESS))
        killer.strike("streams-assemble-0", "streams-credit-0", "runner", "tasks", "weight-sync")
        # The engine starts anew behind it, which takes more than a minute on a busy machine.
        killer.strike("llm", timeout_s=400)
        killer.strike("kafka")
        killer.strike("trainer:half-written")
        _progress(run, seen)
        say(f"{'':9} step {seen.step}: no more kills; stopped by one Ctrl-C with {run.interrupt()}")
        run.start("--steps", str(max(MIN_STEPS, seen.step + 2)))
    return killer


def _progress(run: LiveRun, seen: Observer) -> None:
    """Until another step is done: what was killed works again."""
    step = seen.step
    until(lambda: run.poll() is not None or seen.step > step, 240, what="another step")


@contextlib.contextmanager
def _extra_workers(run: LiveRun, folder: Path, killer: Killer) -> Iterator[None]:
    """A third worker of every stage, which joins now and leaves at the end, in the midst of its work."""
    with contextlib.ExitStack() as stack:
        logs = {stage: folder / f"extra-{stage.value}.log" for stage in STREAMS}
        extra = {stage: stack.enter_context(extra_worker(run, stage, 2, logs[stage])) for stage in STREAMS}
        yield
        for stage, worker in extra.items():
            killer.let_go(f"streams-{stage.value}-2", worker)
            assert worker.wait(60) == 0, logs[stage].read_text()[-3000:]


@dataclass(frozen=True)
class ChaosRun:
    """A finished run and what was killed in it."""

    run: LiveRun
    killed: tuple[Killed, ...]

    @contextlib.contextmanager
    def broker(self) -> Iterator[str]:
        """The run's broker, started again on its data: bootstrap servers."""
        port = int(self.run.wiring.endpoints.bootstrap_servers.rpartition(":")[2])
        with LocalKafka(self.run.path / "kafka", port=port) as kafka:
            yield kafka.bootstrap_servers


@contextlib.contextmanager
def ended(run: LiveRun) -> Iterator[None]:
    """The run ends with the block, its logs are kept when that fails."""
    try:
        yield
    except BaseException:
        _keep_logs(run)
        raise
    finally:
        run.stop()


def drive_to_the_end(run: LiveRun, folder: Path, say: Callable[[str], None], *, engine: bool = True) -> ChaosRun:
    """`drive`, then the rest of the run undisturbed."""
    with ended(run):
        killer = drive(run, folder, say, engine=engine)
        began = time.monotonic()
        status = until(lambda: [run.poll()] if run.poll() is not None else [], 400, what="the end of the run")
        say(f"{'':9} ended with {status[0]} after {time.monotonic() - began:.0f} s more")
        if engine:
            assert status == [0], run.tail()
    return ChaosRun(run, tuple(killer.killed))


def _keep_logs(run: LiveRun) -> None:
    """Beside what TRACEGRAD_TEST_KEEP names, for whoever looks into a failure."""
    if keep := os.environ.get("TRACEGRAD_TEST_KEEP"):
        with contextlib.suppress(OSError):
            shutil.copytree(run.path.parent, keep, dirs_exist_ok=True, ignore=shutil.ignore_patterns("kafka"))
