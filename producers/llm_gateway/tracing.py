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

from .answer import Answer
from .identity import Caller

__all__ = ["SERVICE_NAME", "CallTracer"]

SERVICE_NAME = "tracegrad-llm-gateway"
"""Streams leave spans of this service out: calls come from `llm_calls`."""


class CallTracer:
    """Emits the spans; made with no exporter it does nothing."""

    def __init__(self, exporter: SpanExporter | None) -> None:
        self._provider: TracerProvider | None = None
        if exporter is not None:
            # shutdown_on_exit would register an atexit hook that outlives the gateway in a test or a host process.
            self._provider = TracerProvider(resource=Resource({"service.name": SERVICE_NAME}), shutdown_on_exit=False)
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
        attributes: dict[str, Any] = {"gen_ai.operation.name": "chat", "gen_ai.request.model": model}
        if caller.rollout_id is not None:
            attributes["rollout.id"] = caller.rollout_id
        if caller.attempt_id is not None:
            attributes["attempt.id"] = caller.attempt_id
        if answer is not None:
            attributes["gen_ai.response.id"] = answer.call_id
            attributes["gen_ai.response.finish_reasons"] = [answer.finish_reason]
            attributes["gen_ai.usage.input_tokens"] = answer.prompt_tokens
            attributes["gen_ai.usage.output_tokens"] = answer.sampled_tokens
        if error is not None:
            attributes["error.type"] = error
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
