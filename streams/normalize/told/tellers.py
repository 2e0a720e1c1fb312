"""What the absence of an attribute says, by the instrumentation that made the span.

Counted on recordings (`tests/frameworks`), or by source.
"""

from __future__ import annotations


def _full(scope: str) -> str:
    return scope.replace("oi.", "openinference.instrumentation.").replace("otel.", "opentelemetry.instrumentation.")


_ALWAYS = (
    "agentscope ai gcp.vertex.agent gen_ai langsmith litellm openai pydantic-ai oi.anthropic oi.langchain oi.litellm "
    "oi.llama_index oi.openai otel.anthropic otel.langchain otel.openai.v1"
)
TOOL_TELLERS = frozenset(map(_full, _ALWAYS.split()))
"""They tell the tools of a call wherever they tell its prompt: without definitions it had none. Others tell them never
(DSPy, Haystack, AG2), in some releases or for some calls (OpenAI Agents), on the span of the agent (Agent Framework,
Semantic Kernel, Strands) or where a switch is on (OpenTelemetry's own), or nobody knows."""
AGENT_TELLERS = frozenset({"semantic_kernel.utils.telemetry.agent_diagnostics.decorators", "strands.telemetry.tracer"})
"""What they tell of tools on the span of the agent is what its calls send. Agent Framework's is not, by OpenAI's
Responses, for which it closes schemas (`additionalProperties`)."""
PART_TELLERS = frozenset(map(_full, ("oi.autogen_agentchat", "oi.smolagents")))
"""They tell some of the tools, which are not believed: smolagents leaves the agents out that the model may ask, AutoGen
what is no handoff."""
REWRITERS = frozenset(map(_full, ("agentscope", "oi.haystack", "otel.ag2")))
"""Their prompts are not those that were sent: AgentScope tells an answer and its tools' results as one message, and not
its reminders; AG2 leaves the system's message out, OpenInference of Haystack tools' results."""
ROW_JOINERS = frozenset({_full("oi.smolagents")})
"""Messages of one role in a row are sent as one, a line apart, and told as they were (smolagents 1.26, `models.py`,
`get_clean_message_list`)."""
FAILURE_REWRITERS = frozenset({"gen_ai", "pydantic-ai"})
"""They send `{"error": ..}` for a tool that failed, and tell its bare text: AI SDK 7, pydantic-ai 2."""
