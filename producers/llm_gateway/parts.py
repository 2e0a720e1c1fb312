"""What all parts of one gateway share: its settings, its sessions, its writer, its metrics.

In: made once by the gateway, handed to each part. Out: acknowledged records. Failure: UnavailableError when a record
is not acknowledged within a minute; whether it still arrives is then unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from tracegrad.schemas.errors import UnavailableError
from tracegrad.schemas.log.protocol import Headers, LogWriter, Position
from tracegrad.schemas.metrics import CALLS_UNACKNOWLEDGED, Metrics
from tracegrad.schemas.topics import Topic, Topics

from .config import LlmConfig, LlmHandles, PolicyConfig
from .sessions import Sessions

__all__ = ["Parts"]

_APPEND_TIMEOUT_S = 60.0


@dataclass
class Parts:
    """One gateway's; used in its event loop only."""

    config: LlmConfig
    policy: PolicyConfig
    handles: LlmHandles
    topics: Topics
    writer: LogWriter
    metrics: Metrics

    def __post_init__(self) -> None:
        self.sessions = Sessions(self.config, run_hash=self.handles.run_hash, metrics=self.metrics)

    async def append(
        self,
        topic: Topic,
        *,
        key: bytes | None,
        value: bytes,
        headers: Headers = (),
        handed: Callable[[asyncio.Future[Position]], None] = lambda append: None,
    ) -> None:
        """Appends a record and waits until it is acknowledged. Raises what the writer raises, or UnavailableError.

        Args:
            handed: gets the append at once, which may end after this has given it up.
        """
        append = asyncio.wrap_future(self.writer.append(self.topics.name(topic), key=key, value=value, headers=headers))
        handed(append)
        done, _ = await asyncio.wait({append}, timeout=_APPEND_TIMEOUT_S)
        if not done:
            self.metrics.add(CALLS_UNACKNOWLEDGED)
            raise UnavailableError("the record was not acknowledged in time; try again")
        append.result()
