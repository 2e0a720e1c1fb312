"""A span exporter that writes to Kafka what the OTLP gateway would: for agents that reach the cluster and no gateway.

In: finished spans of OpenTelemetry's SDK, whose processor batches them, bounds them and flushes at exit. Out: records
on `otlp_spans`, split and keyed as the gateway's. Invariant: an export succeeds only when every piece is acknowledged.
Failure: what is not acknowledged in time, or cannot be a record, is lost; counted, and said in the log once a minute.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from tracegrad.schemas.errors import TracegradError
from tracegrad.schemas.keys import trace_key
from tracegrad.schemas.log.protocol import LogWriter
from tracegrad.schemas.otlp.signal import TRACES
from tracegrad.schemas.topics import Topics

from ..otlp_gateway.split import split

_RECORD_TARGET_BYTES = 1_000_000
"""As the gateway's: a size that every cluster takes."""
_ACK_TIMEOUT_S = 30.0
"""The SDK hands over the next batch when this one is done; its queue is bounded."""
_QUIET_S = 60.0

logger = logging.getLogger(__name__)


class KafkaSpanExporter(SpanExporter):
    """Blocks its caller, the SDK's own thread, until the log has acknowledged."""

    def __init__(self, writer: LogWriter, topics: Topics, *, ack_timeout_s: float = _ACK_TIMEOUT_S) -> None:
        self.lost: Counter[str] = Counter()
        """Spans that were not written, by the reason."""
        self._writer = writer
        self._topics = topics
        self._ack_timeout_s = ack_timeout_s
        self._quiet_until_s = 0.0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Writes them. FAILURE when some are lost; the SDK does not hand them over again."""
        limit = self._topics.value_bytes(TRACES.topic)
        topic, until_s = self._topics.name(TRACES.topic), time.monotonic() + self._ack_timeout_s
        waiting, num_before = [], self.lost.total()
        try:
            pieces, rejected = split(
                TRACES, encode_spans(spans), target_bytes=_RECORD_TARGET_BYTES, item_limit_bytes=limit
            )
        except TracegradError as error:
            self._lose("unfit", len(spans), error)
            return SpanExportResult.FAILURE
        self.lost.update(item.reason for item in rejected)
        for piece in pieces:
            try:
                future = self._writer.append(topic, key=trace_key(piece.trace_id), value=piece.value())
                waiting.append((len(piece.items), future))
            except TracegradError as error:
                self._lose(type(error).__name__, len(piece.items), error)
        for num, future in waiting:
            try:
                future.result(max(0.0, until_s - time.monotonic()))
            except (TracegradError, TimeoutError) as error:
                self._lose(type(error).__name__, num, error)
        return SpanExportResult.SUCCESS if self.lost.total() == num_before else SpanExportResult.FAILURE

    def _lose(self, reason: str, num: int, error: Exception) -> None:
        self.lost[reason] += num
        if time.monotonic() >= self._quiet_until_s:
            self._quiet_until_s = time.monotonic() + _QUIET_S
            logger.warning("%d spans lost so far, the last %d: %s", self.lost.total(), num, error or reason)

    def shutdown(self) -> None:
        """Waits for what is written; the SDK calls it at exit."""
        try:
            self._writer.close()
        except TracegradError as error:
            logger.warning("at exit: %s", error)

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """An export waits for its acknowledgements, so nothing is left to flush."""
        return True
