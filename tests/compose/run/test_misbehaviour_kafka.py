"""A whole run on real Kafka, Faust and torch, in which agents, graders and the engine misbehave, group by group.

Only the engine is scripted. The loop keeps admitting, and the topics and logs say what was excluded and why.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import threading
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("torch")

from tests.compose.run.misbehaviour import SCRIPT, Script, write_files
from tests.consumers.audit import small_run
from tests.fake_engine.scripted import ScriptedEngine
from tests.producers.runner.rig import running_engine
from tests.streams.make import reward
from tests.versions import ack, claim, manifest
from tracegrad.compose.kafka.log import KafkaLog
from tracegrad.compose.run.load import load
from tracegrad.compose.run.report import account
from tracegrad.compose.run.run_dir import RunDir
from tracegrad.compose.run.session import run_session
from tracegrad.compose.run.show import Show
from tracegrad.compose.run.wiring import Wiring
from tracegrad.producers.tasks.dataset import read_tasks, task_of_group
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.ids import RunHash, RunName
from tracegrad.schemas.log.follow import Chunk, follow, read_to_end
from tracegrad.schemas.log.mac import SIGNED, KeyRing
from tracegrad.schemas.records.episodes import EPISODES, Episode
from tracegrad.schemas.records.rollouts import REWARDS, ROLLOUT_EVENTS, RolloutState
from tracegrad.schemas.records.training import TRAINING_STEPS, TrainingStep
from tracegrad.schemas.records.transitions import GroupSummary, decode_group
from tracegrad.schemas.records.weights import WEIGHT_ACKS, WEIGHTS
from tracegrad.schemas.topics import Topic, Topics

pytestmark = [pytest.mark.kafka, pytest.mark.torch, pytest.mark.timeout(300)]

POLICY = Path(__file__).parents[3] / "examples" / "calculator" / "policy"
FIRST = ["constant.a", "constant.b"]
LAST = ["spread.a", "spread.b"]
TASKS = [*FIRST, *(kind for kind in SCRIPT if kind not in ("constant", "spread")), *LAST]
"""A group each; constants come first, so that training starts with nothing to learn from."""
DULL = [f"constant.{letter}" for letter in "abcdef"]
"""A run in which nothing is ever learnt, of twice as many steps as may be admitted ahead."""
SUCCESS, ZERO = ("succeeded", 1.0, ""), ("succeeded", 0.0, "")
MEMBERS: dict[str, list[tuple[str, float | None, str]]] = {
    "spread": [SUCCESS, ZERO, SUCCESS],
    "constant": [SUCCESS] * 3,
    "engine": [("aborted", None, "aborted")] * 3,
    "engine-once": [("aborted", None, "aborted"), SUCCESS, ZERO],
    "grader-raises": [("succeeded", None, "unscored")] * 3,
    "grader-none": [("succeeded", None, "unscored"), SUCCESS, ZERO],
    "hangs": [("truncated", 0.0, ""), SUCCESS, ZERO],
    "blocks": [("truncated", 0.0, ""), SUCCESS, ZERO],
    "crashes": [("failed", 0.0, ""), SUCCESS, ZERO],
    "raises": [("failed", 0.0, ""), SUCCESS, ZERO],
    "garbage": [("failed", 0.0, ""), SUCCESS, ZERO],
}
"""Kind -> (state, reward, why excluded) of its members, in any order."""
STEPS = {"constant": "no_advantage", "engine": "no_tokens", "grader-raises": "no_tokens"}
"""Kind -> why the step of its group alone changes no weights; every other one does."""
WORDS = {
    "engine": "its last call was answered 503",
    "hangs": "time limit",
    "blocks": "time limit; it blocks the event loop",
    "crashes": "the agent ends its process",
    "raises": "agent raised ValueError at agent.py:",
    "garbage": "agent raised TypeError: Object of type object is not JSON serializable",
}
"""Kind -> what the episode of its misbehaving member says."""


@dataclass(frozen=True)
class Finished:
    """A run that has ended: its exit status, what it printed, its topics and its folder."""

    status: int
    said: str
    episodes: list[Episode]
    groups: dict[str, GroupSummary]
    """By task."""
    steps: dict[str, TrainingStep]
    """By the task of their only group."""
    staleness: int
    """Batches that may be admitted ahead of the trainer."""
    run_dir: RunDir


def settings_of(folder: Path, engine: str, broker: str, tasks: list[str], **more: Any) -> Any:
    """One group a batch, three rollouts a group."""
    write_files(folder, tasks)
    flags = {
        "run": "bad-days",
        "agent.callable": str(folder / "agent.py:solve"),
        "agent.cwd": str(folder),
        "agent.concurrency": 4,
        "agent.time_limit_s": 5,
        "agent.env": {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "langchain"},
        "tasks.file": str(folder / "tasks.jsonl"),
        "tasks.group_size": 3,
        "tasks.max_attempts": 4,
        "reward.grader": str(folder / "grade.py:grade"),
        "policy.model": str(POLICY),
        "llm.engine_wait_s": 2,
        "engine.url": engine,
        "kafka.bootstrap_servers": broker,
        "kafka.topic_prefix": f"t{uuid.uuid4().hex[:12]}.",
        "trainer.steps": len(tasks),
        "trainer.groups_per_step": 1,
        **more,
    }
    return load(None, environ={}, flags=flags, for_training=True)


def in_order(tasks: Any, seed: int) -> list[str]:
    """The tasks' ids as they are admitted."""
    return [task_of_group(tasks, index, seed=seed).id for index in range(len(tasks))]


