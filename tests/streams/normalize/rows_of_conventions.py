"""Spans of OpenTelemetry's conventions, OpenInference and OpenLLMetry: name, attributes, and what they mean."""

from __future__ import annotations

import json
from typing import Any

from tests.streams.make import call_id
from tests.streams.normalize.test_dialects import TRACE
from tracegrad.schemas.ids import new_tool_call
from tracegrad.schemas.records.facts import ToolStatus, digest_of

ID = call_id("a")
CALL = new_tool_call(TRACE, lambda _: 7)
ANSWER = {"id": ID, "choices": [{"message": {"role": "assistant", "content": "42", "tool_calls": [{"id": CALL}]}}]}
MESSAGE = {"role": "assistant", "content": "42", "tool_calls": [{"id": CALL, "function": {"name": "f"}}]}
TOOL_MESSAGE = {"type": "tool", "content": "it broke", "tool_call_id": CALL, "status": "error"}
ASKED = {"kind": "llm", "output_digest": digest_of("42"), "requested_tool_call_ids": (CALL,)}
FAILED = {"kind": "tool", "tool_status": ToolStatus.FAILED}
RAN = {"kind": "tool", "tool_status": ToolStatus.SUCCEEDED}
LC = "lc_agent_name"
Row = tuple[str, dict[str, Any], dict[str, Any]]

