"""The one place that writes messages and tools as chat templates read them; the shape is OpenAI's, by convention.

In: a ChatRequest. Out: dictionaries for the engine's render and derender, and for the local template. What of a
request may reach the engine is listed here: its sampling parameters, and whatever else it says, never do.
"""

from __future__ import annotations

from typing import Any

from ..api.chat_request import ChatRequest, Message, NamedTool, TextPart, Tool, ToolUse

__all__ = ["chat_form", "engine_fields", "message_form", "splice_context", "tool_form"]

_TEMPLATE_FIELDS = ("chat_template_kwargs", "documents", "reasoning_effort")
_GRAMMAR_FIELDS = (
    "response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
)  # fmt: skip


def chat_form(request: ChatRequest, *, with_grammar: bool) -> dict[str, Any]:
    """A chat request for the engine's template and parser: the messages, and what else of the request they see.

    Args:
        with_grammar: also the fields from which the engine derives a grammar.
    """
    form: dict[str, Any] = engine_fields(request, with_grammar=with_grammar)
    form["messages"] = [message_form(message) for message in request.messages]
    if request.tools is not None:
        form["tools"] = [tool_form(tool) for tool in request.tools]
    choice = request.tool_choice
    if isinstance(choice, NamedTool):
        form["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
    elif choice is not None:
        form["tool_choice"] = choice.value
    return form


def engine_fields(request: ChatRequest, *, with_grammar: bool = True) -> dict[str, Any]:
    """The unknown fields that the engine's template or grammar reads, as they came."""
    names = (*_TEMPLATE_FIELDS, *_GRAMMAR_FIELDS) if with_grammar else _TEMPLATE_FIELDS
    return {name: request.extra[name] for name in names if name in request.extra}


def message_form(message: Message) -> dict[str, Any]:
    """One message."""
    form: dict[str, Any] = {**message.extra, "role": message.role}
    if isinstance(message.content, tuple):
        form["content"] = [
            {"type": "text", "text": part.text} if isinstance(part, TextPart) else part.fields
            for part in message.content
        ]
    elif message.content is not None or message.role == "assistant":
        form["content"] = message.content
    if message.tool_calls:
        form["tool_calls"] = [
            {
                **({"id": call.id} if call.id else {}),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.tool_calls
        ]
    optional = {"tool_call_id": message.tool_call_id, "name": message.name, "reasoning": message.reasoning}
    return form | {name: value for name, value in optional.items() if value is not None}


def tool_form(tool: Tool) -> dict[str, Any]:
    """One tool."""
    optional = {"description": tool.description, "parameters": tool.parameters, "strict": tool.is_strict}
    said = {name: value for name, value in optional.items() if value is not None}
    return {"type": "function", "function": {**tool.extra, "name": tool.name, **said}}


def splice_context(request: ChatRequest) -> list[Any]:
    """What besides the messages decides the rendered prompt; a grammar or a forced tool does not."""
    fields = engine_fields(request, with_grammar=False)
    return [fields, request.tools, request.tool_choice is ToolUse.NONE]
