"""What is recorded: each framework with each instrumentation that its users choose.

A row names the agent's program (`agents/`), the environment (`requirements/`), the instrumentors that it loads and how
its planner reaches its expert. The HTTP client's instrumentor is loaded everywhere, because it carries `traceparent`;
a row that shows what is lost without it says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

__all__ = ["CATALOGUE", "Entry"]

_OI = "openinference.instrumentation"
_OTEL = "opentelemetry.instrumentation"
_HTTPX = f"{_OTEL}.httpx:HTTPXClientInstrumentor"
_HTTPX2 = f"{_OTEL}.httpx:HTTPX2ClientInstrumentor"
_BOTH = (_HTTPX, _HTTPX2)
_TRIP = "Plan the money of trip TRIP."


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One recording to be made, in both ways."""

    name: str
    """`<framework>-<instrumentation>[-stream]`."""
    title: str
    """The framework in words."""
    agent: str
    """Its program under `agents/`."""
    environment: str
    """Its list under `requirements/`."""
    instrumentors: tuple[str, ...] = ()
    """module:class, loaded in this order, before those of the HTTP clients."""
    has_http: bool = True
    """Whether the HTTP clients' instrumentors are loaded."""
    has_agents: bool = True
    """False: the program knows no agents, so no call has one."""
    delegations: Mapping[str, Mapping[str, Any]] = {}
    """The tools by which the planner reaches the expert, with what the model gives them."""
    streams: bool = False
    variables: Mapping[str, str] = {}
    note: str = ""
    """What is not seen in it, and why."""

    @property
    def instrumentation(self) -> str:
        """The part of the name behind the framework's."""
        return self.name.partition("-")[2].removesuffix("-stream")

    @property
    def all_instrumentors(self) -> tuple[str, ...]:
        """In the order in which they are loaded."""
        return (*self.instrumentors, *(_BOTH if self.has_http else ()))


_NO_TOOLS = (
    "the program runs its tools itself, so no execution has a span; without a root span of its own, each call of a "
    "captured conversation has a trace of its own. Both hold for every instrumentation of a bare client."
)


def _openai(kind: str, *instrumentors: str, environment: str = "openai", **more: Any) -> Entry:
    return Entry(
        name=f"openai-{kind}",
        title="openai, no framework",
        agent="openai_chat",
        environment=environment,
        instrumentors=instrumentors,
        has_agents=False,
        note=_NO_TOOLS if kind == "otel" else "",
        **more,
    )


def _langgraph(kind: str, *instrumentors: str, **more: Any) -> Entry:
    return Entry(
        name=f"langgraph-{kind}",
        title="LangChain, LangGraph",
        agent="langgraph_agents",
        environment="langgraph",
        instrumentors=instrumentors,
        delegations={"ask_expert": {"request": _TRIP}},
        **more,
    )


def _agents(kind: str, *instrumentors: str, **more: Any) -> Entry:
    return Entry(
        name=f"openai_agents-{kind}",
        title="OpenAI Agents",
        agent="openai_agents",
        environment="openai_agents",
        instrumentors=instrumentors,
        delegations={"transfer_to_expert": {}},
        **more,
    )


_GENAI_OPENAI = f"{_OTEL}.genai.openai:OpenAIInstrumentor"
_OI_OPENAI = f"{_OI}.openai:OpenAIInstrumentor"

CATALOGUE = (
    _openai("otel", _GENAI_OPENAI),
    _openai("otel-stream", _GENAI_OPENAI, streams=True),
    _openai("openinference", _OI_OPENAI),
    _openai("traceloop", f"{_OTEL}.openai:OpenAIInstrumentor"),
    _langgraph("openinference", f"{_OI}.langchain:LangChainInstrumentor"),
    _langgraph("openinference-stream", f"{_OI}.langchain:LangChainInstrumentor", streams=True),
    _langgraph("traceloop", f"{_OTEL}.langchain:LangchainInstrumentor"),
    _langgraph("otel", f"{_OTEL}.genai.langchain:LangChainInstrumentor"),
    _langgraph("langsmith"),
    _agents("openinference", f"{_OI}.openai_agents:OpenAIAgentsInstrumentor"),
    _agents("openinference-stream", f"{_OI}.openai_agents:OpenAIAgentsInstrumentor", streams=True),
    _agents("openinference-stacked", f"{_OI}.openai_agents:OpenAIAgentsInstrumentor", _OI_OPENAI),
    _agents("traceloop", f"{_OTEL}.openai_agents:OpenAIAgentsInstrumentor"),
    _agents("otel", f"{_OTEL}.genai.openai_agents:OpenAIAgentsInstrumentor", _GENAI_OPENAI),
)