OTEL: dict[str, Row] = {
    "chat": (
        "chat m",
        {
            "gen_ai.operation.name": "chat",
            "gen_ai.response.id": ID,
            "gen_ai.output.messages": json.dumps(
                [{"parts": [{"type": "text", "content": "42"}, {"type": "tool_call", "id": CALL}]}]
            ),
        },
        {**ASKED, "response_id": ID, "dialect": "otel_genai"},
    ),
    "old flat": (
        "openai.chat",
        {
            "llm.request.type": "chat",
            "gen_ai.response.id": ID,
            "gen_ai.completion.0.content": "42",
            "gen_ai.completion.0.tool_calls.0.id": CALL,
        },
        {**ASKED, "response_id": ID},
    ),
    "agent": (
        "invoke_agent solver",
        {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "solver"},
        {"kind": "agent", "agent_name": "solver"},
    ),
    "agent by span": (
        "invoke_agent solver",
        {"gen_ai.operation.name": "invoke_agent"},
        {"kind": "agent", "agent_name": "solver"},
    ),
    "agent without name, `ai` 7": (
        "invoke_agent gpt-5",
        {"gen_ai.operation.name": "invoke_agent", "gen_ai.request.model": "gpt-5"},
        {"kind": "agent", "agent_name": None},
    ),
    "graph": (
        "invoke_agent LangGraph",
        {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "LangGraph"},
        {"kind": "other", "agent_name": None},
    ),
    "AG2 without name": (
        "invoke_agent unknown",
        {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "unknown"},
        {"kind": "other", "agent_name": None},
    ),
    "workflow": ("invoke_workflow", {"gen_ai.operation.name": "invoke_workflow"}, {"kind": "other"}),
    "creation": (
        "create_agent solver",
        {"gen_ai.operation.name": "create_agent", "gen_ai.agent.name": "solver"},
        {"kind": "other", "agent_name": None, "agent_hints": {}},
    ),
    "tool": (
        "execute_tool f",
        {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "f", "gen_ai.tool.call.id": CALL},
        {**RAN, "tool_name": "f", "tool_call_id": CALL},
    ),
    "tool of Agent Framework without id": (
        "execute_tool f",
        {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "f", "gen_ai.tool.call.id": "unknown"},
        {**RAN, "tool_call_id": None},
    ),
    "default name of an instrumentation": (
        "chat m",
        {"gen_ai.operation.name": "chat", "gen_ai.agent.name": "OpenAI Agent", "gen_ai.response.id": ID},
        {"kind": "llm", "agent_name": None, "response_id": ID, "agent_hints": {}},
    ),
    "tool of AgentScope 1": (
        "execute_tool f",
        {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": "f",
            "gen_ai.tool.call.id": CALL,
            "gen_ai.tool.call.result": json.dumps(
                "ToolResponse(content=[{'type': 'text', 'text': 'Error: it\\'s down'}], metadata=None, id='x')"
            ),
        },
        {**FAILED, "tool_status_from": "text"},
    ),
    "tool of AgentScope": (
        "execute_tool f",
        {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": "f",
            "gen_ai.tool.call.result": json.dumps(
                "ToolResponse(content=[TextBlock(type='text', text='no city')], state=<ToolResultState.ERROR: 'error'>)"
            ),
        },
        FAILED,
    ),
    "tool of LangChain": (
        "execute_tool f",
        {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": "f",
            "gen_ai.tool.call.result": json.dumps(TOOL_MESSAGE),
        },
        {**FAILED, "tool_call_id": CALL},
    ),
}
OPENINFERENCE: dict[str, Row] = {
    "llm": (
        "ChatOpenAI",
        {
            "openinference.span.kind": "LLM",
            "output.value": json.dumps(ANSWER),
            "llm.output_messages.0.message.content": "42",
            "llm.output_messages.0.message.tool_calls.0.tool_call.id": CALL,
        },
        {**ASKED, "response_id": ID, "dialect": "openinference"},
    ),
    "llm in a stream of OpenAI Agents": (
        "generation",
        {
            "openinference.span.kind": "LLM",
            "output.value": json.dumps(
                [
                    {
                        "id": "__fake_id__",
                        "object": "response",
                        "output": [
                            {"type": "message", "content": [{"type": "output_text", "text": "42"}]},
                            {"type": "function_call", "call_id": CALL, "provider_data": {"response_id": ID}},
                        ],
                    }
                ]
            ),
        },
        {**ASKED, "response_id": ID},
    ),
    "llm in parts": (
        "ChatOpenAI",
        {
            "openinference.span.kind": "LLM",
            "llm.output_messages.0.message.contents.0.message_content.text": "4",
            "llm.output_messages.0.message.contents.1.message_content.text": "2",
        },
        {"kind": "llm", "output_digest": digest_of("42")},
    ),
    "a text that poses as an id": (
        "x",
        {"openinference.span.kind": "LLM", "output.value": f'my "id": "{ID}"'},
        {"response_id": None},
    ),
    "LlamaIndex, no call": ("OpenAI._prepare_chat_with_tools", {"openinference.span.kind": "LLM"}, {"kind": "other"}),
    "LlamaIndex": ("OpenAI.achat", {"openinference.span.kind": "LLM"}, {"kind": "llm"}),
    "LlamaIndex agent": ("FunctionAgent.run", {"openinference.span.kind": "AGENT"}, {"kind": "other"}),
    "OpenAI Agents": (
        "planner",
        {"openinference.span.kind": "AGENT", "agent.name": "planner", "graph.node.id": "planner"},
        {"kind": "agent", "agent_name": "planner"},
    ),
    "CrewAI": (
        "Writer._execute_core",
        {"openinference.span.kind": "AGENT", "graph.node.id": "Writer"},
        {"kind": "agent", "agent_name": "Writer"},
    ),
    "CrewAI by span": ("Writer._execute_core", {"openinference.span.kind": "AGENT"}, {"agent_name": "Writer"}),
    "crew": ("Crew.kickoff", {"openinference.span.kind": "CHAIN"}, {"kind": "other", "agent_name": None}),
    "AutoGen": ("critic.on_messages_stream", {"openinference.span.kind": "AGENT"}, {"agent_name": "critic"}),
    "smolagents": ("solver.run", {"openinference.span.kind": "AGENT"}, {"agent_name": "solver"}),
    "smolagents tool": (
        "SimpleTool",
        {"openinference.span.kind": "TOOL", "tool.name": "f", "output.value": "3"},
        {**RAN, "tool_name": "f", "tool_call_id": None},
    ),
    "DSPy tool": ("f.__call__", {"openinference.span.kind": "TOOL"}, {**RAN, "tool_name": "f"}),
    "LangChain agent": (
        "solver",
        {"openinference.span.kind": "CHAIN", "metadata": json.dumps({LC: "solver"})},
        {"kind": "agent", "agent_name": "solver"},
    ),
    "LangChain step in an agent": (
        "agent_router",
        {"openinference.span.kind": "AGENT", "metadata": json.dumps({LC: "solver"})},
        {"kind": "other", "agent_name": None},
    ),
    "LangChain agent without metadata": ("agent", {"openinference.span.kind": "AGENT"}, {"agent_name": "agent"}),
    "LangChain tool": (
        "f",
        {"openinference.span.kind": "TOOL", "tool.name": "f", "output.value": json.dumps({"data": TOOL_MESSAGE})},
        {**FAILED, "tool_call_id": CALL},
    ),
    "retriever": ("r", {"openinference.span.kind": "RETRIEVER"}, {"kind": "other"}),
}
TRACELOOP: dict[str, Row] = {
    "LangGraph": (
        "LangGraph.workflow",
        {
            "traceloop.span.kind": "workflow",
            "traceloop.entity.name": "pipeline",
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": "pipeline",
        },
        {"kind": "other", "agent_name": None, "dialect": "otel_genai+traceloop"},
    ),
    "LangGraph agent": (
        "solver.workflow",
        {
            "traceloop.span.kind": "workflow",
            "traceloop.entity.name": "solver",
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": "solver",
            f"traceloop.association.properties.{LC}": "solver",
        },
        {"kind": "agent", "agent_name": "solver"},
    ),
    "CrewAI task": (
        "x.task",
        {"traceloop.span.kind": "task", "gen_ai.operation.name": "invoke_agent"},
        {"kind": "other"},
    ),
    "handoff": (
        "a.handoff",
        {"traceloop.span.kind": "handoff", "gen_ai.operation.name": "handoff", "gen_ai.agent.name": "a"},
        {"kind": "other", "agent_name": None},
    ),
    "agent": (
        "Writer.agent",
        {"traceloop.span.kind": "agent", "gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "Writer"},
        {"kind": "agent", "agent_name": "Writer"},
    ),
    "decorated agent": (
        "solver.agent",
        {"traceloop.span.kind": "agent", "traceloop.entity.name": "solver"},
        {"kind": "agent", "agent_name": "solver"},
    ),
    "decorated tool": (
        "f.tool",
        {"traceloop.span.kind": "tool", "traceloop.entity.name": "f", "traceloop.entity.output": '"42"'},
        {**RAN, "tool_name": "f"},
    ),
    "LangChain tool": (
        "execute_tool f",
        {
            "traceloop.span.kind": "tool",
            "traceloop.entity.name": "f",
            "traceloop.entity.output": json.dumps({"output": {"id": ["ToolMessage"], "kwargs": TOOL_MESSAGE}}),
        },
        {**FAILED, "tool_call_id": CALL},
    ),
}
