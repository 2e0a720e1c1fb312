"""Tools of OpenAI Responses, of whatever kind, as the functions that the policy knows, and calls of them back. Pure.

In: the tools of a request; later a call that the policy made. Out: functions, and which form each name stands for; the
item that such a call is in this API. What OpenAI runs itself is left out and named. A kind whose arguments only
OpenAI's own models know is refused. Names and schemas are vLLM's: a tool of a namespace is `namespace__name`, a custom
tool has one argument, `input`. Invariant: a call that went out as an item comes back as the same arguments, by value.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from tracegrad.schemas.errors import RequestError
from tracegrad.schemas.records.calls import ToolCall

from ..chat_request import Tool
from ..reading import read_as

SERVED_ITEMS = frozenset(
    {
        *("code_interpreter_call", "file_search_call", "image_generation_call", "web_search_call"),
        *("mcp_approval_request", "mcp_approval_response", "mcp_call", "mcp_list_tools"),
    }
)
"""What OpenAI ran itself for an earlier answer, in that answer's own words."""
_SERVED = ("code_interpreter", "file_search", "image_generation", "mcp", "web_search", "web_search_preview")
INPUT = "input"
"""The one argument of a custom tool's function."""
_CUSTOM_SCHEMA = {
    "type": "object",
    "properties": {INPUT: {"type": "string", "description": "The tool's input, as free text."}},
    "required": [INPUT],
    "additionalProperties": False,
}


class _Function(msgspec.Struct, tag="function"):
    name: str
    parameters: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class _Format(msgspec.Struct):
    type: Literal["text", "grammar"]
    syntax: str | None = None
    definition: str | None = None


class _Custom(msgspec.Struct, tag="custom"):
    name: str
    description: str | None = None
    format: _Format | None = None


class _Search(msgspec.Struct, tag="tool_search"):
    parameters: dict[str, Any] | None = None
    description: str | None = None
    execution: Literal["client", "server"] = "server"


class _Namespace(msgspec.Struct, tag="namespace"):
    name: str
    tools: list[_Function | _Custom]


class _Tools(msgspec.Struct):
    tools: list[_Function | _Custom | _Search | _Namespace]


class ReadTool(NamedTuple):
    """A tool as the policy knows it, and what it is in this API."""

    tool: Tool
    kind: str
    """The `type` by which it came."""
    name: str
    """Without its namespace."""
    namespace: str | None = None


def read_tools(given: Sequence[Any]) -> tuple[list[ReadTool], list[str]]:
    """The tools, and the kinds of those that are left out. Raises RequestError."""
    served = [_served(tool) for tool in given]
    # A place holder keeps the numbers by which an error names the others.
    kept = [tool if kind is None else {"type": "tool_search"} for tool, kind in zip(given, served, strict=True)]
    found, left_out = list[ReadTool](), [kind for kind in served if kind is not None]
    for tool, kind in zip(read_as({"tools": kept}, _Tools).tools, served, strict=True):
        if isinstance(tool, _Search) and tool.execution == "server":
            left_out += ["tool_search"] if kind is None else []
        elif isinstance(tool, _Namespace):
            found += (_read(one, tool.name) for one in tool.tools)
        else:
            found.append(_read(tool))
    return found, left_out


def _served(tool: Any) -> str | None:
    """The kind of a tool that OpenAI runs, whose names may bear a date; None: of any other."""
    kind = tool.get("type") if isinstance(tool, dict) else None
    if not isinstance(kind, str):
        return None
    return next((name for name in reversed(_SERVED) if kind == name or kind.startswith(f"{name}_20")), None)


def _read(tool: _Function | _Custom | _Search, namespace: str | None = None) -> ReadTool:
    match tool:
        case _Function():
            schema, strict, kind = tool.parameters, tool.strict, "function"
        case _Custom():
            schema, strict, kind = _CUSTOM_SCHEMA, None, "custom"
        case _Search():
            schema, strict, kind = tool.parameters, None, "tool_search"
    name = kind if isinstance(tool, _Search) else tool.name
    made = Tool(name=flat_name(name, namespace), description=_told(tool), parameters=schema, is_strict=strict)
    return ReadTool(made, kind, name, namespace)


def flat_name(name: str, namespace: str | None) -> str:
    """The function's name in prompts."""
    return name if namespace is None else f"{namespace}__{name}"


def _told(tool: _Function | _Custom | _Search) -> str | None:
    if isinstance(tool, _Custom) and tool.format is not None and tool.format.definition:
        grammar = f"The input follows this grammar ({tool.format.syntax or 'text'}):\n{tool.format.definition}"
        return "\n\n".join(filter(None, [tool.description, grammar]))
    return tool.description


def call_item(call: ToolCall, tool: ReadTool | None) -> dict[str, Any]:
    """The item of a call, of the tool that it names if the request has that; what does not fit the tool's own form is a
    function call, as it was sampled."""
    head: dict[str, Any] = {"call_id": call.id}
    if tool is not None and tool.namespace is not None:
        head["namespace"] = tool.namespace
    name = call.name if tool is None else tool.name
    arguments = _object(call.arguments)
    match tool.kind if tool is not None else "function":
        case "custom":
            said = arguments.get(INPUT) if arguments is not None and len(arguments) == 1 else None
            return head | {
                "type": "custom_tool_call",
                "name": name,
                "input": said if isinstance(said, str) else call.arguments,
            }
        case "tool_search" if arguments is not None:
            return head | {"type": "tool_search_call", "execution": "client", "arguments": arguments}
    return head | {"type": "function_call", "name": name, "arguments": call.arguments}


def _object(arguments: str) -> dict[str, Any] | None:
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def arguments_of(value: Any) -> str:
    """The text of a call's arguments that come back as a value. Raises RequestError: no JSON can hold them."""
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        raise RequestError("input: expected calls of whole characters, got half of one", param="input") from None
