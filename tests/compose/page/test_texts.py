"""What the page is told of a run beside its topics."""

from __future__ import annotations

from pathlib import Path

from tests.streams.assemble.test_feedback import CALLS, episode_of, said
from tests.streams.make import call_id
from tracegrad.compose.page.texts import explain_by
from tracegrad.compose.run.pipeline import prepare_run
from tracegrad.compose.run.settings import RunSettings
from tracegrad.compose.run.wiring import Wiring
from tracegrad.producers.llm_gateway.config import PolicyConfig


def test_what_a_call_is_worth_is_by_what_was_said_behind_the_close(tmp_path: Path) -> None:
    """As credit took it, and as `air explain` tells it: a rating of an answer is its calls'."""
    settings = RunSettings(run="own", policy=PolicyConfig(model="none"))
    explain, episode = explain_by(Wiring(prepare_run(settings, tmp_path / "own"))), episode_of(*CALLS)
    assert {worth.credit.return_ for worth in explain(episode, ()).values()} == {0.0}
    rated = explain(episode, [said(1.0, "anna", target=call_id("b"))])
    assert rated[call_id("b")].credit.return_ == 1.0
    assert any(part.value == 1.0 for part in rated[call_id("b")].parts)
