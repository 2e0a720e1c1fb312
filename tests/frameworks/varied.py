"""The rows of `agents/varied.py`: four agents at once and below each other, conversations at once.

They differ in what an instrumentation leaves out: content, the answers' ids (in streams), the HTTP client's spans.
"""

from __future__ import annotations

from typing import Any

from tests.frameworks.entry import OI, OTEL, Entry

_OI_OPENAI = f"{OI}.openai:OpenAIInstrumentor"


def _varied(framework: str, title: str, kind: str, *instrumentors: str, **more: Any) -> Entry:
    """Agents at once and below each other, conversations at once; `variables` may leave content out."""
    given = {"RECORDED_FRAMEWORK": framework} | more.pop("variables", {})
    return Entry(
        name=f"{framework}-varied-{kind}",
        title=f"{title}, agents at once",
        agent="varied",
        environment=framework,
        instrumentors=instrumentors,
        variables=given,
        **more,
    )


_HIDDEN = {"OPENINFERENCE_HIDE_INPUTS": "true", "OPENINFERENCE_HIDE_OUTPUTS": "true"}
VARIED = (
    _varied(
        "langgraph",
        "LangChain, LangGraph",
        "openinference-stream",
        f"{OI}.langchain:LangChainInstrumentor",
        streams=True,
        note="two answers with equal texts are told apart by when their requests were sent.",
    ),
    _varied(
        "langgraph",
        "LangChain, LangGraph",
        "openinference-hidden",
        f"{OI}.langchain:LangChainInstrumentor",
        variables=_HIDDEN,
        note="without content nothing in its spans names an answer; captured, nothing brings calls and spans together.",
    ),
    _varied(
        "langgraph",
        "LangChain, LangGraph",
        "traceloop-hidden-stream",
        f"{OTEL}.langchain:LangchainInstrumentor",
        variables={"TRACELOOP_TRACE_CONTENT": "false"},
        streams=True,
    ),
    _varied(
        "langgraph",
        "LangChain, LangGraph",
        "otel-stream",
        f"{OTEL}.genai.langchain:LangChainInstrumentor",
        streams=True,
    ),
    _varied("openai_agents", "OpenAI Agents", "openinference", f"{OI}.openai_agents:OpenAIAgentsInstrumentor"),
    _varied(
        "openai_agents",
        "OpenAI Agents",
        "traceloop-hidden-stream",
        f"{OTEL}.openai_agents:OpenAIAgentsInstrumentor",
        variables={"TRACELOOP_TRACE_CONTENT": "false"},
        streams=True,
    ),
    _varied("pydantic_ai", "pydantic-ai", "builtin-hidden", variables={"RECORDED_CONTENT": "0"}),
    _varied("agent_framework", "Agent Framework", "builtin-stream", streams=True),
    _varied(
        "strands",
        "Strands",
        "bare",
        streams=True,
        has_http=False,
        note="no request names its span; calls come to the trace whose tools repeat their ids.",
    ),
    _varied("adk", "Google ADK", "bare", has_http=False),
    _varied("adk", "Google ADK", "builtin", f"{OTEL}.aiohttp_client:AioHttpClientInstrumentor"),
    _varied("autogen", "AutoGen", "openinference", f"{OI}.autogen_agentchat:AutogenAgentChatInstrumentor"),
    _varied("autogen", "AutoGen", "builtin"),
    _varied("smolagents", "smolagents", "openinference", f"{OI}.smolagents:SmolagentsInstrumentor"),
    _varied("crewai", "CrewAI", "openinference", f"{OI}.crewai:CrewAIInstrumentor", _OI_OPENAI),
)
