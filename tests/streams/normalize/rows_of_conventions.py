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
OTHER = {"kind": "other"}
NOBODY = {"kind": "other", "agent_name": None}
LC = "lc_agent_name"
Row = tuple[str, dict[str, Any], dict[str, Any]]


def keyed(prefix: str = "", **fields: Any) -> dict[str, Any]:
    """Attributes under a prefix; dots of their names are written as `__`, and what is no text is JSON."""
    return {
        prefix + key.replace("__", "."): value if isinstance(value, str) else json.dumps(value)
        for key, value in fields.items()
    }


def genai(operation: str, **fields: Any) -> dict[str, Any]:
    """Attributes by the conventions, `fields` under `gen_ai.`."""
    return keyed("gen_ai.", operation__name=operation, **fields)


def inference(kind: str, **fields: Any) -> dict[str, Any]:
    """Attributes by OpenInference."""
    return keyed(openinference__span__kind=kind, **fields)


def looped(kind: str, operation: str | None = None, name: str | None = None, **fields: Any) -> dict[str, Any]:
    """Attributes by OpenLLMetry, and those of the conventions that it writes beside them."""
    named = {} if name is None else {"agent__name": name}
    return keyed("traceloop.", span__kind=kind, **fields) | ({} if operation is None else genai(operation, **named))


def agent(name: str | None) -> dict[str, Any]:
    """What an agent's span means."""
    return {"kind": "agent", "agent_name": name}


