"""The OTLP gateway on the log in memory, and its HTTP client."""

from __future__ import annotations

from typing import Any

import httpx

from tests.memory_log import MemoryLog
from tests.producers.keys import KEY, RUN_HASH, TOPICS
from tracegrad.producers.otlp_gateway.app import OtlpGateway
from tracegrad.producers.otlp_gateway.config import OtlpConfig, OtlpHandles
from tracegrad.schemas.metrics import Metrics
from tracegrad.schemas.topics import Topic, Topics

PROTOBUF = {"content-type": "application/x-protobuf"}


class Gateway:
    """One gateway; `told` are its handles."""

    def __init__(
        self,
        log: MemoryLog | None = None,
        *,
        topics: Topics = TOPICS,
        told: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self.log, self.metrics = MemoryLog() if log is None else log, Metrics()
        self.log.create_topics(topics, policies=["policy"])
        given: dict[str, Any] = {"port": 0, "run_hash": RUN_HASH, "key": KEY, "ack_timeout_s": 8.0}
        handles = OtlpHandles(**given | (told or {}))
        writer = self.log.writer()
        self.app = OtlpGateway(OtlpConfig(**settings), handles, topics=topics, writer=writer, metrics=self.metrics).app
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(app=self.app), base_url="http://gateway")

    async def post(self, body: bytes, headers: dict[str, str], path: str = "/v1/traces") -> httpx.Response:
        """The answer to one export."""
        return await self.client.post(path, content=body, headers=PROTOBUF | headers)

    def values(self, topic: Topic = Topic.OTLP_SPANS) -> list[bytes]:
        """All values of a topic."""
        return [record.value or b"" for record in self.log.records(TOPICS.name(topic))]
