"""What the views look at: the run's fold, how its topics stand, and who looks.

In: records and measurements, from the threads of `board_reader.py`. Out: a `Board` that views read under its lock, and
a `revision` that moves when there is something new. Invariants: bounded, as `RunState` is; what a view takes long for
(the log, the index) it asks for without the lock. Failure: none; what a topic does not tell yet is empty.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from tracegrad.schemas.bounded import BoundedMap
from tracegrad.schemas.errors import RecordError, UnavailableError
from tracegrad.schemas.ids import RunHash, episode_id, run_hash_of
from tracegrad.schemas.log.protocol import Log, Offsets, Record, TopicPartition
from tracegrad.schemas.records.dead_letters import dead_letter_fields
from tracegrad.schemas.records.episodes import Episode
from tracegrad.schemas.records.rollouts import ROLLOUT_EVENTS, Reward
from tracegrad.schemas.topics import Stage, Topic, Topics

from ..index.build import IndexProgress
from ..index.file import open_index
from ..views.run_state import RunState

_LOOKED_S = 10.0
"""So long after the last look the run counts as watched."""
_HELD_S = 30.0
"""So long after a view read of the log it may read on: a broker takes seconds to start."""
_RUNNING = 10_000


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What compose knows of the run."""

    name: str
    hash: RunHash
    folder: str
    is_live: bool
    """It runs, or others may write to it; else its broker was opened to look at it."""
    policy: str
    steps: int | None = None
    """How many it is asked for."""
    groups_per_step: int = 1
    concurrency: int | None = None
    """Agents at once; None: nobody starts any."""
    replays: str | None = None
    """The folder of the run whose history it trains on."""
    causes: Sequence[str] = ()
    """Of a run that has ended and has learned nothing: why."""


class ViewQuery(NamedTuple):
    """What a view is asked for: the rest of the path, and the query."""

    rest: str = ""
    query: Mapping[str, str] = MappingProxyType({})


class TopicCount(NamedTuple):
    """How a topic stands."""

    num: int
    """Records that it holds, or held before it was compacted."""
    lag: Mapping[Stage, int]
    """Of each stage that reads it: records not committed yet."""


Explain = Callable[[Episode, Sequence[Reward]], Mapping[str, Any]]
"""An episode, and what was said behind its close, to what each of its calls is worth by the run's rules: by call id, as
streams/explain.py tells it."""


class Board:
    """One run's. Folded by one thread, read by any under `lock`."""

    revision = 0
    is_read = False
    """Whether all that lay on the topics at first is folded."""
    trouble = ""
    """Why nothing new comes, for people."""
    index_progress: IndexProgress | None = None
    """How far the index is filled; None before it is."""
    _asked_until: float | None = None
    _looked_at: float | None = None

    def __init__(
        self,
        about: RunInfo,
        topics: Topics,
        state: RunState,
        *,
        log: Log | None = None,
        pieces: Callable[[Sequence[int]], list[str]] | None = None,
        explain: Explain | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            log: what verifies of the run's log; None until its broker answers.
            pieces: token ids to the text of each, by the policy's tokenizer, if one is at hand.
        """
        self.about, self.topics, self.state = about, topics, state
        self.opened = log
        self.pieces, self.explain = pieces, explain
        self.lock = threading.RLock()
        self.running: BoundedMap[str, int] = BoundedMap(_RUNNING)
        """Attempt at work -> when it began, unix ms."""
        self.dead_letters: Counter[tuple[str, str]] = Counter()
        """(stage, reason) -> how many."""
        self.counts: dict[Topic, TopicCount] = {}
        self.ends: dict[Topic, Mapping[int, Offsets]] = {}
        self.positions: Mapping[TopicPartition, int] = {}
        """How far the folded topics are folded."""
        self.is_indexed = about.is_live
        """Whether the index lacks nothing, or of a live run the last."""
        self.index_path = Path(about.folder, "index.sqlite")
        self._clock = clock
        self.wanted = threading.Event()
        """Set when somebody asks for the index; whoever fills it clears it."""
        self._names = {topics.name(topic): topic for topic in Topic}

    def connect(self, log: Log) -> None:
        """The broker answers from now on."""
        with self.lock:
            self.opened = log
            self.changed()

    def disconnect(self) -> None:
        """The broker is gone until somebody asks for it."""
        with self.lock:
            self.opened = None

    @property
    def log(self) -> Log | None:
        """What verifies of the run's log; None until its broker answers. To ask is to have it started."""
        self._asked_until = max(self._asked_until or 0.0, self._clock() + _HELD_S)
        return self.opened

    def needed_log(self) -> Log:
        """The same. Raises UnavailableError until it answers, upon which a view asks again by itself."""
        log = self.log
        if log is None:
            raise UnavailableError("the run's broker does not answer yet; it is being started")
        return log

    @property
    def asks_log(self) -> bool:
        """Whether a view asked for the log, and may want it still."""
        return self._asked_until is not None and self._clock() < self._asked_until

    def refuse(self, trouble: str) -> None:
        """Neither the log nor the index is to be had, until a view asks again."""
        self._asked_until = None
        self.wanted.clear()
        self.set_trouble(trouble)

    def note_look(self) -> None:
        """Somebody looks now."""
        self._looked_at = self._clock()

    @property
    def is_watched(self) -> bool:
        """Whether somebody looked lately."""
        return self._looked_at is not None and self._clock() - self._looked_at < _LOOKED_S

    def changed(self) -> None:
        """There is something new to show."""
        with self.lock:
            self.revision += 1

    def set_trouble(self, trouble: str) -> None:
        """Why nothing new comes; empty: it does again."""
        if trouble != self.trouble:
            self.trouble = trouble
            self.changed()

    @contextlib.contextmanager
    def index(self) -> Iterator[sqlite3.Connection]:
        """The run's index, as far as it is filled; to ask is to have it filled on. A connection of one thread."""
        self.wanted.set()
        with open_index(self.index_path) as connection:
            yield connection

    @property
    def lacks_episodes(self) -> bool:
        """Whether the index is still being filled for the first time, so that what it does not hold may be there."""
        progress = self.index_progress
        if progress is None:
            return self.about.is_live or not self.is_indexed
        return progress.num_read < progress.num_records

    def fold(self, record: Record) -> None:
        """Takes a record; the caller holds the lock."""
        topic = self._names.get(record.topic)
        if topic is Topic.ROLLOUT_EVENTS:
            self._event(record)
        elif topic is Topic.DEAD_LETTERS:
            fields = dead_letter_fields(record.headers)
            self.dead_letters[fields.get("stage", "?"), fields.get("reason", "?")] += 1
        else:
            self.state.fold(record, self._clock())

    def _event(self, record: Record) -> None:
        """Agents at work. Not by `RunState`, which counts an attempt as open until its episode is read: episodes are
        the bulk of a run, and are read into the index alone."""
        with contextlib.suppress(RecordError):
            event = ROLLOUT_EVENTS.decode(record.value)
            id_ = episode_id(event.rollout_id, event.attempt_id)
            if run_hash_of(event.rollout_id) != self.about.hash:
                return
            if event.state.is_end:
                self.running.pop(id_, None)
            else:
                self.running[id_] = event.at_ms