OTEL: dict[str, Row] = {
    "chat": (
        "chat m",
        genai(
            "chat",
            response__id=ID,
            output__messages=[{"parts": [{"type": "text", "content": "42"}, {"type": "tool_call", "id": CALL}]}],
        ),
        {**ASKED, "response_id": ID, "dialect": "otel_genai"},
    ),
    "old flat": (
        "openai.chat",
        keyed(llm__request__type="chat", gen_ai__response__id=ID)
        | keyed("gen_ai.completion.0.", content="42", tool_calls__0__id=CALL),
        {**ASKED, "response_id": ID},
    ),
    "agent": ("invoke_agent solver", genai("invoke_agent", agent__name="solver"), agent("solver")),
    "agent by span": ("invoke_agent solver", genai("invoke_agent"), agent("solver")),
    "agent without name, `ai` 7": ("invoke_agent gpt-5", genai("invoke_agent", request__model="gpt-5"), agent(None)),
    "graph": ("invoke_agent LangGraph", genai("invoke_agent", agent__name="LangGraph"), NOBODY),
    "AG2 without name": ("invoke_agent unknown", genai("invoke_agent", agent__name="unknown"), NOBODY),
    "workflow": ("invoke_workflow", genai("invoke_workflow"), OTHER),
    "creation": ("create_agent solver", genai("create_agent", agent__name="solver"), {**NOBODY, "agent_hints": {}}),
    "tool": (
        "execute_tool f",
        genai("execute_tool", tool__name="f", tool__call__id=CALL),
        {**RAN, "tool_name": "f", "tool_call_id": CALL},
    ),
    "tool of Agent Framework without id": (
        "execute_tool f",
        genai("execute_tool", tool__name="f", tool__call__id="unknown"),
        {**RAN, "tool_call_id": None},
    ),
    "default name of an instrumentation": (
        "chat m",
        genai("chat", agent__name="OpenAI Agent", response__id=ID),
        {"kind": "llm", "agent_name": None, "response_id": ID, "agent_hints": {}},
    ),
    "tool of AgentScope 1": (
        "execute_tool f",
        genai("execute_tool", tool__name="f", tool__call__id=CALL)
        | {
            "gen_ai.tool.call.result": json.dumps(
                "ToolResponse(content=[{'type': 'text', 'text': 'Error: it\\'s down'}], metadata=None, id='x')"
            )
        },
        {**FAILED, "tool_status_from": "text"},
    ),
    "tool of AgentScope": (
        "execute_tool f",
        genai("execute_tool", tool__name="f")
        | {
            "gen_ai.tool.call.result": json.dumps(
                "ToolResponse(content=[TextBlock(type='text', text='no city')], state=<ToolResultState.ERROR: 'error'>)"
            )
        },
        FAILED,
    ),
    "tool of LangChain": (
        "execute_tool f",
        genai("execute_tool", tool__name="f", tool__call__result=TOOL_MESSAGE),
        {**FAILED, "tool_call_id": CALL},
    ),
}
OPENINFERENCE: dict[str, Row] = {
    "llm": (
        "ChatOpenAI",
        inference("LLM", output__value=ANSWER)
        | keyed("llm.output_messages.0.message.", content="42", tool_calls__0__tool_call__id=CALL),
        {**ASKED, "response_id": ID, "dialect": "openinference"},
    ),
    "llm in a stream of OpenAI Agents": (
        "generation",
        inference(
            "LLM",
            output__value=[
                {
                    "id": "__fake_id__",
                    "object": "response",
                    "output": [
                        {"type": "message", "content": [{"type": "output_text", "text": "42"}]},
                        {"type": "function_call", "call_id": CALL, "provider_data": {"response_id": ID}},
                    ],
                }
            ],
        ),
        {**ASKED, "response_id": ID},
    ),
    "llm in parts": (
        "ChatOpenAI",
        inference("LLM")
        | {f"llm.output_messages.0.message.contents.{n}.message_content.text": text for n, text in enumerate("42")},
        {"kind": "llm", "output_digest": digest_of("42")},
    ),
    "a text that poses as an id": ("x", inference("LLM", output__value=f'my "id": "{ID}"'), {"response_id": None}),
    "LlamaIndex, no call": ("OpenAI._prepare_chat_with_tools", inference("LLM"), OTHER),
    "LlamaIndex": ("OpenAI.achat", inference("LLM"), {"kind": "llm"}),
    "LlamaIndex agent": ("FunctionAgent.run", inference("AGENT"), OTHER),
    "OpenAI Agents": (
        "planner",
        inference("AGENT", agent__name="planner", graph__node__id="planner"),
        agent("planner"),
    ),
    "CrewAI": ("Writer._execute_core", inference("AGENT", graph__node__id="Writer"), agent("Writer")),
    "CrewAI by span": ("Writer._execute_core", inference("AGENT"), {"agent_name": "Writer"}),
    "crew": ("Crew.kickoff", inference("CHAIN"), NOBODY),
    "AutoGen": ("critic.on_messages_stream", inference("AGENT"), {"agent_name": "critic"}),
    "smolagents": ("solver.run", inference("AGENT"), {"agent_name": "solver"}),
    "smolagents tool": (
        "SimpleTool",
        inference("TOOL", tool__name="f", output__value="3"),
        {**RAN, "tool_name": "f", "tool_call_id": None},
    ),
    "DSPy tool": ("f.__call__", inference("TOOL"), {**RAN, "tool_name": "f"}),
    "LangChain agent": ("solver", inference("CHAIN", metadata={LC: "solver"}), agent("solver")),
    "LangChain step in an agent": ("agent_router", inference("AGENT", metadata={LC: "solver"}), NOBODY),
    "LangChain agent without metadata": ("agent", inference("AGENT"), {"agent_name": "agent"}),
    "LangChain tool": (
        "f",
        inference("TOOL", tool__name="f", output__value={"data": TOOL_MESSAGE}),
        {**FAILED, "tool_status_from": "attribute", "tool_call_id": CALL},
    ),
    "retriever": ("r", inference("RETRIEVER"), OTHER),
}
TRACELOOP: dict[str, Row] = {
    "LangGraph": (
        "LangGraph.workflow",
        looped("workflow", "invoke_agent", "pipeline", entity__name="pipeline"),
        {**NOBODY, "dialect": "otel_genai+traceloop"},
    ),
    "LangGraph agent": (
        "solver.workflow",
        looped("workflow", "invoke_agent", "solver", entity__name="solver")
        | {f"traceloop.association.properties.{LC}": "solver"},
        agent("solver"),
    ),
    "CrewAI task": ("x.task", looped("task", "invoke_agent"), OTHER),
    "handoff": ("a.handoff", looped("handoff", "handoff", "a"), NOBODY),
    "agent": ("Writer.agent", looped("agent", "invoke_agent", "Writer"), agent("Writer")),
    "decorated agent": ("solver.agent", looped("agent", entity__name="solver"), agent("solver")),
    "decorated tool": (
        "f.tool",
        looped("tool", entity__name="f", entity__output='"42"'),
        {**RAN, "tool_name": "f"},
    ),
    "LangChain tool": (
        "execute_tool f",
        looped("tool", entity__name="f", entity__output={"output": {"id": ["ToolMessage"], "kwargs": TOOL_MESSAGE}}),
        {**FAILED, "tool_call_id": CALL},
    ),
}
