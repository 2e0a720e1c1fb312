"""Every process of a run is killed while work is in flight in it, and nothing is lost, doubled or changed.

All parts are real: broker, gateways, Faust workers, agent hosts, vLLM, trainer. The count at the end is the test's.
"""

from __future__ import annotations

import pytest

from tests.e2e.chaos_run import MIN_STEPS, ChaosRun
from tests.e2e.checks import check_end
from tracegrad.schemas.topics import STREAMS, Topic

pytestmark = [pytest.mark.e2e, pytest.mark.engine, pytest.mark.kafka, pytest.mark.torch, pytest.mark.timeout(1500)]
STATEFUL = ("trainer", "streams-assemble-0", "streams-credit-0", "runner", "tasks", "weight-sync", "llm", "kafka")
OTHERS = ("otlp", "agent-host", "streams-normalize-0", *(f"streams-{stage.value}-1" for stage in STREAMS))


def test_nothing_is_lost_doubled_or_changed_when_every_process_is_killed(chaos_run: ChaosRun) -> None:
    """Kills with work in flight, a join, a leave, a resumed supervisor; then each id is counted by hand."""
    check_kills(chaos_run, (*OTHERS, "engine"))
    episodes = check_end(chaos_run, min_steps=MIN_STEPS, is_vllm=True).records[Topic.EPISODES]
    assert len(episodes) > len({record.value for record in episodes}), "expected re-emissions, got none"


def check_kills(chaos: ChaosRun, others: tuple[str, ...]) -> None:
    """Each process at least once, the stateful ones twice, and once between an output and its marker."""
    names = [killed.name for killed in chaos.killed]
    assert all(killed.in_flight for killed in chaos.killed)
    fired = {path.name for path in (chaos.run.path / "streams" / "failpoints").iterdir()}
    assert {"assemble", "credit"} <= fired, "expected a kill between output and marker in both stages"
    assert "trainer:half-written" in names
    for name in STATEFUL:
        assert sum(known.startswith(name) for known in names) >= 2, (name, names)
    for name in others:
        assert any(known.startswith(name) for known in names), (name, names)
