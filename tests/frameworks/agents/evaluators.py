"""What real evaluators export, as files of tests/producers/otlp_gateway/recorded: `python evaluators.py NAME FOLDER`.

pydantic_evals (pydantic-evals 2.62.0), openinference (openinference-instrumentation 0.1.72), openllmetry (traceloop-sdk
0.62.4), each with opentelemetry-sdk and opentelemetry-exporter-otlp 1.45.2 in an environment of its own.
"""

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path

from opentelemetry import _logs, baggage, context, trace
from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult

TRACER = trace.get_tracer("evaluators")


class Kept(list):
    """An exporter that keeps what it is handed."""

    def export(self, batch):
        """Takes a batch."""
        self.extend(batch)
        return SpanExportResult.SUCCESS

    def shutdown(self):
        """Nothing is open."""

    def force_flush(self, timeout_millis=0):
        """Nothing waits."""
        return True


def pydantic_evals():
    """Four evaluators of one answer: a bool, a label, a number and one that fails; the conversation is in baggage."""
    from pydantic_evals.evaluators import EvaluationReason, Evaluator
    from pydantic_evals.online import evaluate, wait_for_evaluations

    @dataclass
    class good(Evaluator):
        def evaluate(self, ctx):
            return EvaluationReason(value=True, reason="short")

    @dataclass
    class tone(Evaluator):
        def evaluate(self, ctx):
            return "friendly"

    @dataclass
    class stars(Evaluator):
        def evaluate(self, ctx):
            return 4

    @dataclass
    class broken(Evaluator):
        def evaluate(self, ctx):
            raise TimeoutError("late")

    @evaluate(good(), tone(), stars(), broken())
    async def agent(question):
        return "hello"

    async def main():
        context.attach(baggage.set_baggage("gen_ai.conversation.id", "room 7"))
        with TRACER.start_as_current_span("root"):
            await agent("hi")
        await wait_for_evaluations()

    asyncio.run(main())


def openinference():
    """A judge's span that links to what it judged, and one on a session."""
    from openinference.instrumentation import get_annotation_attributes, get_evaluation_attributes

    judged = trace.SpanContext(int("cd" * 16, 16), 7, True, trace.TraceFlags(1))
    by_model = {"name": "good", "score": 0.5, "explanation": "so", "annotator_kind": "LLM", "identifier": "judge-2"}
    with TRACER.start_as_current_span("judge", links=[trace.Link(judged)]) as span:
        by_person = {"name": "good", "label": "pass", "annotator_kind": "HUMAN"}
        span.set_attributes(get_annotation_attributes(annotations=[by_model | {"metadata": {"rubric": 2}}, by_person]))
        span.set_attributes(get_evaluation_attributes(evaluations=[{"name": "stars", "score": 4}], scope="trace"))
    with TRACER.start_as_current_span("judge") as span:
        span.set_attribute("session.id", "room 7")
        of_session = [{"name": "stars", "score": 2}]
        span.set_attributes(get_annotation_attributes(annotations=of_session, scope="session"))


def openllmetry():
    """Two guards of one answer, of which one passes, and one that fails by an error."""
    from traceloop.sdk.guardrail import guardrail

    def good(text):
        return True

    def polite(text):
        return False

    def broken(text):
        raise TimeoutError("late")

    guards = guardrail.Guardrails.__new__(guardrail.Guardrails)
    for guard in (good, polite, broken):
        asyncio.run(guards._run_single_guard(guard, "hello", 0, TRACER))


if __name__ == "__main__":
    name, folder = sys.argv[1], Path(sys.argv[2])
    spans, logs = Kept(), Kept()
    tracing, logging = TracerProvider(), LoggerProvider()
    tracing.add_span_processor(SimpleSpanProcessor(spans))
    logging.add_log_record_processor(SimpleLogRecordProcessor(logs))
    trace.set_tracer_provider(tracing)
    _logs.set_logger_provider(logging)
    {"pydantic_evals": pydantic_evals, "openinference": openinference, "openllmetry": openllmetry}[name]()
    if logs:
        (folder / f"{name}.logs.otlp").write_bytes(encode_logs(logs).SerializeToString())
    else:
        (folder / f"{name}.traces.otlp").write_bytes(encode_spans(spans).SerializeToString())
