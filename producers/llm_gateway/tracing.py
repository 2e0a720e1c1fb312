"""One small SERVER span per call, under the caller's traceparent: how a call and an agent's spans meet in a trace.

The SDK is set up here, privately to the gateway (no global provider); without an endpoint nothing is made. A failing
export only warns; spans beyond the bounded queue are dropped by the SDK.
"""

from __future__ import annotations

from typing import Any

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

from tracegrad.schemas.attributes import (
    ATTEMPT_ID,
    ERROR_TYPE,
    GEN_AI_FINISH_REASONS,
    GEN_AI_INPUT_TOKENS,
    GEN_AI_OPERATION_NAME,
    GEN_AI_OUTPUT_TOKENS,
    GEN_AI_REQUEST_MODEL,
    GEN_AI_RESPONSE_ID,
    LLM_GATEWAY_SERVICE,
    ROLLOUT_ID,
    SERVICE_NAME,
)

from .api.answer import Answer
from .identity import Caller

__all__ = ["CallTracer"]


class CallTracer:
    """Emits the spans; made with no exporter it does nothing."""

    def __init__(self, exporter: SpanExporter | None) -> None:
        self._provider: TracerProvider | None = None
        if exporter is not None:
            # shutdown_on_exit would register an atexit hook that outlives the gateway in a test or a host process.
            resource = Resource({SERVICE_NAME: LLM_GATEWAY_SERVICE})
            self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
            self._provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=500))
            self._tracer = self._provider.get_tracer(__name__)

    @classmethod
    def to(cls, otlp_endpoint: str | None, *, token: str | None = None) -> CallTracer:
        """A tracer that exports to an OTLP endpoint (without `/v1/traces`), or to nowhere."""
        if otlp_endpoint is None:
            return cls(None)
        endpoint = otlp_endpoint.rstrip("/") + "/v1/traces"
        headers = {"authorization": f"Bearer {token}"} if token else None
        return cls(OTLPSpanExporter(endpoint=endpoint, headers=headers, timeout=5))

    def emit(
        self, caller: Caller, answer: Answer | None, *, model: str, times_ns: tuple[int, int], error: str | None = None
    ) -> None:
        """Records one call."""
        if self._provider is None:
            return
        context = None
        if caller.trace_id is not None and caller.parent_span_id is not None:
            remote = trace.SpanContext(
                int(caller.trace_id, 16), int(caller.parent_span_id, 16), True, trace.TraceFlags(1)
            )
            context = trace.set_span_in_context(trace.NonRecordingSpan(remote))
        attributes: dict[str, Any] = {GEN_AI_OPERATION_NAME: "chat", GEN_AI_REQUEST_MODEL: model}
        if caller.rollout_id is not None:
            attributes[ROLLOUT_ID] = caller.rollout_id
        if caller.attempt_id is not None:
            attributes[ATTEMPT_ID] = caller.attempt_id
        if answer is not None:
            attributes[GEN_AI_RESPONSE_ID] = answer.call_id
            attributes[GEN_AI_FINISH_REASONS] = [answer.finish_reason]
            attributes[GEN_AI_INPUT_TOKENS] = answer.prompt_tokens
            attributes[GEN_AI_OUTPUT_TOKENS] = answer.sampled_tokens
        if error is not None:
            attributes[ERROR_TYPE] = error
        span = self._tracer.start_span(
            f"chat {model}", context, trace.SpanKind.SERVER, attributes, start_time=times_ns[0]
        )
        if error is not None:
            span.set_status(trace.StatusCode.ERROR)
        span.end(times_ns[1])

    def close(self) -> None:
        """Sends what is queued, within the exporter's time-out."""
        if self._provider is not None:
            self._provider.force_flush(5_000)
            self._provider.shutdown()
