"""The proof of served weights: which calls prove it, and what the recomputed logprobs say."""

from __future__ import annotations

import pytest

from tests.consumers.audit.small_run import memory_log, small_run
from tests.served.served_proof import Proof, ServedCall, find_proof
from tests.served.verdict import COARSE, EXACT, compare, verdict_line
from tests.streams.make import RUN_HASH, TOPICS
from tracegrad.schemas.ids import RunHash
from tracegrad.schemas.topics import Topic


def proof(logprobs: list[float]) -> Proof:
    """One call of three tokens."""
    made = ServedCall(prompt_ids=[1], sampled_ids=[2, 3, 4], logprobs=logprobs, temperature=1.0)
    return Proof(version=2, folder="a", previous_version=1, previous_folder="b", calls=(made,))


@pytest.mark.parametrize(
    ("recorded", "holds", "why"),
    [
        ([-1.0, -2.0, -0.5], True, ""),
        ([-1.0, -2.01, -0.5], False, "0.01 nats from version 2's own"),
        ([-1.5, -2.5, -0.5], False, "nats from version 2's own"),
    ],
    ids=["own", "off", "previous"],
)
def test_the_verdict_follows_the_nearer_version(recorded: list[float], holds: bool, why: str) -> None:
    """Own logprobs are -1, -2, -0.5; the previous version's differ in two tokens."""
    verdict = compare(proof(recorded), [[-1.0, -2.0, -0.5]], [[-1.5, -2.5, -0.5]], tolerance=EXACT)
    assert verdict.holds is holds and why in verdict.why
    assert verdict.num_telling == 2 and verdict.num_tokens == 3


def test_equal_versions_tell_nothing_but_hold() -> None:
    """A learning rate of 0: no token can tell the versions apart."""
    verdict = compare(proof([-1.0, -2.0, -0.5]), [[-1.0, -2.0, -0.5]], [[-1.0, -2.0, -0.5]], tolerance=EXACT)
    assert verdict.holds and verdict.num_telling == 0 and verdict.num_differing == 0
    assert "version 1 gives the same" in verdict_line(verdict)


@pytest.mark.parametrize(
    ("recorded", "holds", "words"),
    [
        ([-1.1, -2.1, -0.5], False, "cannot be told apart at this tolerance (1 nats)"),
        ([-1.06, -2.06, -0.5], False, "fit 2 no better (squared error 0.0072) than 1 (0.0032)"),
        ([-1.02, -2.01, -0.45], True, "the 2 that differ from version 1 fit 2 better"),
        ([-0.8, -1.8, -0.5], False, "are 0.16 nats (rms) from version 2's own"),
    ],
    ids=["previous", "between", "own", "neither"],
)
def test_a_coarse_tolerance_lets_no_previous_version_pass(recorded: list[float], holds: bool, words: str) -> None:
    """In bfloat16 no single token tells the two versions apart; the sum over those that differ does."""
    verdict = compare(proof(recorded), [[-1.0, -2.0, -0.5]], [[-1.1, -2.1, -0.5]], tolerance=COARSE)
    assert verdict.num_telling == 0 and verdict.num_differing == 2
    assert verdict.holds is holds and words in verdict_line(verdict)


def test_no_proof_says_what_is_missing() -> None:
    """Folders that are gone; no acknowledgement; nothing trained."""
    streams = small_run()
    run = RunHash(RUN_HASH)
    assert "folders" in str(find_proof(memory_log(streams), TOPICS, run, "policy"))
    streams.log[Topic.WEIGHT_ACKS] = []
    assert "acknowledged" in str(find_proof(memory_log(streams), TOPICS, run, "policy"))
    streams.log[Topic.WEIGHTS] = []
    assert "trained" in str(find_proof(memory_log(streams), TOPICS, run, "policy"))


def test_a_proof_puts_prompts_together(tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """The second call's prompt is its parent's prompt, what was sampled, and its own suffix."""
    streams = small_run()
    monkeypatch.setattr("tests.served.served_proof.Path.is_dir", lambda self: True)
    found = find_proof(memory_log(streams), TOPICS, RunHash(RUN_HASH), "policy")
    assert isinstance(found, Proof)
    assert (found.version, found.previous_version) == (2, 1)
    assert {(tuple(call_.prompt_ids), tuple(call_.sampled_ids)) for call_ in found.calls} == {
        ((1, 2), (3, 4)),
        ((1, 2, 3, 4, 5), (6,)),
    }
