"""A model's chat template and tokenizer without an engine: messages become ids, and ids text, as vLLM makes them.

In: a model's folder. Out: ids of a ChatRequest; None where the template refuses it. The template runs in Jinja's
sandbox; nothing of the folder is executed otherwise. Whether the ids are the engine's is the caller's to prove
(render/local_render.py), or to say that nobody has.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Template, TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from ..api.chat_request import ChatRequest, Message, Tool, ToolUse
from ..engines.chat_form import engine_fields, message_form
from .live import Step

_FUNCTION_FIELDS = ("name", "description", "parameters")
_ROLES = ("system", "user", "assistant", "tool")
_PRIMED = 4
"""Prompt ids that the decoder is primed with: some tokenizers drop a leading space without context."""
_GENERATION = re.compile(r"(\{%[-+]?\s*)(end)?generation(\s*[-+]?%\})")
"""By these tags transformers marks an assistant's tokens; they print nothing."""


class LocalTemplate:
    """Made by `load`."""

    def __init__(self, template: Any, tokenizer: Any, special_tokens: dict[str, str]) -> None:
        self._template = template
        self._tokenizer = tokenizer
        self.special_tokens = special_tokens
        """`eos_token` and the like -> its text."""
        self.vocab_size: int = tokenizer.get_vocab_size()

    def ids(self, request: ChatRequest, *, to_generate: bool) -> list[int] | None:
        """The ids of a conversation; None: not `can_render`, or the template refuses it."""
        return self.render(request, to_generate=to_generate) if can_render(request) else None

    def render(self, request: ChatRequest, *, to_generate: bool, **variables: Any) -> list[int] | None:
        """The ids of any conversation of texts; None: the template refuses it, by anything that Jinja or its own code
        can raise.

        Args:
            variables: what else the template may name.
        """
        try:
            text = self._template.render(
                messages=[_as_vllm(message) for message in request.messages],
                tools=[_tool(tool) for tool in request.tools] if request.tools else None,
                documents=None,
                add_generation_prompt=to_generate,
                **self.special_tokens,
                **variables,
            )
            return self.encode(text)
        except (TemplateError, TypeError, ValueError, LookupError, ArithmeticError, RecursionError):
            return None

    def text(self, ids: Sequence[int]) -> str:
        """What whole ids spell, special tokens too."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text

    def decode(self, prompt_ids: Sequence[int], ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Text as the engine streams it: bytes that are no character yet are held back."""
        step = self.decoder(prompt_ids, skip_special_tokens)
        return "".join(piece for piece in map(step, ids) if piece)

    def decoder(self, prompt_ids: Sequence[int], skip_special_tokens: bool) -> Step:
        """`decode`, id by id."""
        stream = DecodeStream(ids=list(prompt_ids[-_PRIMED:]), skip_special_tokens=skip_special_tokens)
        return functools.partial(stream.step, self._tokenizer)

    def encode(self, text: str) -> list[int]:
        """Ids of a text as it stands."""
        # `encode` would also find out where in the text each token lies.
        ids: list[int] = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return ids


def load(folder: Path, source: str | None = None) -> LocalTemplate | None:
    """The folder's template and tokenizer; None when they cannot be read here.

    Args:
        source: the template's text, where it is known; None: the folder's.
    """
    try:
        config = json.loads((folder / "tokenizer_config.json").read_text())
        file = folder / "chat_template.jinja"
        if source is None:
            source = file.read_text() if file.exists() else config.get("chat_template")
        template = compiled(source)
        # A broken tokenizer file raises a bare Exception of the library's.
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        # The engine cuts and pads nothing, whatever was set when the file was saved; the probes are too short to tell.
        tokenizer.no_truncation()
        tokenizer.no_padding()
    except (OSError, ValueError, TypeError, AttributeError, TemplateError):
        return None
    return LocalTemplate(template, tokenizer, special_tokens(config))


def compiled(source: str) -> Template:
    """A chat template, in the sandbox, with the functions that transformers gives it. Raises TemplateError."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    return environment.from_string(_GENERATION.sub(_always, source))


def special_tokens(config: dict[str, Any]) -> dict[str, str]:
    """`bos_token` and the like, which templates name, of a tokenizer_config.json."""
    return {
        name: str(value.get("content") if isinstance(value, dict) else value)
        for name, value in config.items()
        if name.endswith("_token") and isinstance(value, (str, dict))
    }


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """As transformers does: no HTML escapes."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _raise(message: str) -> None:
    raise TemplateError(message)


def _always(tag: re.Match[str]) -> str:
    """A block that is always printed, with the tag's own white space."""
    opens, ends, closes = tag.groups()
    return f"{opens}{'endif' if ends else 'if true'}{closes}"


def can_render(request: ChatRequest) -> bool:
    """Whether a request is of the plain kind that was proved; all else is the engine's to render."""
    return asks_plainly(request) and all(map(_is_plain, request.messages))


def asks_plainly(request: ChatRequest) -> bool:
    """Whether what it asks besides its messages is of that kind."""
    if engine_fields(request) or request.tool_choice not in (None, ToolUse.AUTO, ToolUse.NONE):
        return False
    tools = request.tools
    return tools is None or (bool(tools) and all(tool.is_strict is None and not tool.extra for tool in tools))


def _is_plain(message: Message) -> bool:
    if message.role not in _ROLES or message.name is not None or message.reasoning is not None:
        return False
    if not isinstance(message.content, str) and not (message.content is None and message.role == "assistant"):
        return False
    return all(object_of(call.arguments) is not None for call in message.tool_calls)


def object_of(arguments: str) -> dict[str, Any] | None:
    """A tool call's arguments; None: they are no JSON object."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _as_vllm(message: Message) -> dict[str, Any]:
    """A message as the engine hands it to the template: no content is an empty text, arguments are objects (an empty
    one for what is none), thoughts go by two names."""
    form = message_form(message)
    plain: dict[str, Any] = {"role": message.role, "content": message.content or ""}
    if message.role == "assistant" and message.tool_calls:
        plain["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": object_of(call["function"]["arguments"]) or {}}}
            for call in form["tool_calls"]
        ]
    if message.role == "assistant" and message.reasoning is not None:
        plain |= {"reasoning": message.reasoning, "reasoning_content": message.reasoning}
    if message.role == "tool" and message.tool_call_id is not None:
        plain["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        plain["name"] = message.name
    return plain


def _tool(tool: Tool) -> dict[str, Any]:
    """A tool with its fields in the engine's order, absent ones null."""
    return {"type": "function", "function": {name: getattr(tool, name) for name in _FUNCTION_FIELDS}}
