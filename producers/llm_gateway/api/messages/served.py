"""What Anthropic's servers run themselves, taken out of a request: tools, and their blocks in earlier answers. Pure.

In: a decoded body of Messages, of whatever types. Out: the body without them, and their kinds, for counters.
"""

from __future__ import annotations

from typing import Any

from tracegrad.schemas.errors import RequestError

_SERVED_TOOLS = ("web_search", "web_fetch", "code_execution", "tool_search_tool", "mcp_toolset", "advisor")
"""Beginnings of the types of tools that Anthropic runs; a date follows."""
_SERVED_BLOCKS = frozenset(
    {
        *("server_tool_use", "mcp_tool_use", "mcp_tool_result", "web_search_tool_result", "web_fetch_tool_result"),
        *("code_execution_tool_result", "bash_code_execution_tool_result"),
        *("text_editor_code_execution_tool_result", "tool_search_tool_result", "advisor_tool_result"),
    }
)
PLACE: dict[str, Any] = {"name": "", "input_schema": {}}
"""Stands where a tool was that is left out."""
_GONE = {"type": "server_tool_use"}


def without_served(body: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The body without what Anthropic runs itself: tools, and blocks of its earlier answers. Their places stay, for the
    numbers by which an error names others. Also the kinds of what is left out.

    Raises:
        RequestError: one of them must be called.
    """
    tools, messages = body.get("tools"), body.get("messages")
    left_out = list[str]()
    if isinstance(tools, list):
        kinds = [_served_kind(tool) for tool in tools]
        left_out += filter(None, kinds)
        choice = body.get("tool_choice")
        forced = choice.get("name") if isinstance(choice, dict) and choice.get("type") == "tool" else None
        names = [tool.get("name") for tool, kind in zip(tools, kinds, strict=True) if kind]
        if forced is not None and forced in names:
            raise RequestError(
                f"tool_choice.name: expected a tool of your own, got {str(forced)[:60]!r}, which Anthropic runs and "
                "the policy cannot; leave the tool out, or declare one with an input_schema that you run",
                param="tool_choice",
            )
        body = body | {"tools": [PLACE if kind else tool for tool, kind in zip(tools, kinds, strict=True)]}
    if isinstance(messages, list):
        rows = []
        for message in messages:
            blocks = message.get("content") if isinstance(message, dict) else None
            if isinstance(blocks, list) and message.get("role") == "assistant":
                kept = [_GONE if _kind(block) in _SERVED_BLOCKS else block for block in blocks]
                left_out += ["server_tool_use"] * (_GONE in kept)
                message = message | {"content": kept}
            rows.append(message)
        body = body | {"messages": rows}
    return body, tuple(left_out)


def _served_kind(tool: Any) -> str | None:
    return next((name for name in _SERVED_TOOLS if _kind(tool).startswith(name)), None)


def _kind(part: Any) -> str:
    """The type that it says; empty: none."""
    kind = part.get("type") if isinstance(part, dict) else None
    return kind if isinstance(kind, str) else ""
