"""One call, as each convention writes it on a model's span: attributes, and what they tell besides."""

from __future__ import annotations

import json
from typing import Any

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.streams.make import pairs, span
from tests.streams.normalize.test_dialects import TRACE
from tracegrad.schemas.records.calls import ToolCall
from tracegrad.schemas.records.told import ChatMessage, ToldSampling, ToolDefinition

SYSTEM = ChatMessage(role="system", content="Be short.")
USER = ChatMessage(role="user", content="Weather in Oslo?")
ASKED = ChatMessage(role="assistant", tool_calls=(ToolCall(id="c1", name="weather", arguments='{"city": "Oslo"}'),))
RESULT = ChatMessage(role="tool", content="sunny", tool_call_id="c1")
ANSWER = ChatMessage(role="assistant", content="Sunny.")
PROMPT = (SYSTEM, USER, ASKED, RESULT)
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = ToolDefinition(name="weather", description="Tells it.", parameters=json.dumps(SCHEMA))
FUNCTION: dict[str, Any] = {
    "type": "function",
    "function": {"name": "weather", "description": "Tells it.", "parameters": SCHEMA},
}
CALL: dict[str, Any] = {
    "id": "c1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city": "Oslo"}'},
}
CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "Weather in Oslo?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
]
CHOICE: dict[str, Any] = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Sunny."}}
RESPONSE: dict[str, Any] = {"id": "chatcmpl-9", "model": "m-1", "choices": [CHOICE]}
PARTS = [
    {"role": "user", "parts": [{"type": "text", "content": "Weather in Oslo?"}]},
    {
        "role": "assistant",
        "parts": [{"type": "tool_call", "id": "c1", "name": "weather", "arguments": {"city": "Oslo"}}],
    },
    {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "sunny"}]},
]
SAID = [{"role": "assistant", "parts": [{"type": "text", "content": "Sunny."}], "finish_reason": "stop"}]
GENAI: dict[str, Any] = {
    "gen_ai.request.model": "m",
    "gen_ai.request.temperature": 0.7,
    "gen_ai.response.id": "chatcmpl-9",
    "gen_ai.system_instructions": [{"type": "text", "content": "Be short."}],
    "gen_ai.input.messages": PARTS,
    "gen_ai.output.messages": SAID,
    "gen_ai.tool.definitions": [
        {"type": "function", "name": "weather", "description": "Tells it.", "parameters": SCHEMA}
    ],
}
OI, OTEL = "openinference.instrumentation.", "opentelemetry.instrumentation."
ANTHROPIC = {
    "model": "m",
    "max_tokens": 50,
    "system": "Be short.",
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Weather in Oslo?"}]},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Oslo"}}],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "sunny"}]},
    ],
    "tools": [{"name": "weather", "description": "Tells it.", "input_schema": SCHEMA}],
}
RESPONSES = {
    "model": "m",
    "instructions": "Be short.",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "Weather in Oslo?"}]},
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "weather", "arguments": '{"city": "Oslo"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
    ],
    "tools": [FUNCTION["function"]],
}
VERCEL = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": [{"type": "text", "text": "Weather in Oslo?"}]},
    {
        "role": "assistant",
        "content": [{"type": "tool-call", "toolCallId": "c1", "toolName": "weather", "input": {"city": "Oslo"}}],
    },
    {
        "role": "tool",
        "content": [
            {
                "type": "tool-result",
                "toolCallId": "c1",
                "toolName": "weather",
                "output": {"type": "text", "value": "sunny"},
            }
        ],
    },
]


def langchain(kind: str, **fields: Any) -> dict[str, Any]:
    """A message as LangChain serialises it."""
    return {"lc": 1, "type": "constructor", "id": ["langchain", kind], "kwargs": {"type": kind, **fields}}


LANGCHAIN = [
    langchain("system", content="Be short."),
    langchain("human", content="Weather in Oslo?"),
    langchain(
        "ai", content="", tool_calls=[{"name": "weather", "args": {"city": "Oslo"}, "id": "c1", "type": "tool_call"}]
    ),
    langchain("tool", content="sunny", tool_call_id="c1", id="x", status="success"),
]
GENERATIONS = {
    "generations": [
        [
            {
                "text": "Sunny.",
                "generation_info": {"finish_reason": "stop"},
                "message": langchain("ai", content="Sunny.", id="lc_run--1"),
            }
        ]
    ]
}


def flat(prefix: str, value: Any) -> dict[str, Any]:
    """Flat attributes that spell a value."""
    if not isinstance(value, dict | list):
        return {prefix: value}
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return {key: one for name, inner in items for key, one in flat(f"{prefix}.{name}", inner).items()}


