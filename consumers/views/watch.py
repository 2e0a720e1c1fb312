"""What a run is doing now, folded from its topics: steps, open episodes, lag, versions served.

In: records of the run's topics, in any order between topics. Out: `Event`s, one per thing a person waits for; a
printer shows them (`show.py`). Invariant: it only reads, without a group, in a thread of its own; a broker that is
away makes it late, never makes the run fail. Failure: logged and tried again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping

import msgspec

from tracegrad.schemas.errors import RecordError, TracegradError
from tracegrad.schemas.ids import RunHash, run_hash_of
from tracegrad.schemas.log.protocol import Log, LogReader, Record, TopicPartition
from tracegrad.schemas.records.calls import Purpose
from tracegrad.schemas.records.episodes import EPISODES
from tracegrad.schemas.records.rollouts import ROLLOUT_EVENTS
from tracegrad.schemas.records.training import TRAINING_STEPS, TrainingStep
from tracegrad.schemas.records.weights import WEIGHT_ACKS
from tracegrad.schemas.topics import INPUTS, STREAMS, Topic, Topics

__all__ = ["Event", "EventKind", "RunView", "StepLine", "Watcher", "stream_lag"]

_logger = logging.getLogger(__name__)
_REMEMBERED = 100_000
"""Ended attempts that are remembered, so that an end read before its start leaves nothing open."""
EventKind = str
"""`step`, `version`, `validation`, `progress`."""


class StepLine(msgspec.Struct, frozen=True, kw_only=True):
    """One step as the terminal shows it."""

    step: int
    version: int
    reward: float | None
    """Mean final reward of the batch."""
    tool_success: float | None
    """Succeeded / executed tool calls."""
    staleness: float
    """Mean over trained tokens, in versions."""
    lag: int | None
    """Records that the stages have not committed; None: Kafka did not say in time."""
    open_episodes: int
    seconds: float
    """Since the step before."""
    skipped: str = ""
    """Why the optimiser did not step."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something worth a line."""

    kind: EventKind
    text: str
    step: StepLine | None = None


class RunView:
    """The fold. One thread at a time."""

    def __init__(self, topics: Topics, run: RunHash, *, lag: Callable[[], int | None] = lambda: None) -> None:
        self._folds = {
            topics.name(Topic.TRAINING_STEPS): self._step,
            topics.name(Topic.WEIGHT_ACKS): self._ack,
            topics.name(Topic.ROLLOUT_EVENTS): self._event,
            topics.name(Topic.EPISODES): self._episode,
        }
        self.topics = tuple(self._folds)
        self._run = run
        self._lag = lag
        self._open: set[str] = set()
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._newest_step = 0
        self._last_ended_ms: int | None = None
        self.newest_version = -1
        self.num_episodes = 0
        self._validation: dict[str, list[float]] = {"before": [], "after": []}

    @property
    def num_open(self) -> int:
        """Attempts that started and have no episode yet."""
        return len(self._open)

    def fold(self, record: Record) -> list[Event]:
        """Takes one record; what cannot be read is somebody else's dead letter."""
        try:
            return self._folds[record.topic](record)
        except RecordError:
            return []

    def _step(self, record: Record) -> list[Event]:
        step = TRAINING_STEPS.decode(record.value)
        if step.step <= self._newest_step:
            return []
        self._newest_step = step.step
        began_ms = self._last_ended_ms if self._last_ended_ms is not None else step.started_at_ms
        self._last_ended_ms = step.ended_at_ms
        return [Event(kind="step", text=f"step {step.step}", step=self._line(step, began_ms))]

    def _line(self, step: TrainingStep, began_ms: int) -> StepLine:
        return StepLine(
            step=step.step,
            version=step.version,
            reward=step.reward,
            tool_success=step.tool_success,
            staleness=step.staleness_mean,
            lag=self._lag(),
            open_episodes=self.num_open,
            seconds=max(0.0, (step.ended_at_ms - began_ms) / 1000),
            skipped="" if step.is_updated else step.skipped or "no step",
        )

    def _ack(self, record: Record) -> list[Event]:
        ack = WEIGHT_ACKS.decode(record.value)
        is_first = self.newest_version < 0
        self.newest_version = max(self.newest_version, ack.version)
        if not is_first:
            return []
        return [Event(kind="version", text=f"{ack.engine_id} serves version {ack.version} of {ack.policy}")]

    def _event(self, record: Record) -> list[Event]:
        event = ROLLOUT_EVENTS.decode(record.value)
        if run_hash_of(event.rollout_id) == self._run and not event.state.is_end:
            id_ = event.rollout_id + event.attempt_id
            if id_ not in self._ended:
                self._open.add(id_)
        return []

    def _episode(self, record: Record) -> list[Event]:
        episode = EPISODES.decode(record.value)
        id_ = episode.episode_id
        if id_ in self._ended:
            return []
        self._open.discard(id_)
        self._ended[id_] = None
        if len(self._ended) > _REMEMBERED:
            self._ended.popitem(last=False)
        self.num_episodes += 1
        if episode.purpose is Purpose.VALIDATION and episode.is_final and episode.reward is not None:
            return self._held_out(episode.reward)
        return []

    def _held_out(self, reward: float) -> list[Event]:
        which = "after" if self._newest_step else "before"
        rewards = self._validation[which]
        rewards.append(reward)
        if len(rewards) % 32:
            return []
        mean = sum(rewards) / len(rewards)
        return [Event(kind="validation", text=f"held-out {which}: {len(rewards)} episodes, mean {mean:.3f}")]


