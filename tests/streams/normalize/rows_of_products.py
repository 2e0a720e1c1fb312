"""Spans of observability platforms, frameworks and servers: name, attributes, and what they mean."""

from __future__ import annotations

from typing import Any

from tests.streams.normalize.rows_of_conventions import (
    ANSWER,
    ASKED,
    CALL,
    FAILED,
    ID,
    LC,
    MESSAGE,
    OTHER,
    RAN,
    TOOL_MESSAGE,
    Row,
    agent,
    genai,
    keyed,
)
from tracegrad.schemas.records.facts import ToolStatus, digest_of

OF_F = {"tool_name": "f", "tool_call_id": CALL}


def smith(kind: str, operation: str | None = None, **fields: Any) -> dict[str, Any]:
    """Attributes by LangSmith."""
    return {"langsmith.span.kind": kind} | (genai(operation, **fields) if operation else {})


def fuse(kind: str, **fields: Any) -> dict[str, Any]:
    """Attributes by Langfuse."""
    return keyed("langfuse.observation.", type=kind, **fields)


def ops(kind: str, **fields: Any) -> dict[str, Any]:
    """Attributes by AgentOps."""
    return keyed(agentops__span__kind=kind, **fields)


def flow(kind: str, **fields: Any) -> dict[str, Any]:
    """Attributes by MLflow, which writes each as JSON."""
    return keyed("mlflow.", spanType=f'"{kind}"', **fields)


def vercel(operation: str, **fields: Any) -> dict[str, Any]:
    """Attributes by Vercel's SDK."""
    return keyed("ai.", operationId=operation, **fields)


