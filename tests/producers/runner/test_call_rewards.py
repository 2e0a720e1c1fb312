"""A grader that rewards single calls: on real gateways, hosts and graders, then through the folds to transitions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.producers.keys import RUN_HASH
from tests.producers.runner.rig import Rig
from tests.streams.make import Streams, config, signed_by
from tracegrad.producers.runner.config import AgentConfig, RewardConfig
from tracegrad.schemas.records.calls import CallRecord
from tracegrad.schemas.records.episodes import EPISODES, AppliedReward
from tracegrad.schemas.records.rollouts import REWARDS, RolloutState
from tracegrad.schemas.records.transitions import decode_group
from tracegrad.schemas.topics import INPUTS, Stage, Topic
from tracegrad.streams.regrade import given_to_grader

pytestmark = pytest.mark.e2e

AGENT = """
from asking import answer

def solve(task):
    return [answer(task["input"])["id"], answer(task["input"] + "!")["id"]]
"""
GRADE = """
import json

def grade(task, output, attempt):
    with open(__file__ + ".seen", "a") as file:
        file.write(json.dumps([output, attempt]) + "\\n")
    first, second = output
    assert [call["call_id"] for call in attempt["calls"]] == output
    how = task["input"]
    if how == "stranger":
        return {"reward": 1.0, "step": {"chatcmpl-1": 0.5}}
    if how == "nan":
        return {"reward": 1.0, "step": {first: float("nan")}}
    if how == "huge":
        return {"reward": 1.0, "step": {first: 1e13}}
    if how == "number":
        return {"reward": 1.0, "step": {first: "0.5"}}
    if how == "rule":
        return {"reward": 1.0, "air:mine": {first: 0.5}}
    if how == "many":
        return {"reward": 1.0, "step": {str(number): 0.5 for number in range(10_001)}}
    if how == "alone":
        return {"step": {first: 0.5}}
    return {"step": {first: 0.25, second: -0.5}, "format": {second: 0.125, first: None}, "none": {}, "correct": 1.0}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's agent and grader."""
    folder = tmp_path_factory.mktemp("agent")
    (folder / "agent.py").write_text(AGENT)
    (folder / "grade.py").write_text(GRADE)
    return folder


@pytest.fixture(scope="module")
def rig(folder: Path) -> Iterator[Rig]:
    """Gateways, and one runner of the agent for all tests of this module."""
    with Rig() as rig:
        rig.start_gateways()
        env = {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "*"}
        agent = AgentConfig(callable="agent.py:solve", cwd=str(folder), env=env, hosts=1)
        rig.start_runner(agent, RewardConfig(grader="grade.py:grade"), folder)
        yield rig


def folded(rig: Rig, rollout: str) -> Streams:
    """What the folds make of all that is on the log of a rollout."""
    streams = Streams(config(run_hash=RUN_HASH))
    for topic in sorted(INPUTS[Stage.NORMALIZE]):
        for record in rig.memory.records(rig.topics.name(topic)):
            if record.key is not None and record.key.decode().startswith(rollout):
                streams.append(topic, record.value, headers=(*record.headers, *signed_by(RUN_HASH)))
    return streams


def test_what_it_gives_a_call_is_credited_to_that_call(rig: Rig, folder: Path) -> None:
    """Returns by hand: R = 1; the second call earned -.5 + .125, the first .25: .875 and .625. Those of calls lie on
    the log before those of the whole, for whose names the episode waits."""
    rollout = rig.request(input="steps")
    event = rig.final(rollout)
    assert (event.state, event.rewards_awaited) == (RolloutState.SUCCEEDED, ("format", "step", "correct"))
    one, two = json.loads(event.output or "")
    said = [REWARDS.decode(value) for value in rig.values(Topic.REWARDS) if rollout.encode() in value]
    assert [(reward.name, reward.target, reward.value) for reward in said] == [
        ("format", two, 0.125),
        *sorted([("step", one, 0.25), ("step", two, -0.5)]),
        ("correct", None, 1.0),
    ]
    streams = folded(rig, rollout)
    (record,) = streams.values(Topic.TRANSITIONS)
    _, rows = decode_group(record)
    turns = {turn.call_id: (turn.return_, turn.reward_parts) for row in rows for turn in row.turns}
    assert turns == {
        one: (0.875, (AppliedReward(rule="step", value=0.25),)),
        two: (0.625, (AppliedReward(rule="format", value=0.125), AppliedReward(rule="step", value=-0.5))),
    }


def test_a_regrade_would_give_the_grader_what_it_was_given(rig: Rig, folder: Path) -> None:
    """Field by field, as JSON: what was recorded of an attempt is what the runner's grader saw."""
    rollout = rig.request(input="steps")
    rig.final(rollout)
    (value,) = folded(rig, rollout).values(Topic.EPISODES)
    calls = [call for call in rig.calls(rollout) if isinstance(call, CallRecord)]
    given = json.loads(json.dumps(given_to_grader(EPISODES.decode(value), calls)))
    seen = [json.loads(line) for line in (folder / "grade.py.seen").read_text().splitlines()]
    assert given in seen


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("stranger", "grader rewarded 'chatcmpl-1', which is no call of the attempt"),
        ("nan", "grader returned no number: expected a finite number, got nan"),
        ("huge", "grader returned no number within +-1e+12 for each call"),
        ("number", "grader returned no number: expected a finite number, got '0.5'"),
        ("rule", "grader rewarded calls as 'air:mine', a name that is taken"),
        ("many", "expected at most 10000 rewards of calls, got 10001"),
        ("alone", "grader gave no 'reward'"),
    ],
)
def test_what_cannot_be_leaves_the_attempt_unscored_with_the_reason(rig: Rig, how: str, reason: str) -> None:
    """And its neighbours scored: a grader that mistakes a call has judged something else."""
    rollout, neighbour = rig.request(input=how), rig.request(input="steps")
    rig.final(rollout)
    reward = rig.rewards(rollout)["reward"]
    assert (reward.value, reward.reason) == (None, reason)
    (value,) = folded(rig, rollout).values(Topic.EPISODES)
    told = EPISODES.decode(value)
    assert (told.reward, told.unscored) == (None, reason)
    rig.final(neighbour)
    assert rig.rewards(neighbour)["correct"].value == 1.0


def test_the_episode_waits_for_the_last_of_them(rig: Rig) -> None:
    """In whatever order the topics are read: spans, calls and the end are there, of the rewards all but one."""
    rollout = rig.request(input="steps")
    rig.final(rollout)
    streams = Streams(config(run_hash=RUN_HASH))
    records: list[tuple[Topic, Any]] = [
        (topic, record)
        for topic in sorted(INPUTS[Stage.NORMALIZE], key=lambda topic: topic is Topic.REWARDS)
        for record in rig.memory.records(rig.topics.name(topic))
        if record.key is not None and record.key.decode().startswith(rollout)
    ]
    assert [topic for topic, _ in records[-4:]] == [Topic.REWARDS] * 4
    for topic, record in records[:-1]:
        streams.append(topic, record.value, headers=(*record.headers, *signed_by(RUN_HASH)))
    assert streams.values(Topic.EPISODES) == []
    topic, record = records[-1]
    streams.append(topic, record.value, headers=(*record.headers, *signed_by(RUN_HASH)))
    (value,) = streams.values(Topic.EPISODES)
    assert len(EPISODES.decode(value).rewards) == 4
