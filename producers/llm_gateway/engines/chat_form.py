"""Messages and tools as chat templates read them: OpenAI's shape, by convention; the one place that writes it. Pure.

In: a ChatRequest. Out: what a template, a tool parser and a grammar see of it. What of a request may reach an engine is
listed here: its sampling parameters, and whatever else it says, never do.
"""

from __future__ import annotations

from typing import Any

from ..api.chat_request import ChatRequest, Message, NamedTool, TextPart, Tool, ToolUse

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
        form["tools"] = [_tool_form(tool) for tool in request.tools]
    choice = request.tool_choice
    if isinstance(choice, NamedTool):
        form["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
    elif choice is not None and (request.tools is not None or choice is not ToolUse.AUTO):
        # The engine refuses the word where there are no tools, which is how OpenAI's and Anthropic's clients send it.
        form["tool_choice"] = choice.value
    return form


def engine_fields(request: ChatRequest, *, with_grammar: bool = True) -> dict[str, Any]:
    """The unknown fields that the engine's template or grammar reads, as they came."""
    names = (*_TEMPLATE_FIELDS, *_GRAMMAR_FIELDS) if with_grammar else _TEMPLATE_FIELDS
    return {name: request.extra[name] for name in names if name in request.extra}


def asks_grammar(request: ChatRequest) -> bool:
    """Whether the request itself asks for a grammar; GLM-4.7's parser derives one from tools alone."""
    if isinstance(request.tool_choice, NamedTool) or request.tool_choice is ToolUse.REQUIRED:
        return True
    fields = {name: request.extra[name] for name in _GRAMMAR_FIELDS if name in request.extra}
    is_strict = request.tool_choice is not ToolUse.NONE and any(tool.is_strict for tool in request.tools or ())
    return is_strict or bool(fields and fields != {"response_format": {"type": "text"}})


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


def _tool_form(tool: Tool) -> dict[str, Any]:
    """One tool."""
    optional = {"description": tool.description, "parameters": tool.parameters, "strict": tool.is_strict}
    said = {name: value for name, value in optional.items() if value is not None}
    return {"type": "function", "function": {**tool.extra, "name": tool.name, **said}}
