"""Renders and parses in the gateway, where that was proved to equal the engine's own work; else asks the engine.

In: the folder of a version on `weights`: its chat template, its tokenizer; a Hermes tool parser is built in. Out: a
Renderer, at a fiftieth of the engine's cost. Before its first use it must give the engine's ids and messages on all
probes; one difference and it is never used. Requests of other kinds than the probes', templates that raise and prompts
near the context's end go to the engine, whose answer or refusal counts. The template runs in Jinja's sandbox; nothing
of the folder is executed otherwise.
"""

from __future__ import annotations

import functools
import json
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from tracegrad.schemas.errors import EngineRefusal
from tracegrad.schemas.records.calls import ToolCall

from ..api.chat_request import ChatRequest, Message, Tool, ToolUse
from ..engines.chat_form import engine_fields, message_form
from ..engines.engine import LogprobEntry, ParsedMessage, RenderedIds, Renderer, Waits
from .live import LiveText, Step

_LOGGER = logging.getLogger(__name__)
_TOOL_CALL = re.compile(r"<tool_call>(.*?)</tool_call>|<tool_call>(.*)", re.DOTALL)
_CALL_BEGINS = "<tool_call>"
_FUNCTION_FIELDS = ("name", "description", "parameters")
_ROLES = ("system", "user", "assistant", "tool")
_PRIMED = 4
"""Prompt ids that the decoder is primed with: some tokenizers drop a leading space without context."""
_TOOLS = (
    Tool(
        name="look_up",
        description="Finds a thing's <size> & \u00e9tat",
        parameters={"type": "object", "properties": {"thing": {"type": "string"}}, "required": ["thing"]},
    ),
    Tool(name="calc", parameters={"type": "object"}),
)


def _calls(*arguments: str) -> tuple[ToolCall, ...]:
    return tuple(ToolCall(id=f"c{i}", name="look_up", arguments=text) for i, text in enumerate(arguments))


_ASK = Message(role="user", content="What is 1234 times  56?\n\n- first\n- \u4f60\u597d <|im_end|>  ")
_SYSTEM = Message(role="system", content="Be brief. ")
_PLAIN = Message(role="assistant", content=" 69104, it is.\n")
_ONE = Message(role="assistant", tool_calls=_calls('{"thing":"a \\"b\\"", "n": 1.50}'))
_TWO = Message(role="assistant", content="Let me see.", tool_calls=_calls('{"thing": "\u00e9"}', "{}"))
_RESULT = Message(role="tool", tool_call_id="c0", content='{"size": 7}\n')
_EMPTY = Message(role="tool", tool_call_id="c1", content="")
_CONVERSATIONS: tuple[tuple[Message, ...], ...] = (
    (_ASK,),
    (_SYSTEM, _ASK),
    (_ASK, _PLAIN),
    (_SYSTEM, _ASK, _PLAIN, _ASK),
    (_ASK, _ONE),
    (_ASK, _ONE, _RESULT),
    (_SYSTEM, _ASK, _TWO, _RESULT, _EMPTY),
    (_ASK, _ONE, _RESULT, _PLAIN, _ASK, _TWO, _RESULT, _EMPTY, _PLAIN),
    (_ASK, Message(role="assistant", content=""), _ASK),
)
_SAID = (
    "It is 42.",
    " \u4f60\u597d \U0001f642\n\n  spaces  ",
    '<tool_call>\n{"name": "calc", "arguments": {"expr": "1+2", "\u00e9": [1.50, null]}}\n</tool_call>',
    'First. <tool_call>{"name": "calc", "arguments": {}}</tool_call>\n<tool_call>{"name": "b", "arguments": "x"}',
    '<tool_call>{"name": "calc", "arg',
    '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
    "<tool_call></tool_call>",
    "text with </tool_call> alone",
    # A reasoning parser takes thoughts out of a text, which ours does not.
    "<think>\nhm\n</think>\n\nyes",
    # Calls to other parsers, words to Hermes.
    '```json\n{"name": "calc", "arguments": {"expr": "1+2"}}\n```',
    '{"name": "calc", "parameters": {"expr": "1+2"}}',
    '[{"name": "calc", "arguments": {"expr": "1+2"}}]',
    '[calc(expr="1+2")]',
    "<tool_call>\n<function=calc>\n<parameter=expr>\n1+2\n</parameter>\n</function>\n</tool_call>",
)