PLATFORMS: dict[str, Row] = {
    "langsmith llm": (
        "ChatOpenAI",
        smith(
            "llm",
            "chat",
            completion={"generations": [[{"message": {"kwargs": {**MESSAGE, "response_metadata": {"id": ID}}}}]]},
        ),
        {**ASKED, "response_id": ID},
    ),
    "langsmith prompt": ("ChatPromptTemplate", smith("prompt", "chat"), OTHER),
    "langsmith agent": (
        "solver",
        smith("chain", "chain") | {f"langsmith.metadata.{LC}": "solver"},
        agent("solver"),
    ),
    "langsmith chain": ("model", smith("chain") | {f"langsmith.metadata.{LC}": "x"}, OTHER),
    "langsmith tool": (
        "f",
        smith("tool", "execute_tool", tool__name="f", completion={"output": TOOL_MESSAGE}),
        {**FAILED, **OF_F},
    ),
    "langfuse generation": ("llm", fuse("generation", output=MESSAGE), {**ASKED, "response_id": None}),
    "langfuse text": ("llm", fuse("generation", output="42"), {"output_digest": digest_of("42")}),
    "langfuse agent": ("solver", fuse("agent"), agent("solver")),
    "langfuse agent of LangChain": ("solver", fuse("chain", metadata__lc_agent_name='"solver"'), agent("solver")),
    "langfuse step in an agent": (
        "agent_router",
        fuse("agent", metadata__lc_agent_name='"solver"'),
        {**OTHER, "agent_hints": {LC: "solver"}},
    ),
    "langfuse node of LangGraph": (
        "agent",
        fuse("agent", output={"messages": [{"type": "ai", "name": "solver"}]}),
        agent("solver"),
    ),
    "langfuse tool": ("f", fuse("tool", level="ERROR"), {**FAILED, "tool_name": "f"}),
    "langfuse span": ("chat m", fuse("span") | genai("chat"), {"kind": "llm", "dialect": "langfuse+otel_genai"}),
    "mlflow llm": ("Completions", flow("CHAT_MODEL", spanOutputs=ANSWER), {**ASKED, "response_id": ID}),
    "mlflow tool": ("f", flow("TOOL", spanOutputs='"Error: it broke"'), {**FAILED, "tool_name": "f"}),
    "mlflow agent": ("solver", flow("AGENT"), agent("solver")),
    "mlflow class": ("Agent.run_sync", flow("AGENT"), agent(None)),
    "agentops request": (
        "tool_call.f",
        ops("tool", tool__name="f", tool__call__id=CALL),
        {**OTHER, "tool_call_id": None},
    ),
    "agentops tool": (
        "f.tool",
        ops("tool", operation__name="f", agentops__tool__output='"42"'),
        {**RAN, "tool_name": "f"},
    ),
    "agentops agent": ("solver.agent", ops("agent", operation__name="solver"), agent("solver")),
    "agentops session": ("x.session", ops("session"), OTHER),
    "agentops llm": (
        "openai.chat.completion",
        ops("llm", gen_ai__request__type="chat", gen_ai__response__id=ID)
        | keyed("gen_ai.completion.0.", content="42", tool_calls__0__id=CALL),
        {**ASKED, "response_id": ID, "dialect": "agentops+otel_genai"},
    ),
}
OTHERS: dict[str, Row] = {
    "vercel run": (
        "ai.generateText",
        vercel("ai.generateText", telemetry__functionId="solver"),
        agent("solver"),
    ),
    "vercel call": (
        "ai.generateText.doGenerate",
        vercel("ai.generateText.doGenerate")
        | keyed("ai.response.", id=ID, text="42", toolCalls=[{"toolCallId": CALL, "toolName": "f"}]),
        {**ASKED, "response_id": ID},
    ),
    "vercel tool": (
        "ai.toolCall",
        vercel("ai.toolCall") | keyed("ai.toolCall.", name="f", id=CALL, result='{"error": "no such file"}'),
        {**FAILED, **OF_F},
    ),
    "pydantic-ai 1": (
        "running tool",
        keyed("gen_ai.tool.", name="f", call__id=CALL) | {"tool_arguments": "{}", "tool_response": "42"},
        {**RAN, **OF_F},
    ),
    "pydantic-ai 1 agent": ("agent run", {"agent_name": "solver"}, agent("solver")),
    "ADK 1 agent": ("agent_run [solver]", {}, agent("solver")),
    "ADK merged tools": (
        "execute_tool (merged)",
        genai("execute_tool", tool__name="(merged tools)", tool__call__id="e1"),
        {**OTHER, "tool_call_id": None},
    ),
    "ADK tool": (
        "execute_tool f",
        genai("execute_tool", tool__name="f", tool__call__id=CALL)
        | {"gcp.vertex.agent.tool_response": '{"status": "error", "error_message": "no"}'},
        {**FAILED, "tool_call_id": CALL, "dialect": "adk+otel_genai"},
    ),
    "claude tool": (
        "claude_code.tool",
        {"span.type": "tool", "tool_name": "Bash", "tool_use_id": CALL},
        {**RAN, "tool_name": "Bash", "tool_call_id": CALL},
    ),
    "claude tool's part": ("claude_code.tool.execution", {"span.type": "tool.execution"}, OTHER),
    "litellm raw": ("raw_gen_ai_request", {"llm.hosted_vllm.id": ID}, {"kind": "llm", "response_id": ID}),
    "mcp call": (
        "tools/call f",
        {"mcp.method.name": "tools/call", "gen_ai.tool.name": "f"},
        {"kind": "tool", "tool_status": ToolStatus.UNKNOWN, "tool_name": "f"},
    ),
    "mcp by rpc": ("MCP send tools/call f", {"rpc.system": "mcp", "rpc.method": "tools/call"}, {"tool_name": "f"}),
    "mcp list": ("tools/list", {"mcp.method.name": "tools/list"}, OTHER),
    "agent lightning": ("agentlightning.annotation", {"agentlightning.reward.0.value": 1}, OTHER),
    "none": ("POST", {"http.request.method": "POST"}, {**OTHER, "dialect": "none"}),
}
