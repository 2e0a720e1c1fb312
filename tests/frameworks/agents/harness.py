"""What the recorded agents share: the SDK as `opentelemetry-instrument` sets it up, the tools, and what they did.

Runs in the framework's own environment and imports nothing of ours. In: the variables that a runner or a person gives
an agent, and RECORDED_*. Out: spans to the gateway, and a line of JSON in RECORDED_TRUTH for each execution of a tool,
written by the tool itself.
"""

import importlib
import inspect
import json
import os

TRIPS = [int(number) for number in os.environ["RECORDED_TRIPS"].split(",")]
"""One conversation each, one after the other."""
PROMPTS = [f"Plan trip {number}." for number in TRIPS]
STREAMS = os.environ.get("RECORDED_STREAMS") == "1"
INSTRUMENTATION = os.environ["RECORDED_INSTRUMENTATION"]
PLANNER = "You are the agent planner. Use the tools, then ask the expert."
EXPERT = "You are the agent expert. Convert the money."


def start(provider=None):
    """Sets the SDK up, loads the instrumentors that RECORDED_INSTRUMENTORS names, enters the runner's context.

    The provider shuts itself down at exit, by which all spans are sent.
    """
    from opentelemetry import context, propagate, trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    if provider is None:
        provider = TracerProvider()
        trace.set_tracer_provider(provider)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    for name in filter(None, os.environ.get("RECORDED_INSTRUMENTORS", "").split(",")):
        module, _, cls = name.partition(":")
        getattr(importlib.import_module(module), cls)().instrument()
    if os.environ.get("RECORDED_LOGS") == "1":
        logs()
    if "TRACEPARENT" in os.environ:
        carrier = {name.lower(): os.environ[name] for name in ("TRACEPARENT", "BAGGAGE") if name in os.environ}
        context.attach(propagate.extract(carrier))
    return provider


def logs():
    """Sends log events too."""
    from opentelemetry._logs import set_logger_provider
    from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk._logs.export import BatchLogRecordProcessor

    provider = LoggerProvider()
    provider.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter()))
    set_logger_provider(provider)


def executed(tool, failed=False, **arguments):
    """Says that a tool ran, whatever the spans say."""
    with open(os.environ["RECORDED_TRUTH"], "a") as file:
        file.write(json.dumps({"tool": tool, "arguments": arguments, "failed": failed}) + "\n")


def get_weather(city: str) -> str:
    """The weather in a city.

    Args:
        city: where
    """
    executed("get_weather", city=city)
    return f"It is sunny in {city}."


def get_time(city: str) -> str:
    """The local time in a city.

    Args:
        city: where
    """
    executed("get_time", failed=True, city=city)
    raise ValueError(f"no clock in {city}")


def convert(amount: int) -> str:
    """Converts an amount of money.

    Args:
        amount: how much
    """
    executed("convert", amount=amount)
    return f"{amount} crowns are {amount * 2} francs"


def schema(tool):
    """A tool as chat completions declare it."""
    kinds = {"amount": "integer", "city": "string", "request": "string"}
    arguments = {name: {"type": kinds[name]} for name in inspect.signature(tool).parameters}
    parameters = {"type": "object", "properties": arguments, "required": list(arguments)}
    return {"name": tool.__name__, "description": tool.__doc__.splitlines()[0], "parameters": parameters}
