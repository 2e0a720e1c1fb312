"""What an agent returned stays on the log, bounded; what a grader returned becomes rewards, or a reason."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from tests.streams.make import GROUP, Streams, chain, closed, config, event, reward, rollout
from tracegrad.producers.runner.attempt import records_of
from tracegrad.producers.runner.hosted.grader_host import judge
from tracegrad.producers.runner.hosted.raised import raised
from tracegrad.producers.runner.outcome import Outcome, as_told
from tracegrad.schemas.records.calls import Purpose
from tracegrad.schemas.records.episodes import EPISODES
from tracegrad.schemas.records.rollouts import MAX_OUTPUT, ROLLOUT_EVENTS, RolloutEvent, RolloutRequest, RolloutState
from tracegrad.schemas.topics import Topic

OWN = rollout(1)
REQUEST = RolloutRequest(
    rollout_id=OWN, group=GROUP, task_id="7", input="2+3?", expected="SECRET 5", policy="policy", purpose=Purpose.TRAIN
)


def told(state: RolloutState, output: Any) -> RolloutEvent:
    """The end event of an attempt, as it is written and read."""
    made, _ = records_of(REQUEST, "a001", 0, Outcome(state=state, output=output), is_final=True)
    data = ROLLOUT_EVENTS.encode(made)
    assert b"SECRET" not in data
    decoded = ROLLOUT_EVENTS.decode(data)
    assert isinstance(decoded, RolloutEvent)
    return decoded


@pytest.mark.parametrize("output", [None, 5, "5", {"answer": 5, "why": ["\N{SNOWMAN}"]}, 10**40, [float("inf")]])
def test_what_is_graded_is_on_the_log_as_it_was(output: Any) -> None:
    """None too: an agent that returns nothing is graded on that; numbers that other formats cannot hold."""
    made = told(RolloutState.SUCCEEDED, output)
    assert made.output is not None and made.output_sha256 is None
    assert json.loads(made.output) == output


def test_of_a_longer_output_its_hash_is() -> None:
    """By bytes of its JSON: the quotes count."""
    longest = "\N{SNOWMAN}" * ((MAX_OUTPUT - 2) // 3)
    longest += "x" * (MAX_OUTPUT - 2 - len(longest.encode()))
    made = told(RolloutState.SUCCEEDED, longest)
    assert (json.loads(made.output or ""), made.output_sha256) == (longest, None)
    made = told(RolloutState.TRUNCATED, longest + "x")
    digest = hashlib.sha256(json.dumps(longest + "x", ensure_ascii=False).encode()).hexdigest()
    assert (made.output, made.output_sha256) == (None, digest)


def test_what_is_not_graded_tells_no_output() -> None:
    """An attempt that broke off by our fault; what no JSON can hold."""
    made = told(RolloutState.ABORTED, "half an answer")
    assert (made.output, made.output_sha256) == (None, None)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for odd in (object(), "\ud83d", deep):
        assert as_told(odd) == (None, None)


def test_the_output_is_on_the_episode() -> None:
    """Where a grader finds it by the rollout's id."""
    streams, made = Streams(config()), chain(OWN, 1)
    streams.feed(*made, closed(OWN, made), reward(OWN), event(OWN, output='{"answer":5}', output_sha256="9f"))
    (value,) = streams.values(Topic.EPISODES)
    episode = EPISODES.decode(value)
    assert (episode.output, episode.output_sha256, episode.rollout_id) == ('{"answer":5}', "9f", OWN)


ASKED: dict[str, Any] = {"task": {}, "output": None, "attempt": {}}


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (0.5, {"rewards": {"reward": 0.5}}),
        ({"a": 1, "b": None}, {"rewards": {"a": 1.0, "b": None}, "calls": {}}),
        ({"a": 1, "step": {"c1": -1, "c2": None}}, {"rewards": {"a": 1.0}, "calls": {"step": {"c1": -1.0}}}),
        ({"step": {}}, {"rewards": {}, "calls": {"step": {}}}),
        ({"step": {7: 1.0}}, {"unscored": "grader returned no number: expected ids of calls"}),
        ({"step": {"": 1.0}}, {"unscored": "grader returned no number: expected ids of calls"}),
        ({"step": {"c" * 201: 1.0}}, {"unscored": "grader returned no number: expected ids of calls"}),
        ({"step": [1.0]}, {"unscored": "grader returned no number: float() argument must be .*"}),
        ({"step": {"c1": {"c2": 1}}}, {"unscored": "grader returned no number: float() argument must be .*"}),
    ],
)
def test_a_name_may_have_rewards_of_calls(returned: Any, said: dict[str, Any]) -> None:
    """Beside those of the whole; what is neither is unscored."""
    got = judge(lambda *_: returned, ASKED, raised)
    if str(said.get("unscored", "")).endswith(".*"):
        assert got.keys() == {"unscored"} and got["unscored"].startswith(said["unscored"][:-2])
    else:
        assert got == said
