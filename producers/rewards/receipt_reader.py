"""Reads the topics on which it shows what became of feedback, beside the gateway's requests, in its event loop.

In: the log. Out: receipts. Invariant: what lies there from earlier lives of the gateway is read first. An undecodable
record is counted and passed over; a broker that is away is waited for. Failure: a fatal error of the log is kept in
`fatal`, and ends the gateway.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator

from tracegrad.schemas.errors import FatalError, RecordError
from tracegrad.schemas.log.follow import decoded, follow, in_thread
from tracegrad.schemas.log.protocol import Log, Record
from tracegrad.schemas.log.refusals import Refusals
from tracegrad.schemas.metrics import Metrics
from tracegrad.schemas.records.codec import Codec
from tracegrad.schemas.records.dead_letters import dead_letter_fields
from tracegrad.schemas.records.episodes import CLOSED, EPISODE_SCORES, ClosedMarker, EmittedEpisode, Score
from tracegrad.schemas.records.facts import EPISODE_EVENTS, Close, Facts, RewardFact
from tracegrad.schemas.records.rollouts import REWARDS, Reward
from tracegrad.schemas.topics import Stage, Topic, Topics

from .config import FeedbackHandles
from .receipts import Receipts

_POLL_S = 0.1


class ReceiptReader:
    """Of one gateway."""

    def __init__(
        self, receipts: Receipts, handles: FeedbackHandles, *, topics: Topics, log: Log, metrics: Metrics
    ) -> None:
        self.fatal: FatalError | None = None
        self._receipts = receipts
        self._starts = handles.starts
        self._log = log
        self._groups, self._letters = topics.name(Topic.CLOSED_GROUPS), topics.name(Topic.DEAD_LETTERS)
        self._codecs: dict[str, Codec[Reward] | Codec[ClosedMarker] | Codec[Score | EmittedEpisode | Close]] = {
            topics.name(Topic.REWARDS): REWARDS,
            topics.name(Topic.CLOSED_EPISODES): CLOSED,
            topics.name(Topic.EPISODE_SCORES): EPISODE_SCORES,
            self._groups: CLOSED,
        }
        self._refusals = Refusals(topics, metrics)
        self._stop = threading.Event()

    @contextlib.asynccontextmanager
    async def beside(self, _application: object) -> AsyncIterator[None]:
        """While the application lives."""
        following = asyncio.create_task(self._follow())
        try:
            yield
        finally:
            self._stop.set()
            await asyncio.wait({following})

    async def _follow(self) -> None:
        topics = [*self._codecs, self._letters]
        steps = follow(self._log, topics, starts=self._starts, may_skip=True, poll_s=_POLL_S, stop=self._stop)
        try:
            async with contextlib.aclosing(in_thread(steps)) as chunks:
                async for chunk in chunks:
                    told = [record for record in chunk.records if record.topic != self._letters]
                    for record, value in decoded(told, self._codecs, self._refusals):
                        self._take(record, value)
                    for record in chunk.records:
                        if record.topic == self._letters:
                            self._receipts.refuse(*refused_in(record))
        except FatalError as error:
            self.fatal = error

    def _take(self, record: Record, value: Reward | ClosedMarker | Score | EmittedEpisode | Close) -> None:
        match value:
            case Reward():
                self._receipts.accept(value)
            case ClosedMarker() if record.topic == self._groups:
                self._receipts.close_group(value)
            case ClosedMarker():
                self._receipts.close_episode(value, record)
            case Score():
                self._receipts.come_behind(value, record)


def refused_in(letter: Record) -> tuple[list[Reward], str]:
    """(rewards, why a stage put them aside)."""
    fields = dead_letter_fields(letter.headers)
    try:
        match fields.get("stage"):
            case Stage.NORMALIZE:
                found = [REWARDS.decode(letter.value)]
            case Stage.ASSEMBLE:
                batch = EPISODE_EVENTS.decode(letter.value)
                facts = batch.facts if isinstance(batch, Facts) else ()
                found = [fact.reward for fact in facts if isinstance(fact, RewardFact)]
            case Stage.CREDIT:
                score = EPISODE_SCORES.decode(letter.value)
                found = [score.reward] if isinstance(score, Score) else []
            case _:
                found = []
    except RecordError:
        found = []
    return found, fields.get("reason", "")
