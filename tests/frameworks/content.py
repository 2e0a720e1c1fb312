"""The rows whose instrumentation tells no content, or no tools, unless a switch of its own is on: with that switch."""

from __future__ import annotations

from typing import Any

from tests.frameworks.entry import OI, OTEL, Entry

_TRIP = "Plan the money of trip TRIP."
_ASK = {"ask_expert": {"request": _TRIP}}
_TRANSFER = {"transfer_to_agent": {"agent_name": "expert"}}
_GENAI_OPENAI = f"{OTEL}.genai.openai:OpenAIInstrumentor"
_AIOHTTP = f"{OTEL}.aiohttp_client:AioHttpClientInstrumentor"
_CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_NEWEST = {"OTEL_SEMCONV_STABILITY_OPT_IN": "gen_ai_latest_experimental"}
_SPANS = _NEWEST | {_CAPTURE: "SPAN_ONLY"}
_EVENTS = _NEWEST | {_CAPTURE: "EVENT_ONLY", "RECORDED_LOGS": "1"}


def _of(framework: str, title: str, kind: str, *instrumentors: str, **more: Any) -> Entry:
    return Entry(
        name=f"{framework}-{kind}",
        title=title,
        **{
            "agent": f"{framework.removesuffix('_agents')}_agents",
            "environment": framework,
            "instrumentors": instrumentors,
            "delegations": _ASK,
        }
        | more,
    )


def _openai(kind: str, **more: Any) -> Entry:
    agent = {"agent": "openai_chat", "has_agents": False, "delegations": {}}
    return _of("openai", "openai, no framework", kind, _GENAI_OPENAI, **agent | more)


def _varied(framework: str, title: str, kind: str, *instrumentors: str, **more: Any) -> Entry:
    variables = {"RECORDED_FRAMEWORK": framework, **more.pop("variables", {})}
    agent = {"agent": "varied", "delegations": {}, "variables": variables}
    return _of(framework, f"{title}, agents at once", f"varied-{kind}", *instrumentors, **agent | more)


_STRANDS = {"OTEL_SEMCONV_STABILITY_OPT_IN": "gen_ai_latest_experimental,gen_ai_tool_definitions"}
_STRANDS_SPANS = {
    "OTEL_SEMCONV_STABILITY_OPT_IN": f"{_STRANDS['OTEL_SEMCONV_STABILITY_OPT_IN']},gen_ai_span_attributes_only"
}
_FRAMEWORK = {"ENABLE_SENSITIVE_DATA": "true"}
_KERNEL = {"SEMANTICKERNEL_EXPERIMENTAL_GENAI_ENABLE_OTEL_DIAGNOSTICS_SENSITIVE": "true", "RECORDED_LOGS": "1"}
_LANGCHAIN = f"{OTEL}.genai.langchain:LangChainInstrumentor"
_AGENTS_TELLERS = (f"{OTEL}.genai.openai_agents:OpenAIAgentsInstrumentor", _GENAI_OPENAI)
_TO_EXPERT: dict[str, Any] = {"delegations": {"transfer_to_expert": {}}}
CONTENT = (
    _openai("otel-content", variables=_SPANS),
    _openai("otel-content-stream", variables=_SPANS, streams=True),
    _openai("otel-content-events", variables=_EVENTS),
    _of("langgraph", "LangChain, LangGraph", "otel-content", _LANGCHAIN, variables=_SPANS),
    _varied("langgraph", "LangChain, LangGraph", "otel-content-stream", _LANGCHAIN, variables=_SPANS, streams=True),
    _of("openai_agents", "OpenAI Agents", "otel-content", *_AGENTS_TELLERS, **_TO_EXPERT, variables=_SPANS),
    _of(
        "openai_agents",
        "OpenAI Agents",
        "traceloop-content-responses",
        f"{OTEL}.openai_agents:OpenAIAgentsInstrumentor",
        **_TO_EXPERT,
    ),
    _of("openai_agents", "OpenAI Agents", "otel-content-responses", *_AGENTS_TELLERS, **_TO_EXPERT, variables=_SPANS),
    _of(
        "openai_agents",
        "OpenAI Agents",
        "openinference-responses",
        f"{OI}.openai_agents:OpenAIAgentsInstrumentor",
        **_TO_EXPERT,
    ),
    _of("adk", "Google ADK", "builtin-content", _AIOHTTP, delegations=_TRANSFER, variables=_SPANS),
    _of("adk", "Google ADK", "builtin-content-events", _AIOHTTP, delegations=_TRANSFER, variables=_EVENTS),
    _varied("adk", "Google ADK", "builtin-content", _AIOHTTP, variables=_SPANS),
    _of(
        "semantic_kernel",
        "Semantic Kernel",
        "builtin-content",
        delegations={"expert": {"messages": _TRIP}},
        variables=_KERNEL,
    ),
    _of("agent_framework", "Agent Framework", "builtin-content", variables=_FRAMEWORK),
    _of("agent_framework", "Agent Framework", "builtin-content-responses", variables=_FRAMEWORK),
    _of("agent_framework", "Agent Framework", "builtin-content-stream", variables=_FRAMEWORK, streams=True),
    _varied("agent_framework", "Agent Framework", "builtin-content-stream", variables=_FRAMEWORK, streams=True),
    _of("strands", "Strands", "builtin-content", variables=_STRANDS, streams=True),
    _of("strands", "Strands", "builtin-content-attributes", variables=_STRANDS_SPANS, streams=True),
    _varied("strands", "Strands", "bare-content", variables=_STRANDS, streams=True, has_http=False),
    _varied("pydantic_ai", "pydantic-ai", "builtin-content"),
    _varied(
        "langgraph",
        "LangChain, LangGraph",
        "traceloop-content-stream",
        f"{OTEL}.langchain:LangchainInstrumentor",
        streams=True,
    ),
)