def oi_messages(prefix: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Messages as OpenInference spells them."""
    spelt = []
    for message in messages:
        calls = [{"tool_call": {"id": one["id"], "function": one["function"]}} for one in message.get("tool_calls", ())]
        fields = {key: told for key, told in message.items() if key != "tool_calls" and told is not None}
        spelt.append({"message": fields | ({"tool_calls": calls} if calls else {})})
    return flat(prefix, spelt)


OI_FLAT = {
    "llm.model_name": "m",
    "llm.invocation_parameters": {"temperature": 0.7},
    "llm.finish_reason": "stop",
    "llm.tools.0.tool.json_schema": FUNCTION,
    **oi_messages("llm.input_messages", CHAT),
    **oi_messages("llm.output_messages", [CHOICE["message"]]),
}
OLD = {
    "gen_ai.request.model": "m",
    **flat(
        "gen_ai.prompt", [*CHAT[:2], {"role": "assistant", "tool_calls": [CALL["function"] | {"id": "c1"}]}, CHAT[3]]
    ),
    **flat("gen_ai.completion", [{"role": "assistant", "content": "Sunny.", "finish_reason": "stop"}]),
    **flat("gen_ai.request.functions", [{**FUNCTION["function"], "parameters": json.dumps(SCHEMA)}]),
}
ROWS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "genai": (f"{OTEL}anthropic", GENAI, {"sampling": ToldSampling(temperature=0.7), "response_id": "chatcmpl-9"}),
    "genai, older attributes": ("openai", OLD, {}),
    "genai, older attributes, parts as JSON": (
        "openai",
        {**OLD, "gen_ai.prompt.1.content": '[{"type": "text", "text": "Weather in Oslo?"}]'},
        {},
    ),
    "openinference, raw": (
        f"{OI}openai",
        {
            "input.value": {"model": "m", "temperature": 0.7, "messages": CHAT, "tools": [FUNCTION]},
            "output.value": RESPONSE,
        },
        {"sampling": ToldSampling(temperature=0.7), "response_id": "chatcmpl-9"},
    ),
    "openinference, flat": (f"{OI}llama_index", OI_FLAT, {"sampling": ToldSampling(temperature=0.7)}),
    "openinference, texts of Python's objects": (
        f"{OI}llama_index",
        {"input.value": {"messages": ["ChatMessage(role=..)"]}, "output.value": "assistant: Sunny.", **OI_FLAT},
        {},
    ),
    "openinference, Anthropic": (
        f"{OI}anthropic",
        {
            "input.value": ANTHROPIC,
            "output.value": {
                "id": "msg_1",
                "role": "assistant",
                "type": "message",
                "stop_reason": "end_turn",
                "content": [{"type": "text", "text": "Sunny."}],
            },
        },
        {"sampling": ToldSampling(max_tokens=50), "response_id": "msg_1"},
    ),
    "openinference, Responses": (
        f"{OI}openai",
        {
            "input.value": RESPONSES,
            "output.value": {
                "id": "resp_1",
                "model": "m",
                "output": [
                    {"type": "reasoning", "summary": []},
                    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Sunny."}]},
                ],
            },
        },
        {"response_id": "resp_1", "finish_reason": None},
    ),
    "openinference, OpenAI Agents by Responses": (
        f"{OI}openai_agents",
        {
            "input.value": RESPONSES["input"],
            "output.value": {
                **{key: told for key, told in RESPONSES.items() if key != "input"},
                "id": "resp_1",
                "object": "response",
                "output": [
                    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Sunny."}]},
                ],
            },
        },
        {"response_id": "resp_1", "finish_reason": None},
    ),
    "ADK, whose tools return objects": (
        "gcp.vertex.agent",
        {
            **GENAI,
            "gen_ai.input.messages": [
                *PARTS[:2],
                {
                    "role": "user",
                    "parts": [{"type": "tool_call_response", "id": "c1", "response": {"result": "\u00e9"}}],
                },
            ],
        },
        {"messages": (*PROMPT[:3], ChatMessage(role="tool", content='{"result": "\u00e9"}', tool_call_id="c1"))},
    ),
    "openinference, LangChain": (
        f"{OI}langchain",
        {
            "input.value": {"messages": [LANGCHAIN]},
            "output.value": GENERATIONS,
            "llm.invocation_parameters": {"tools": [FUNCTION]},
            "llm.model_name": "m",
        },
        {},
    ),
    "langsmith": (
        "langsmith",
        {
            "gen_ai.prompt": {"messages": [LANGCHAIN]},
            "gen_ai.completion": GENERATIONS,
            "gen_ai.request.model": "m",
            "gen_ai.tool.definitions": [FUNCTION],
        },
        {},
    ),
    "mlflow": (
        "mlflow.tracing.provider",
        {"mlflow.spanInputs": {"model": "m", "messages": CHAT, "tools": [FUNCTION]}, "mlflow.spanOutputs": RESPONSE},
        {"response_id": "chatcmpl-9"},
    ),
    "langfuse": (
        "langfuse-sdk",
        {
            "langfuse.observation.input": {"messages": CHAT, "tools": [FUNCTION]},
            "langfuse.observation.output": CHOICE["message"],
            "langfuse.observation.model.name": "m",
        },
        {"finish_reason": None},
    ),
    "langfuse, LangChain": (
        "langfuse-sdk",
        {
            "langfuse.observation.input": [*CHAT, {"role": "tool", "content": FUNCTION}],
            "langfuse.observation.output": CHOICE["message"],
            "langfuse.observation.model.name": "m",
        },
        {"finish_reason": None},
    ),
    "vercel": (
        "ai",
        {
            "ai.model.id": "m",
            "ai.prompt.messages": VERCEL,
            "ai.response.text": "Sunny.",
            "ai.response.finishReason": "stop",
            "ai.prompt.tools": [
                {"type": "function", "name": "weather", "description": "Tells it.", "inputSchema": SCHEMA}
            ],
        },
        {},
    ),
}


def made(attributes: dict[str, Any], events: list[tuple[str, dict[str, Any]]] = [], **fields: Any) -> Span:  # noqa: B006
    """A span; what is neither text nor number is JSON."""
    plain = {key: told if isinstance(told, str | int | float) else json.dumps(told) for key, told in attributes.items()}
    one = span(TRACE, 1, "chat m", **fields)
    one.attributes.extend(pairs(plain))
    for name, told in events:
        texts: dict[str, str | int | float | bool] = {
            key: value if isinstance(value, str | int) else json.dumps(value) for key, value in told.items()
        }
        one.events.add(name=name).attributes.extend(pairs(texts))
    return one
