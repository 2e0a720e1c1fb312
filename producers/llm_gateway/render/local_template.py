"""A model folder's chat template, tokenizer and Hermes tool parser, in this process. Pure after loading.

In: messages and sampled ids of the plain kinds that `can_render` and `can_parse` name. Out: the ids and messages that
the engine would give, at a fiftieth of the cost. Whether they are equal is proved by `local_render` before use.
The template runs in Jinja's sandbox; nothing of the folder is executed otherwise.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tracegrad.schemas.records.calls import ToolCall

from ..answer import ParsedMessage
from ..api.chat_request import ChatRequest, Message, Tool, ToolUse
from .chat_form import engine_fields, message_form

__all__ = ["LocalTemplate", "can_parse", "can_render", "load"]

_TOOL_CALL = re.compile(r"<tool_call>(.*?)</tool_call>|<tool_call>(.*)", re.DOTALL)
_FUNCTION_FIELDS = ("name", "description", "parameters")
_ROLES = ("system", "user", "assistant", "tool")
_PRIMED = 4
"""Prompt ids that the decoder is primed with: some tokenizers drop a leading space without context."""


class LocalTemplate:
    """Made by `load`."""

    def __init__(self, template: Any, tokenizer: Any, special_tokens: dict[str, str]) -> None:
        self._template = template
        self._tokenizer = tokenizer
        self._special_tokens = special_tokens

    def ids(self, request: ChatRequest, *, generation_prompt: bool) -> list[int]:
        """The ids of a conversation that `can_render`. May raise whatever the template raises."""
        text = self._template.render(
            messages=[_plain(message) for message in request.messages],
            tools=[_tool(tool) for tool in request.tools] if request.tools else None,
            documents=None,
            add_generation_prompt=generation_prompt,
            **self._special_tokens,
        )
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def parse(self, request: ChatRequest, prompt_ids: Sequence[int], ids: Sequence[int]) -> ParsedMessage:
        """What sampled ids say."""
        has_tools = bool(request.tools) and request.tool_choice is not ToolUse.NONE
        text = self.decode(prompt_ids, ids, skip_special_tokens=not has_tools)
        if not has_tools or "<tool_call>" not in text:
            return ParsedMessage(content=text)
        calls = []
        try:
            for closed, still_open in _TOOL_CALL.findall(text):
                call = json.loads(closed or still_open)
                arguments = json.dumps(call["arguments"], ensure_ascii=False)
                if not isinstance(call["name"], str):
                    return ParsedMessage(content=text)
                (call["name"] + arguments).encode()  # half a surrogate pair, escaped, is JSON but no text
                calls.append((call["name"], arguments))
        except (ValueError, KeyError, TypeError, RecursionError):
            return ParsedMessage(content=text)
        return ParsedMessage(content=text[: text.find("<tool_call>")] or None, tool_calls=tuple(calls))

    def decode(self, prompt_ids: Sequence[int], ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Text as the engine streams it: bytes that are no character yet are held back."""
        from tokenizers.decoders import DecodeStream

        stream = DecodeStream(ids=list(prompt_ids[-_PRIMED:]), skip_special_tokens=skip_special_tokens)
        pieces = [stream.step(self._tokenizer, token) for token in ids]
        return "".join(piece for piece in pieces if piece)

    def encode(self, text: str) -> list[int]:
        """Ids of a text as it stands."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    @property
    def vocab_size(self) -> int:
        """Number of ids that the tokenizer knows."""
        size: int = self._tokenizer.get_vocab_size()
        return size


def load(folder: Path) -> LocalTemplate | None:
    """The folder's template and tokenizer; None without them, or without jinja2 and tokenizers installed."""
    try:
        from jinja2 import TemplateError
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment
        from tokenizers import Tokenizer
    except ImportError:
        return None
    try:
        config = json.loads((folder / "tokenizer_config.json").read_text())
        file = folder / "chat_template.jinja"
        source = file.read_text() if file.exists() else config.get("chat_template")
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise
        template = environment.from_string(source)
        # A broken tokenizer file raises a bare Exception of the library's.
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        # The engine cuts and pads nothing, whatever was set when the file was saved; the probes are too short to tell.
        tokenizer.no_truncation()
        tokenizer.no_padding()
    except (OSError, ValueError, TypeError, AttributeError, TemplateError):
        return None
    tokens = {
        name: str(value.get("content") if isinstance(value, dict) else value)
        for name, value in config.items()
        if name.endswith("_token") and isinstance(value, (str, dict))
    }
    return LocalTemplate(template, tokenizer, tokens)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
    """As transformers does: no HTML escapes."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _raise(message: str) -> None:
    from jinja2 import TemplateError

    raise TemplateError(message)


def can_render(request: ChatRequest) -> bool:
    """Whether a request is of the plain kind that was proved; all else is the engine's to render."""
    return can_parse(request) and all(map(_is_plain, request.messages))


def can_parse(request: ChatRequest) -> bool:
    """Whether sampled ids may be parsed here."""
    if engine_fields(request) or request.tool_choice not in (None, ToolUse.AUTO, ToolUse.NONE):
        return False
    tools = request.tools
    return tools is None or (bool(tools) and all(tool.is_strict is None and not tool.extra for tool in tools))


def _is_plain(message: Message) -> bool:
    if message.role not in _ROLES or message.name is not None or message.reasoning is not None:
        return False
    if not isinstance(message.content, str) and not (message.content is None and message.role == "assistant"):
        return False
    return all(map(_has_object, message.tool_calls))


def _has_object(call: ToolCall) -> bool:
    try:
        return isinstance(json.loads(call.arguments), dict)
    except (ValueError, RecursionError):
        return False


def _plain(message: Message) -> dict[str, Any]:
    """A message as the engine hands it to the template: no content is an empty text, arguments are objects."""
    form = message_form(message)
    plain: dict[str, Any] = {"role": message.role, "content": message.content or ""}
    if message.role == "assistant" and message.tool_calls:
        plain["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": json.loads(call["function"]["arguments"])}}
            for call in form["tool_calls"]
        ]
    if message.role == "tool" and message.tool_call_id is not None:
        plain["tool_call_id"] = message.tool_call_id
    return plain


def _tool(tool: Tool) -> dict[str, Any]:
    """A tool with its fields in the engine's order, absent ones null."""
    return {"type": "function", "function": {name: getattr(tool, name) for name in _FUNCTION_FIELDS}}