def stream_lag(log: Log, topics: Topics) -> int:
    """Records of the stages' inputs that are not committed yet: waiting, or held by open episodes and groups."""
    lag = 0
    for stage in STREAMS:
        for topic in INPUTS[stage]:
            name = topics.name(topic)
            committed = log.committed(topics.group(stage), name)
            for partition, offsets in log.offsets(name).items():
                lag += max(0, offsets.end - committed.get(partition, offsets.begin))
    return lag


class Watcher:
    """Tails topics in a thread and hands events to a printer."""

    def __init__(
        self,
        log: Log,
        topics: tuple[str, ...],
        fold: Callable[[Record], list[Event]],
        show: Callable[[Event], None],
        *,
        tick: Callable[[], list[Event]] = list,
        starts: Mapping[str, str] | None = None,
        offsets: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """
        Args:
            log: where to read; used by the watcher's thread alone.
            topics: full names.
            fold: a record's events.
            show: prints one event; called in the watcher's thread.
            tick: events that only time brings; called a few times a second.
            starts: `end` for topics whose past does not matter; the others are read from the beginning.
            offsets: where the run began on topics that it shares with others, instead of the beginning.
        """
        self._log = log
        self._topics = topics
        self._fold = fold
        self._show = show
        self._tick = tick
        self._starts = starts or {}
        self._offsets = offsets or {}
        self._stop = threading.Event()
        self._drain = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        """Begins; the topics must exist."""
        self._thread.start()

    def close(self, timeout_s: float = 5.0) -> None:
        """Shows what is there already, then ends; may be called again."""
        self._drain.set()
        self._thread.join(timeout_s)
        self._stop.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._stop.is_set():
            readers: list[LogReader] = []
            try:
                readers = [self._reader(start) for start in ("beginning", "end") if self._names(start)]
                self._follow(readers)
                return
            except TracegradError as error:
                _logger.warning("watching the run waits: %s", error)
                if self._drain.is_set():
                    return
                self._stop.wait(1.0)
            finally:
                for reader in readers:
                    reader.close()

    def _names(self, start: str) -> list[str]:
        return [name for name in self._topics if self._starts.get(name, "beginning") == start]

    def _reader(self, start: str) -> LogReader:
        names = self._names(start)
        if start == "end":
            return self._log.tail(names, start="end")
        begins = {
            TopicPartition(name, partition): max(kept.begin, self._offsets.get(TopicPartition(name, partition), 0))
            for name in names
            for partition, kept in self._log.offsets(name).items()
        }
        return self._log.tail(names, start=begins)

    def _follow(self, readers: list[LogReader]) -> None:
        last_tick = 0.0
        while not self._stop.is_set():
            read = [record for reader in readers for record in reader.read(timeout_s=0.1)]
            for record in read:
                for event in self._fold(record):
                    self._show(event)
            if time.monotonic() - last_tick > 0.25:
                last_tick = time.monotonic()
                for event in self._tick():
                    self._show(event)
            if self._drain.is_set() and not read:
                return
