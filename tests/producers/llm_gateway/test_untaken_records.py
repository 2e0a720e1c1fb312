"""Records that Kafka does not take: the agent gets an error, and the gateway counts why."""

from __future__ import annotations

from tests.producers.llm_gateway.harness import ASK, begun
from tracegrad.producers.llm_gateway.config import Timings
from tracegrad.schemas.errors import RecordError
from tracegrad.schemas.metrics import CALLS_FAILED, CALLS_TOO_LARGE, CALLS_UNACKNOWLEDGED


async def test_a_record_that_kafka_does_not_take_is_counted_by_why() -> None:
    """Not acknowledged in time, and larger than any record may be; the agent gets an error either way."""
    async with begun(timings=Timings(append_timeout_s=0.01)) as r:
        r.log.hold()
        assert (await r.chat_raw(ASK))[0] == 503
        assert r.gateway.parts.metrics.value(CALLS_UNACKNOWLEDGED) == 1
        r.log.release()
        r.log.fail_next(RecordError("expected fewer bytes, got more", reason="too_large"))
        assert (await r.chat_raw(ASK))[0] >= 400
        assert r.gateway.parts.metrics.value(CALLS_TOO_LARGE) == 1
        assert r.gateway.parts.metrics.value(CALLS_FAILED) == 2
