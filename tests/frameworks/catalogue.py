"""What is recorded: each framework with each instrumentation that its users choose.

A row names the agent's program (`agents/`), the environment (`requirements/`), the instrumentors that it loads and how
its planner reaches its expert. The HTTP client's instrumentor is loaded everywhere, because it carries `traceparent`;
a row that shows what is lost without it says so.
"""

from __future__ import annotations

from typing import Any

from tests.frameworks.content import CONTENT
from tests.frameworks.entry import OI, OTEL
from tests.frameworks.entry import Entry as Entry
from tests.frameworks.varied import VARIED

_TRIP = "Plan the money of trip TRIP."
_NO_TOOLS = (
    "the program runs its tools itself, so no execution has a span; without a root span of its own, each call of a "
    "captured conversation has a trace of its own. Both hold for every instrumentation of a bare client."
)


_NO_CONTEXT = (
    "its spans are never the current ones, so each request of a captured agent stands in a trace of its own; calls "
    "come to the framework's trace by the ids that its spans repeat. Answers without such an id are told apart by when "
    "their requests were sent."
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


def _lightning(kind: str, **more: Any) -> Entry:
    return Entry(
        name=f"agent_lightning-{kind}",
        title="Agent Lightning 0.3",
        agent="agent_lightning",
        environment="agent_lightning",
        has_http=False,
        has_agents=False,
        **more,
    )


_GENAI_OPENAI = f"{OTEL}.genai.openai:OpenAIInstrumentor"
_OI_OPENAI = f"{OI}.openai:OpenAIInstrumentor"

_ASK = {"ask_expert": {"request": _TRIP}}


def _of(framework: str, title: str, kind: str, *instrumentors: str, **more: Any) -> Entry:
    return Entry(
        name=f"{framework}-{kind}",
        title=title,
        agent=f"{framework}_agents",
        environment=framework,
        instrumentors=instrumentors,
        **({"delegations": _ASK} | more),
    )


def _bare(framework: str, title: str, agent: str, kind: str, *instrumentors: str, **more: Any) -> Entry:
    return Entry(
        name=f"{framework}-{kind}",
        title=title,
        agent=agent,
        environment=framework,
        instrumentors=instrumentors,
        has_agents=False,
        **more,
    )


def _vercel(kind: str, environment: str, **more: Any) -> Entry:
    return Entry(
        name=f"vercel_ai-{kind}",
        title="Vercel AI (Node)",
        agent="vercel_ai",
        environment=environment,
        is_node=True,
        delegations=_ASK,
        **more,
    )


_LATER = (
    _of("pydantic_ai", "pydantic-ai", "builtin"),
    _of("pydantic_ai", "pydantic-ai", "builtin-v2"),
    _of("pydantic_ai", "pydantic-ai", "builtin-stream", streams=True),
    _of("pydantic_ai", "pydantic-ai", "logfire"),
    _of("autogen", "AutoGen", "builtin", delegations={"transfer_to_expert": {}}),
    _of(
        "autogen",
        "AutoGen",
        "openinference",
        f"{OI}.autogen_agentchat:AutogenAgentChatInstrumentor",
        delegations={"transfer_to_expert": {}},
    ),
    _of(
        "autogen",
        "AutoGen",
        "openinference-stacked",
        f"{OI}.autogen_agentchat:AutogenAgentChatInstrumentor",
        _OI_OPENAI,
        delegations={"transfer_to_expert": {}},
    ),
    _of(
        "smolagents",
        "smolagents",
        "openinference",
        f"{OI}.smolagents:SmolagentsInstrumentor",
        delegations={"expert": {"task": _TRIP}},
    ),
    _of("agent_framework", "Agent Framework", "builtin"),
    _of("agent_framework", "Agent Framework", "builtin-stream", streams=True),
    _of("strands", "Strands", "builtin", streams=True),
    _of(
        "llamaindex",
        "LlamaIndex",
        "openinference",
        f"{OI}.llama_index:LlamaIndexInstrumentor",
        delegations={"handoff": {"to_agent": "expert", "reason": _TRIP}},
    ),
    _of(
        "llamaindex",
        "LlamaIndex",
        "openinference-stream",
        f"{OI}.llama_index:LlamaIndexInstrumentor",
        delegations={"handoff": {"to_agent": "expert", "reason": _TRIP}},
        streams=True,
    ),
    _of(
        "adk",
        "Google ADK",
        "builtin",
        f"{OTEL}.aiohttp_client:AioHttpClientInstrumentor",
        delegations={"transfer_to_agent": {"agent_name": "expert"}},
        note="LiteLLM asks by aiohttp, whose instrumentor is loaded here. Tools return their errors; where the span "
        "does not hold what they returned, nothing tells how they ended.",
    ),
    _of(
        "adk",
        "Google ADK",
        "bare",
        has_http=False,
        delegations={"transfer_to_agent": {"agent_name": "expert"}},
        note="without that instrumentor no request names its span, and no model's span names its answer: a call is "
        "known by the tools that it asked for, or by its numbers of tokens.",
    ),
    _of("semantic_kernel", "Semantic Kernel", "builtin", delegations={"expert": {"messages": _TRIP}}),
    _of("agentscope", "AgentScope", "builtin", streams=True),
    _of("ag2", "AG2", "builtin"),
    _of("ag2", "AG2", "builtin-stream", streams=True),
    _of(
        "haystack",
        "Haystack",
        "openinference",
        f"{OI}.haystack:HaystackInstrumentor",
        note="agents have no names and tools no spans. OpenLLMetry 0.62 does not load with Haystack 3.",
    ),
    _of(
        "dspy",
        "DSPy",
        "openinference",
        f"{OI}.dspy:DSPyInstrumentor",
        has_agents=False,
        delegations={},
        asks_in_text=True,
    ),
    _bare(
        "litellm",
        "LiteLLM",
        "litellm_chat",
        "builtin",
        note="its spans begin when the answer is there, each in a trace of its own where none is open.",
    ),
    _bare("litellm", "LiteLLM", "litellm_chat", "openinference", f"{OI}.litellm:LiteLLMInstrumentor"),
    _bare(
        "anthropic",
        "anthropic, no framework",
        "anthropic_messages",
        "openinference",
        f"{OI}.anthropic:AnthropicInstrumentor",
    ),
    _bare(
        "anthropic",
        "anthropic, no framework",
        "anthropic_messages",
        "traceloop",
        f"{OTEL}.anthropic:AnthropicInstrumentor",
    ),
    _bare(
        "anthropic",
        "anthropic, no framework",
        "anthropic_messages",
        "traceloop-stream",
        f"{OTEL}.anthropic:AnthropicInstrumentor",
        streams=True,
    ),
    _of("agentops", "AgentOps", "builtin", f"{OTEL}.httpx:HTTPXClientInstrumentor", has_http=False),
    _vercel("builtin", "vercel_ai5"),
    _vercel("builtin-stream", "vercel_ai5", streams=True),
    _vercel("builtin-v6", "vercel_ai6"),
    _vercel("builtin-v6-stream", "vercel_ai6", streams=True),
    _vercel("otel7", "vercel_ai7"),
    _vercel("otel7-stream", "vercel_ai7", streams=True),
    _openai("mlflow", environment="mlflow", variables={"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}),
    _openai("langfuse", environment="langfuse"),
    _of(
        "crewai",
        "CrewAI",
        "openinference",
        f"{OI}.crewai:CrewAIInstrumentor",
        _OI_OPENAI,
        delegations={"delegate_work_to_coworker": {"task": _TRIP, "context": _TRIP, "coworker": "expert"}},
    ),
    _of(
        "crewai",
        "CrewAI",
        "traceloop",
        f"{OTEL}.crewai:CrewAIInstrumentor",
        delegations={"delegate_work_to_coworker": {"task": _TRIP, "context": _TRIP, "coworker": "expert"}},
        note="tools have no spans.",
    ),
)
CATALOGUE = (
    _openai("otel", _GENAI_OPENAI),
    _openai("otel-stream", _GENAI_OPENAI, streams=True),
    _openai("openinference", _OI_OPENAI),
    _openai(
        "events",
        f"{OTEL}.openai_v2:OpenAIInstrumentor",
        environment="openai_events",
        variables={"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "true"},
    ),
    _openai("traceloop", f"{OTEL}.openai:OpenAIInstrumentor"),
    _langgraph("openinference", f"{OI}.langchain:LangChainInstrumentor", note=_NO_CONTEXT),
    _langgraph("openinference-stream", f"{OI}.langchain:LangChainInstrumentor", streams=True),
    _langgraph("traceloop", f"{OTEL}.langchain:LangchainInstrumentor"),
    _langgraph("otel", f"{OTEL}.genai.langchain:LangChainInstrumentor"),
    _langgraph("langsmith", note=_NO_CONTEXT),
    _agents("openinference", f"{OI}.openai_agents:OpenAIAgentsInstrumentor"),
    _agents("openinference-stream", f"{OI}.openai_agents:OpenAIAgentsInstrumentor", streams=True),
    _agents("openinference-stacked", f"{OI}.openai_agents:OpenAIAgentsInstrumentor", _OI_OPENAI),
    _agents("traceloop", f"{OTEL}.openai_agents:OpenAIAgentsInstrumentor"),
    _agents("otel", f"{OTEL}.genai.openai_agents:OpenAIAgentsInstrumentor", _GENAI_OPENAI),
    Entry(
        name="mcp-builtin",
        title="OpenAI Agents, tools by MCP",
        agent="mcp_agents",
        environment="openai_agents",
        instrumentors=(f"{OI}.openai_agents:OpenAIAgentsInstrumentor",),
        delegations={"transfer_to_expert": {}},
        note="of a tool that failed the agent is told a text that may mean anything; the server's own span says so, "
        "where that process exports too.",
    ),
    _lightning("agentops", note="an operation is no tool, for nothing says whether it is one."),
    _lightning("otel", note="its tracer makes no span of a call."),
    *_LATER,
    *VARIED,
    *CONTENT,
)