class LocalTemplate:
    """Made by `load`."""

    def __init__(self, template: Any, tokenizer: Any, special_tokens: dict[str, str]) -> None:
        self._template = template
        self._tokenizer = tokenizer
        self._special_tokens = special_tokens
        self.vocab_size: int = tokenizer.get_vocab_size()

    def ids(self, request: ChatRequest, *, to_generate: bool) -> list[int] | None:
        """The ids of a conversation; None: not `can_render`, or the template refuses it, by anything that Jinja or its
        own code can raise."""
        if not can_render(request):
            return None
        try:
            text = self._template.render(
                messages=[_plain(message) for message in request.messages],
                tools=[_tool(tool) for tool in request.tools] if request.tools else None,
                documents=None,
                add_generation_prompt=to_generate,
                **self._special_tokens,
            )
            return self.encode(text)
        except (TemplateError, TypeError, ValueError, LookupError, ArithmeticError, RecursionError):
            return None

    def parse(self, request: ChatRequest, prompt_ids: Sequence[int], ids: Sequence[int]) -> ParsedMessage:
        """What sampled ids say."""
        has_tools = _has_tools(request)
        text = self.decode(prompt_ids, ids, skip_special_tokens=not has_tools)
        if not has_tools or _CALL_BEGINS not in text:
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
        return ParsedMessage(content=text[: text.find(_CALL_BEGINS)] or None, tool_calls=tuple(calls))

    def decode(self, prompt_ids: Sequence[int], ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Text as the engine streams it: bytes that are no character yet are held back."""
        step = self._decoder(prompt_ids, skip_special_tokens)
        return "".join(piece for piece in map(step, ids) if piece)

    def live(self, request: ChatRequest, prompt_ids: Sequence[int]) -> LiveText:
        """What `parse` will say, as far as that is sure while ids still come."""
        has_tools = _has_tools(request)
        marks = (*request.wishes.stop, *((_CALL_BEGINS,) if has_tools else ()))
        return LiveText(lambda: self._decoder(prompt_ids, not has_tools), marks)

    def _decoder(self, prompt_ids: Sequence[int], skip_special_tokens: bool) -> Step:
        stream = DecodeStream(ids=list(prompt_ids[-_PRIMED:]), skip_special_tokens=skip_special_tokens)
        return functools.partial(stream.step, self._tokenizer)

    def encode(self, text: str) -> list[int]:
        """Ids of a text as it stands."""
        # `encode` would also find out where in the text each token lies.
        ids: list[int] = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return ids


def load(folder: Path) -> LocalTemplate | None:
    """The folder's template and tokenizer; None when they cannot be read here."""
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
    raise TemplateError(message)


def can_render(request: ChatRequest) -> bool:
    """Whether a request is of the plain kind that was proved; all else is the engine's to render."""
    return _asks_plainly(request) and all(map(_is_plain, request.messages))


def can_parse(request: ChatRequest) -> bool:
    """Whether sampled ids may be parsed here; logprobs are worded by the engine."""
    return request.wishes.top_logprobs is None and _asks_plainly(request)


def _asks_plainly(request: ChatRequest) -> bool:
    if engine_fields(request) or request.tool_choice not in (None, ToolUse.AUTO, ToolUse.NONE):
        return False
    tools = request.tools
    return tools is None or (bool(tools) and all(tool.is_strict is None and not tool.extra for tool in tools))


def _has_tools(request: ChatRequest) -> bool:
    return bool(request.tools) and request.tool_choice is not ToolUse.NONE


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


class LocalRenderer:
    """A Renderer that does the plain kinds itself."""

    def __init__(self, template: LocalTemplate, engine: Renderer, *, max_tokens: int) -> None:
        self._template = template
        self._engine = engine
        self._max_tokens = max_tokens

    async def ids(self, request: ChatRequest, waits: Waits, *, to_generate: bool = True) -> RenderedIds:
        """See Renderer."""
        ids = self._template.ids(request, to_generate=to_generate)
        if ids and len(ids) < self._max_tokens:
            return RenderedIds(ids=ids)
        return await self._engine.ids(request, waits, to_generate=to_generate)

    async def count(self, request: ChatRequest, waits: Waits) -> int:
        """See Renderer."""
        ids = self._template.ids(request, to_generate=True)
        return len(ids) if ids else await self._engine.count(request, waits)

    async def parse(
        self, request: ChatRequest, prompt_ids: list[int], sampled: Sequence[LogprobEntry], waits: Waits
    ) -> ParsedMessage:
        """See Renderer."""
        if can_parse(request):
            return self._template.parse(request, prompt_ids, [entry.token_id for entry in sampled])
        return await self._engine.parse(request, prompt_ids, sampled, waits)

    def live(self, request: ChatRequest, prompt_ids: Sequence[int]) -> LiveText | None:
        """What reads an answer while it is sampled, as `parse` will; None: only the whole can be read."""
        return self._template.live(request, prompt_ids) if can_parse(request) else None


async def prove(folder: str, engine: Renderer, waits: Waits, *, max_tokens: int) -> LocalRenderer | None:
    """A local renderer that equals the engine on all probes, or None. Raises UnavailableError while it is away."""
    template = load(Path(folder))
    if template is None:
        _LOGGER.info("no template and tokenizer that can be read here: the engine renders")
        return None
    for number, messages in enumerate(_CONVERSATIONS):
        for tools in (None, _TOOLS):
            request = ChatRequest(messages=messages, tools=tools)
            for to_generate in (True, False):
                theirs = await _engine_ids(engine, request, waits, to_generate=to_generate)
                if theirs != template.ids(request, to_generate=to_generate):
                    _LOGGER.info("rendering here differs from the engine's (probe %d): the engine renders", number)
                    return None
    request = ChatRequest(messages=(_ASK,), tools=_TOOLS)
    prompt = template.encode("<|im_start|>assistant\n")
    for number, ids in enumerate(_sampled(template)):
        theirs_said = await engine.parse(request, prompt, [LogprobEntry(token, 0.0) for token in ids], waits)
        if theirs_said != template.parse(request, prompt, ids):
            _LOGGER.info("parsing here differs from the engine's (probe %d): the engine parses", number)
            return None
    _LOGGER.info("rendering and parsing in the gateway: equal to the engine's on all probes")
    return LocalRenderer(template, engine, max_tokens=max_tokens)


async def _engine_ids(engine: Renderer, request: ChatRequest, waits: Waits, *, to_generate: bool) -> list[int] | None:
    """The engine's ids; None when its template refuses, as ours must then."""
    try:
        return (await engine.ids(request, waits, to_generate=to_generate)).ids
    except EngineRefusal:
        return None


def _sampled(template: LocalTemplate) -> list[list[int]]:
    """Ids of what a model may say: as the tokenizer splits it, letter by letter, and at random."""
    split = [template.encode(text) for text in _SAID]
    spelt = [[token for letter in text for token in template.encode(letter)] for text in _SAID[:2]]
    size = template.vocab_size
    strewn = [[(start + 7919 * i) % size for i in range(48)] for start in range(0, size, max(1, size // 24))]
    return split + spelt + strewn
