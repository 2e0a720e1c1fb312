"""Spans of observability platforms, frameworks and servers: name, attributes, and what they mean."""

from __future__ import annotations

import json

from tests.streams.normalize.rows_of_conventions import (
    ANSWER,
    ASKED,
    CALL,
    FAILED,
    ID,
    LC,
    MESSAGE,
    RAN,
    TOOL_MESSAGE,
    Row,
)
from tracegrad.schemas.records.facts import ToolStatus, digest_of

PLATFORMS: dict[str, Row] = {
    "langsmith llm": (
        "ChatOpenAI",
        {
            "langsmith.span.kind": "llm",
            "gen_ai.operation.name": "chat",
            "gen_ai.completion": json.dumps(
                {"generations": [[{"message": {"kwargs": {**MESSAGE, "response_metadata": {"id": ID}}}}]]}
            ),
        },
        {**ASKED, "response_id": ID},
    ),
    "langsmith prompt": (
        "ChatPromptTemplate",
        {"langsmith.span.kind": "prompt", "gen_ai.operation.name": "chat"},
        {"kind": "other"},
    ),
    "langsmith agent": (
        "solver",
        {"langsmith.span.kind": "chain", f"langsmith.metadata.{LC}": "solver", "gen_ai.operation.name": "chain"},
        {"kind": "agent", "agent_name": "solver"},
    ),
    "langsmith chain": ("model", {"langsmith.span.kind": "chain", f"langsmith.metadata.{LC}": "x"}, {"kind": "other"}),
    "langsmith tool": (
        "f",
        {
            "langsmith.span.kind": "tool",
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": "f",
            "gen_ai.completion": json.dumps({"output": TOOL_MESSAGE}),
        },
        {**FAILED, "tool_name": "f", "tool_call_id": CALL},
    ),
    "langfuse generation": (
        "llm",
        {"langfuse.observation.type": "generation", "langfuse.observation.output": json.dumps(MESSAGE)},
        {**ASKED, "response_id": None},
    ),
    "langfuse text": (
        "llm",
        {"langfuse.observation.type": "generation", "langfuse.observation.output": "42"},
        {"output_digest": digest_of("42")},
    ),
    "langfuse agent": ("solver", {"langfuse.observation.type": "agent"}, {"kind": "agent", "agent_name": "solver"}),
    "langfuse agent of LangChain": (
        "solver",
        {"langfuse.observation.type": "chain", f"langfuse.observation.metadata.{LC}": '"solver"'},
        {"kind": "agent", "agent_name": "solver"},
    ),
    "langfuse step in an agent": (
        "agent_router",
        {"langfuse.observation.type": "agent", f"langfuse.observation.metadata.{LC}": '"solver"'},
        {"kind": "other", "agent_hints": {LC: "solver"}},
    ),
    "langfuse node of LangGraph": (
        "agent",
        {
            "langfuse.observation.type": "agent",
            "langfuse.observation.output": json.dumps({"messages": [{"type": "ai", "name": "solver"}]}),
        },
        {"kind": "agent", "agent_name": "solver"},
    ),
    "langfuse tool": (
        "f",
        {"langfuse.observation.type": "tool", "langfuse.observation.level": "ERROR"},
        {**FAILED, "tool_name": "f"},
    ),
    "langfuse span": (
        "chat m",
        {"langfuse.observation.type": "span", "gen_ai.operation.name": "chat"},
        {"kind": "llm", "dialect": "langfuse+otel_genai"},
    ),
    "mlflow llm": (
        "Completions",
        {"mlflow.spanType": '"CHAT_MODEL"', "mlflow.spanOutputs": json.dumps(ANSWER)},
        {**ASKED, "response_id": ID},
    ),
    "mlflow tool": (
        "f",
        {"mlflow.spanType": '"TOOL"', "mlflow.spanOutputs": '"Error: it broke"'},
        {**FAILED, "tool_name": "f"},
    ),
    "mlflow agent": ("solver", {"mlflow.spanType": '"AGENT"'}, {"kind": "agent", "agent_name": "solver"}),
    "mlflow class": ("Agent.run_sync", {"mlflow.spanType": '"AGENT"'}, {"kind": "agent", "agent_name": None}),
    "agentops request": (
        "tool_call.f",
        {"agentops.span.kind": "tool", "tool.name": "f", "tool.call.id": CALL},
        {"kind": "other", "tool_call_id": None},
    ),
    "agentops tool": (
        "f.tool",
        {"agentops.span.kind": "tool", "operation.name": "f", "agentops.tool.output": '"42"'},
        {**RAN, "tool_name": "f"},
    ),
    "agentops agent": (
        "solver.agent",
        {"agentops.span.kind": "agent", "operation.name": "solver"},
        {"kind": "agent", "agent_name": "solver"},
    ),
    "agentops session": ("x.session", {"agentops.span.kind": "session"}, {"kind": "other"}),
    "agentops llm": (
        "openai.chat.completion",
        {
            "gen_ai.request.type": "chat",
            "agentops.span.kind": "llm",
            "gen_ai.response.id": ID,
            "gen_ai.completion.0.content": "42",
            "gen_ai.completion.0.tool_calls.0.id": CALL,
        },
        {**ASKED, "response_id": ID, "dialect": "agentops+otel_genai"},
    ),
}
OTHERS: dict[str, Row] = {
    "vercel run": (
        "ai.generateText",
        {"ai.operationId": "ai.generateText", "ai.telemetry.functionId": "solver"},
        {"kind": "agent", "agent_name": "solver"},
    ),
    "vercel call": (
        "ai.generateText.doGenerate",
        {
            "ai.operationId": "ai.generateText.doGenerate",
            "ai.response.id": ID,
            "ai.response.text": "42",
            "ai.response.toolCalls": json.dumps([{"toolCallId": CALL, "toolName": "f"}]),
        },
        {**ASKED, "response_id": ID},
    ),
    "vercel tool": (
        "ai.toolCall",
        {
            "ai.operationId": "ai.toolCall",
            "ai.toolCall.name": "f",
            "ai.toolCall.id": CALL,
            "ai.toolCall.result": '{"error": "no such file"}',
        },
        {**FAILED, "tool_name": "f", "tool_call_id": CALL},
    ),
    "pydantic-ai 1": (
        "running tool",
        {"gen_ai.tool.name": "f", "gen_ai.tool.call.id": CALL, "tool_arguments": "{}", "tool_response": "42"},
        {**RAN, "tool_name": "f", "tool_call_id": CALL},
    ),
    "pydantic-ai 1 agent": ("agent run", {"agent_name": "solver"}, {"kind": "agent", "agent_name": "solver"}),
    "ADK 1 agent": ("agent_run [solver]", {}, {"kind": "agent", "agent_name": "solver"}),
    "ADK merged tools": (
        "execute_tool (merged)",
        {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "(merged tools)", "gen_ai.tool.call.id": "e1"},
        {"kind": "other", "tool_call_id": None},
    ),
    "ADK tool": (
        "execute_tool f",
        {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": "f",
            "gen_ai.tool.call.id": CALL,
            "gcp.vertex.agent.tool_response": '{"status": "error", "error_message": "no"}',
        },
        {**FAILED, "tool_call_id": CALL, "dialect": "adk+otel_genai"},
    ),
    "claude tool": (
        "claude_code.tool",
        {"span.type": "tool", "tool_name": "Bash", "tool_use_id": CALL},
        {**RAN, "tool_name": "Bash", "tool_call_id": CALL},
    ),
    "claude tool's part": ("claude_code.tool.execution", {"span.type": "tool.execution"}, {"kind": "other"}),
    "litellm raw": ("raw_gen_ai_request", {"llm.hosted_vllm.id": ID}, {"kind": "llm", "response_id": ID}),
    "mcp call": (
        "tools/call f",
        {"mcp.method.name": "tools/call", "gen_ai.tool.name": "f"},
        {"kind": "tool", "tool_status": ToolStatus.UNKNOWN, "tool_name": "f"},
    ),
    "mcp by rpc": ("MCP send tools/call f", {"rpc.system": "mcp", "rpc.method": "tools/call"}, {"tool_name": "f"}),
    "mcp list": ("tools/list", {"mcp.method.name": "tools/list"}, {"kind": "other"}),
    "agent lightning": ("agentlightning.annotation", {"agentlightning.reward.0.value": 1}, {"kind": "other"}),
    "none": ("POST", {"http.request.method": "POST"}, {"kind": "other", "dialect": "none"}),
}
