"""What the absence of an attribute says, by the instrumentation that made the span.

Counted on recordings (`tests/frameworks`), or by source. An instrumentation that is not here tells its tools never, or
nobody knows.
"""

from __future__ import annotations

from enum import StrEnum


class ToolTelling(StrEnum):
    """When an instrumentation tells the tools of a call."""

    ALWAYS = "always"
    """Wherever it tells the prompt: without definitions the call had none."""
    SWITCH = "switch"
    """In some releases, or where a switch of its own is on."""
    PART = "part"
    """Some of them: what it tells is not believed. smolagents leaves the agents out that the model may ask, AutoGen
    what is no handoff."""
    NEVER = "never"


_SCOPES = {
    ToolTelling.ALWAYS: "agentscope ai gcp.vertex.agent gen_ai langsmith litellm openai pydantic-ai oi.anthropic "
    "oi.langchain oi.litellm oi.llama_index oi.openai otel.anthropic otel.langchain otel.openai.v1",
    ToolTelling.SWITCH: "agent_framework otel.genai.langchain otel.genai.openai",
    ToolTelling.PART: "oi.autogen_agentchat oi.smolagents",
    ToolTelling.NEVER: "oi.dspy oi.haystack oi.openai_agents otel.ag2 otel.openai_agents otel.openai_v2 "
    "semantic_kernel.utils.telemetry.model_diagnostics.decorators strands.telemetry.tracer",
}


def _full(scope: str) -> str:
    start, _, rest = scope.partition(".")
    named = {"oi": "openinference.instrumentation.", "otel": "opentelemetry.instrumentation."}
    return named[start] + rest if start in named else scope


TOOL_TELLING = {_full(scope): telling for telling, scopes in _SCOPES.items() for scope in scopes.split()}
"""By the scope's name."""
REWRITERS = frozenset(map(_full, ("agentscope", "oi.haystack", "otel.ag2")))
"""Their prompts are not those that were sent: AgentScope tells an answer and its tools' results as one message, and not
its reminders; AG2 leaves the system's message out, OpenInference of Haystack tools' results."""
FAILURE_REWRITERS = frozenset({"gen_ai", "pydantic-ai"})
"""They send `{"error": ..}` for a tool that failed, and tell its bare text: AI SDK 7, pydantic-ai 2."""
