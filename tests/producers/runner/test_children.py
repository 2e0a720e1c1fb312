"""Children of a runner: what they leave behind and cannot say; and what the runner itself writes."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import msgspec
import pytest

from tests.memory_log import MemoryLog
from tests.producers.keys import KEY, RUN_HASH
from tracegrad.producers.runner.children import Child, Launcher
from tracegrad.producers.runner.config import AgentConfig, RunnerHandles
from tracegrad.producers.runner.journal import Journal
from tracegrad.producers.runner.outcome import HostMessage
from tracegrad.schemas.errors import UnavailableError
from tracegrad.schemas.ids import RunName
from tracegrad.schemas.metrics import Metrics
from tracegrad.schemas.topics import Topic, Topics

AGENT = "import os, sys\nsys.stderr.write('out of luck\\n')\nsys.stderr.flush()\nos._exit(3)\n"


@pytest.mark.e2e
def test_a_host_that_dies_at_its_start_is_told_with_its_own_last_words(tmp_path: Path) -> None:
    """Its log goes on where the one before it stopped; whose words that were is not told."""
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "host-0.log").write_text("another one's words\n")
    handles = RunnerHandles(run_hash=RUN_HASH, key=KEY, llm_url="", otlp_endpoint="", log_dir=str(tmp_path))

    async def start() -> None:
        launcher = Launcher(AgentConfig(callable="agent.py:solve", cwd=str(tmp_path)), handles)
        try:
            await launcher.start_host("grader_host.py", "agent.py:solve", env=os.environ, name="host-0", is_agent=False)
        finally:
            launcher.close()

    with pytest.raises(UnavailableError, match=r"^agent.py:solve: host-0 died or hung at its start: ") as died:
        asyncio.run(start())
    assert "out of luck" in str(died.value) and "another one's" not in str(died.value)
    assert (tmp_path / "host-0.log").read_text().startswith("another one's words\n")


async def test_a_child_whose_log_was_removed_has_no_last_words(tmp_path: Path) -> None:
    """Who asks for them is about to replace it, and must not fail over a file."""
    process = await asyncio.create_subprocess_exec("true", stdin=-1, stdout=-1)
    child = Child(process, tmp_path / "removed.log", 0, lambda: None)
    assert await child.kill() in (0, -9)
    assert child.last_words == ""


@pytest.mark.parametrize("number", [-1, 2**40, 10**30])
@pytest.mark.parametrize("name", ["spans_exported", "spans_lost"])
def test_a_number_that_no_record_can_hold_is_no_result(name: str, number: int) -> None:
    """The attempt would end without its score: an agent that found the pipe could leave a bad one out."""
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"op": "result", "episode": "e", name: number}, HostMessage)


TOPICS = Topics(run=RunName("mine"))


def test_an_append_waits_for_a_log_that_is_away_until_it_is_stopped(memory_log: MemoryLog) -> None:
    """The error of the last try ends it."""
    memory_log.create_topics(TOPICS, policies=["policy"])
    stop = threading.Event()

    async def scenario() -> None:
        journal = Journal(memory_log, TOPICS, "7c1f3e9a", starts=None, stop=stop, metrics=Metrics())
        memory_log.fail_next(UnavailableError("away"))
        await journal.reward("r", b"v")
        assert [record.value for record in memory_log.records(TOPICS.name(Topic.REWARDS))] == [b"v"]
        stop.set()
        memory_log.fail_next(UnavailableError("away"))
        with pytest.raises(UnavailableError):
            await journal.reward("r", b"v")

    asyncio.run(scenario())