def is_wanted(order: list[str]) -> bool:
    """Nothing to learn from at first, a good task at the end."""
    return sorted(order[: len(FIRST)]) == FIRST and sorted(order[-len(LAST) :]) == LAST


@pytest.fixture(scope="module")
def finished(broker: str, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The run of all kinds, with a seed that puts the tasks in the order wanted."""
    folder = tmp_path_factory.mktemp("bad-days")
    write_files(folder, TASKS)
    tasks = read_tasks(folder / "tasks.jsonl")
    seed = next(seed for seed in itertools.count() if is_wanted(in_order(tasks, seed)))
    # A group that hangs is overtaken by many others.
    return run_to_its_end(broker, folder, TASKS, **{"seed": seed, "trainer.max_staleness": 100})


def run_to_its_end(broker: str, folder: Path, tasks: list[str], **more: Any) -> Finished:
    """A run of these tasks, each once; its supervisor is this thread."""
    said = io.StringIO()
    with running_engine(ScriptedEngine(policy=Script())) as engine:
        settings = settings_of(folder, engine, broker, tasks, **more)
        status = run_session(settings, folder / "run", Show(said), for_training=True)
    run_dir = RunDir.open(folder / "run")
    wiring = Wiring(run_dir)
    log, topics = wiring.log(), wiring.topics
    groups: dict[str, GroupSummary] = {}
    for record in read_to_end(log, topics.name(Topic.TRANSITIONS)):
        summary, _ = decode_group(record.value)
        assert groups.setdefault(summary.task_id, summary) == summary
    tasks_by_group = {summary.group_id: task for task, summary in groups.items()}
    steps: dict[str, TrainingStep] = {}
    for record in read_to_end(log, topics.name(Topic.TRAINING_STEPS)):
        step = TRAINING_STEPS.decode(record.value)
        assert isinstance(step, TrainingStep)
        (group,) = (*step.group_ids, *step.excluded_ids)
        assert steps.setdefault(tasks_by_group[group], step) == step
    episodes = {r.value: EPISODES.decode(r.value) for r in read_to_end(log, topics.name(Topic.EPISODES))}
    return Finished(status, said.getvalue(), list(episodes.values()), groups, steps, settings.pace.staleness, run_dir)


def attack(broker: str, topics: Topics, stop: threading.Event, sent: list[Topic]) -> None:
    """Appends what an agent that found the broker would like believed, in the run's name and by a key of its own."""
    log, wishes = KafkaLog(broker), (claim(99), manifest(99, epoch=99))
    with contextlib.closing(log.writer()) as writer:

        def forge(topic: Topic, key: str, value: bytes, run: str) -> None:
            ring = KeyRing(RunHash(run), {RunHash(run): b"w" * 32})
            for headers in ((), (ring.sign(topic, key.encode(), value),)):
                writer.append(topics.name(topic), key=key.encode(), value=value, headers=headers)
                sent.append(topic)

        while not stop.is_set():
            try:
                with contextlib.closing(follow(log, [topics.name(Topic.ROLLOUT_EVENTS)], stop=stop)) as chunks:
                    chunk = next(chunks, Chunk((), {}, {}))
            except ConfigurationError:
                stop.wait(0.2)  # the run has not made its topics yet
                continue
            events = [ROLLOUT_EVENTS.decode(record.value) for record in chunk.records]
            for event in {event.rollout_id: event for event in events if event.error != "forged"}.values():
                run = event.rollout_id[:8]
                lost = msgspec.structs.replace(event, state=RolloutState.FAILED, is_final=True, error="forged")
                name = f"{event.rollout_id}/{event.attempt_id}/reward"
                grade = reward(event.rollout_id, 999.0, attempt_id=event.attempt_id, idempotency_key=name)
                forge(Topic.ROLLOUT_EVENTS, event.rollout_id, ROLLOUT_EVENTS.encode(lost), run)
                forge(Topic.REWARDS, event.rollout_id, REWARDS.encode(grade), run)
                for wish in wishes:
                    forge(Topic.WEIGHTS, "policy", WEIGHTS.encode(wish), run)
                forge(Topic.WEIGHT_ACKS, "engine-0", WEIGHT_ACKS.encode(ack(99, epoch=99)), run)
                forge(Topic.TRAINING_STEPS, "policy", TRAINING_STEPS.encode(small_run.step(99, (), epoch=99)), run)
            stop.wait(0.5)


def test_records_that_others_append_do_nothing_to_a_run(broker: str, tmp_path: Path) -> None:
    """The trainer keeps its policy, the engine its version, tasks their count, rollouts their rewards; the audit names
    each record.
    """
    tasks, sent, stop, prefix = DULL[:2], list[Topic](), threading.Event(), f"t{uuid.uuid4().hex[:12]}."
    topics = Topics(run=RunName("bad-days"), prefix=prefix)
    attacker = threading.Thread(target=attack, args=(broker, topics, stop, sent))
    attacker.start()
    try:
        finished = run_to_its_end(broker, tmp_path, tasks, **{"kafka.topic_prefix": prefix})
    finally:
        stop.set()
        attacker.join(60)
    assert finished.status == 0, finished.said
    assert finished.groups.keys() == finished.steps.keys() == set(tasks)
    assert {member.reward for group in finished.groups.values() for member in group.members} == {1.0}
    assert {(step.epoch, step.skipped) for step in finished.steps.values()} == {(1, "no_advantage")}
    report = account(Wiring(finished.run_dir), is_live=False)
    assert report.missing == []
    # Nothing is on `advantages`, where no group has one.
    assert set(sent) == SIGNED - {Topic.ADVANTAGES} and report.num_unverified == len(sent)


def test_every_group_was_admitted_and_consumed_by_one_step(finished: Finished) -> None:
    """The run ends by itself after as many steps as groups; nothing waits for a group that went wrong."""
    assert finished.status == 0, finished.said
    assert finished.groups.keys() == set(TASKS)
    assert finished.steps.keys() == set(TASKS)
    accounting = max(finished.steps.values(), key=lambda step: step.step).accounting
    assert (accounting.consumed, accounting.trained) == (len(TASKS), len(TASKS) - 4)
    assert accounting.excluded == {"all_members_excluded": 2, "no_advantage": 2}
    assert max(finished.groups[task].group_index for task in TASKS if task not in LAST) < len(TASKS) - len(LAST)


@pytest.mark.parametrize("task", TASKS)
def test_members_have_the_state_reward_and_reason_expected(finished: Finished, task: str) -> None:
    """Only faults that are ours or the grader's exclude a member; what the agent does wrong is graded."""
    kind = task.partition(".")[0]
    group = finished.groups[task]
    found = sorted((member.state, repr(member.reward), member.excluded) for member in group.members)
    assert found == sorted((state, repr(reward), reason) for state, reward, reason in MEMBERS[kind])
    assert group.excluded == ("all_members_excluded" if all(reason for *_, reason in MEMBERS[kind]) else "")
    step = finished.steps[task]
    assert step.skipped == STEPS.get(kind, "")
    assert step.is_updated == (kind not in STEPS)
    reason = group.excluded or step.skipped
    assert step.excluded_ids == ({group.group_id: reason} if reason else {})


@pytest.mark.parametrize("task", [task for task in TASKS if task.partition(".")[0] in WORDS])
def test_the_episode_says_what_its_agent_did(finished: Finished, task: str) -> None:
    """Each misbehaving rollout ends once for good, with the reason."""
    errors = [episode.error or "" for episode in finished.episodes if episode.task_id == task and episode.is_final]
    assert len(errors) == 3
    assert any(error.startswith(WORDS[task]) for error in errors), errors


def test_unscored_episodes_say_why(finished: Finished) -> None:
    """None is not zero, and neither is an exception."""
    reasons = {(episode.task_id, episode.unscored) for episode in finished.episodes if episode.unscored}
    assert {reason for task, reason in reasons if task == "grader-none"} == {"grader returned None"}
    assert {reason for task, reason in reasons if task == "grader-raises"} == {
        "grader raised RuntimeError at grade.py:4: the grader's own"
    }


def test_what_was_left_out_is_said(finished: Finished) -> None:
    """In the log of tasks, group by group and step by step, and in the live view."""
    told = (finished.run_dir.logs / "tasks.log").read_text()
    index = {task: group.group_index for task, group in finished.groups.items()}
    assert f"group {index['engine']}: 3 of 3 rollouts excluded: aborted 3" in told
    assert f"group {index['engine-once']}: 1 of 3 rollouts excluded: aborted 1" in told
    assert f"group {index['grader-none']}: 1 of 3 rollouts excluded: unscored (grader returned None) 1" in told
    assert f"step {finished.steps['constant.a'].step} trained nothing: no_advantage" in told
    assert f"step {finished.steps['engine'].step}: 1 groups excluded: all_members_excluded 1" in told
    end = told.rpartition("training rollouts excluded: ")[2]
    assert "'aborted': 4" in end and "'unscored (grader returned None)': 1" in end
    assert '"unscored (grader raised RuntimeError at grade.py:4: the grader\'s own)": 3' in end
    assert finished.said.count("no update: no_advantage") == 2
    assert finished.said.count("no update: no_tokens") == 2


def test_a_run_without_any_advantage_goes_on_to_its_end(broker: str, tmp_path: Path) -> None:
    """Every group has zero variance: admission needs no new version, and each step says why it changed nothing."""
    finished = run_to_its_end(broker, tmp_path, DULL)
    assert finished.status == 0, finished.said
    assert len(DULL) > finished.staleness + 1
    assert finished.groups.keys() == finished.steps.keys() == set(DULL)
    for task, step in finished.steps.items():
        assert [member.reward for member in finished.groups[task].members] == [1.0] * 3
        assert (step.skipped, step.is_updated, step.version) == ("no_advantage", False, 0)
    assert sorted(step.step for step in finished.steps.values()) == list(range(1, len(DULL) + 1))
    assert finished.said.count("no update: no_advantage") == len(DULL)
    assert (finished.run_dir.logs / "tasks.log").read_text().count("trained nothing: no_advantage") == len(DULL)
