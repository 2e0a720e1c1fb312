"""A request is cut into records that Kafka takes."""

from __future__ import annotations

import random

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.producers.otlp_gateway.bodies import OTHER_TRACE, TRACE, request_of, span_ids
from tracegrad.producers.otlp_gateway.split import split
from tracegrad.schemas.otlp.signal import TRACES


def test_split_keeps_every_span_within_the_target() -> None:
    """Random requests over several resources: each span once, pieces within the target unless one span exceeds it."""
    random_ = random.Random(0)
    for _ in range(50):
        request = ExportTraceServiceRequest()
        expected = []
        for number in range(random_.randrange(1, 40)):
            trace = random_.choice([TRACE, OTHER_TRACE])
            expected.append((trace.hex(), number))
            part = request_of([(trace, number)], payload="p" * random_.randrange(300))
            request.resource_spans.extend(part.resource_spans)
        pieces, _ = split(TRACES, request, target_bytes=600, item_limit_bytes=10_000)
        assert span_ids(piece.value() for piece in pieces) == sorted(expected)
        assert all(len(piece.value()) <= 600 or len(piece.items) == 1 for piece in pieces)
        assert all(len(piece.value()) <= piece.num_bytes for piece in pieces)
        assert {piece.trace_id for piece in pieces} == {trace for trace, _ in expected}
