"""What all parts of one gateway share, and how they hand a record to Kafka and wait for it."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass

from tracegrad.schemas.errors import UnavailableError
from tracegrad.schemas.log.protocol import Headers, Log, Position
from tracegrad.schemas.metrics import CALLS_UNACKNOWLEDGED, Metrics
from tracegrad.schemas.topics import Topic, Topics

from ..budget import Budget
from .captured.conversation_ends import ConversationEnds
from .config import TIMINGS, LlmConfig, LlmHandles, PolicyConfig, Timings
from .outcomes import Outcomes
from .render.answer_end import EndOfMessage
from .sessions import Sessions

_Append = asyncio.Future[Position]


@dataclass
class Parts:
    """What all parts of one gateway share; used in its event loop only."""

    config: LlmConfig
    policy: PolicyConfig
    handles: LlmHandles
    topics: Topics
    log: Log
    metrics: Metrics
    timings: Timings = TIMINGS

    def __post_init__(self) -> None:
        self.writer = self.log.writer()
        limit = self.config.max_inflight_bytes
        self.budgets = {True: Budget(limit), False: Budget(halved(limit))}
        """Of attempts and their runner, and of others."""
        self.sessions = Sessions(self.config, run_hash=self.handles.run_hash, metrics=self.metrics)
        self.outcomes = Outcomes(self.append, self.metrics, self.timings)
        self.ends = EndOfMessage()
        self.conversation_ends = ConversationEnds()
        self.process = secrets.token_hex(8)
        """Drawn for this process: by it a runner sees that another one answers."""

    def append(self, topic: Topic, *, key: bytes | None, value: bytes, headers: Headers = ()) -> _Append:
        """Hands a record to the log; what comes back may end after `acknowledged` has given it up."""
        return asyncio.wrap_future(self.writer.append(self.topics.name(topic), key=key, value=value, headers=headers))

    async def acknowledged(self, append: _Append) -> None:
        """Waits for an append. Raises what the writer raises, or UnavailableError when it takes too long; whether the
        record still arrives is then unknown."""
        done, _ = await asyncio.wait({append}, timeout=self.timings.append_timeout_s)
        if not done:
            self.metrics.add(CALLS_UNACKNOWLEDGED)
            raise UnavailableError("the record was not acknowledged in time; try again")
        append.result()


def halved(limit: int) -> int:
    """Of what attempts may hold, how much others may hold beside them."""
    return max(limit // 2, 1)
