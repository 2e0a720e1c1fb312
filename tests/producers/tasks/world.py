"""A run as tasks sees it: what runner, streams, trainer and weight sync would write, on a log in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.memory_log import MemoryLog
from tests.versions import RUN, ack
from tracegrad.producers.tasks.admission import TaskAdmission
from tracegrad.producers.tasks.config import PaceConfig, TasksConfig, TasksHandles
from tracegrad.schemas.ids import RunHash, RunName
from tracegrad.schemas.log.follow import follow
from tracegrad.schemas.metrics import Metrics
from tracegrad.schemas.records.calls import Purpose
from tracegrad.schemas.records.episodes import EPISODES, Episode, EpisodeCall
from tracegrad.schemas.records.rollouts import (
    ROLLOUT_EVENTS,
    ROLLOUTS,
    Limits,
    RolloutEvent,
    RolloutRequest,
    RolloutState,
)
from tracegrad.schemas.records.training import TRAINING_STEPS, Accounting, TrainingStep
from tracegrad.schemas.records.weights import WEIGHT_ACKS
from tracegrad.schemas.topics import Topic, Topics

TOPICS = Topics(run=RunName("test"))
HANDLES = TasksHandles(
    stops_by_cause=False,
    engine_ids=("engine-0",),
    run_hash=RunHash("ab12cd34"),
    policy="policy",
    seed=0,
    steps=3,
    groups_per_step=2,
    concurrency=14,
    time_limit_s=Limits().time_s,
    rewards_awaited=("reward",),
    episode_wait_s=90.0,
)


class World:
    """What runner, streams, trainer and weight sync would write."""

    def __init__(self, log: MemoryLog, folder: Path) -> None:
        log.create_topics(TOPICS, policies=["policy"])
        (folder / "train.jsonl").write_text("".join(f'{{"id":"{i}","input":{i},"expected":{i}}}\n' for i in range(3)))
        (folder / "eval.jsonl").write_text('{"id":"e0","input":0}\n{"id":"e1","input":1}\n')
        self.log = log
        self.writer = log.writer()
        file, eval_file = str(folder / "train.jsonl"), str(folder / "eval.jsonl")
        self.config = TasksConfig(file=file, eval_file=eval_file, group_size=2)
        self.pace = PaceConfig(staleness=1)
        self.handles = HANDLES
        self.start()
        self.num_consumed = 0
        self.step = 0

    def start(self) -> None:
        """A tasks process from the log's beginning."""
        self.metrics = Metrics()
        self.admission = TaskAdmission(
            self.config, self.pace, self.handles, topics=TOPICS, writer=self.log.writer(), metrics=self.metrics
        )
        self.chunks = follow(self.log, list(self.admission.codecs), poll_s=0.0)

    def turn(self) -> bool:
        """One round of the loop."""
        return self.admission.fold(next(self.chunks))

    def append(self, topic: Topic, key: str, value: bytes) -> None:
        """One record."""
        self.writer.append(TOPICS.name(topic), key=key.encode(), value=value).result(1)

    def ack(self, version: int) -> None:
        """An engine serves a version."""
        self.append(Topic.WEIGHT_ACKS, "engine-0", WEIGHT_ACKS.encode(ack(version)))

    def requests(self, purpose: Purpose) -> list[RolloutRequest]:
        """All requests of a purpose, by group and member."""
        found = [ROLLOUTS.decode(record.value) for record in self.log.records(TOPICS.name(Topic.ROLLOUTS))]
        chosen = [request for request in found if request.purpose is purpose]
        return sorted(chosen, key=lambda request: (request.group.index, request.group.member))

    def end(
        self,
        request: RolloutRequest,
        state: RolloutState = RolloutState.SUCCEEDED,
        *,
        reward: float | None = 1.0,
        episode: bool = True,
        calls: tuple[EpisodeCall, ...] = (),
    ) -> None:
        """The rollout's final event and episode."""
        fields: dict[str, Any] = {
            "rollout_id": request.rollout_id,
            "attempt_id": "aaaa",
            "attempt_number": 0,
            "state": state,
            "is_final": True,
            "group": request.group,
            "task_id": request.task_id,
            "policy": request.policy,
            "purpose": request.purpose,
        }
        self.append(Topic.ROLLOUT_EVENTS, request.rollout_id, ROLLOUT_EVENTS.encode(RolloutEvent(**fields)))
        record = Episode(
            episode_id=request.rollout_id + "aaaa", closed_by="complete", calls=calls, reward=reward,
            unscored="" if reward is not None else "grader raised KeyError", **fields,
        )  # fmt: skip
        if episode:
            self.append(Topic.EPISODES, request.group.id, EPISODES.encode(record))

    def train(self) -> None:
        """The next batch."""
        self.step += 1
        self.num_consumed += self.handles.groups_per_step
        step = TrainingStep(
            run=RUN, policy="policy", step=self.step, epoch=1, version=self.step, is_updated=True, begin_offset=0,
            next_offset=0, batch_hash="", group_ids=(), accounting=Accounting(consumed=self.num_consumed), loss=0.0,
            grad_norm=0.0, learning_rate=0.0, reward=None, num_rollouts=0, num_tokens=0,
            excluded_ids={"g": "all_members_excluded"},
        )  # fmt: skip
        self.append(Topic.TRAINING_STEPS, "policy", TRAINING_STEPS.encode(step))


def validated(world: World) -> None:
    """Version 0 is served; plays a validation pass."""
    world.ack(0)
    world.turn()
    for request in world.requests(Purpose.VALIDATION):
        world.end(request)
    world.turn()
