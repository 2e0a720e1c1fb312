"""Renders and parses in the gateway, where that was proved to equal the engine's own work; else asks the engine.

In: the folder of a version on `weights`: its chat template, its tokenizer; a Hermes tool parser is built in. Out: a
Renderer, at a fiftieth of the engine's cost. Before its first use it must give the engine's ids and messages on all
probes; one difference and it is never used. Requests of other kinds than the probes', templates that raise and prompts
near the context's end go to the engine, whose answer or refusal counts.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Sequence
from pathlib import Path

from tracegrad.schemas.errors import EngineRefusal
from tracegrad.schemas.records.calls import ToolCall

from ..api.chat_request import ChatRequest, Message, Tool, ToolUse
from ..engines.engine import LogprobEntry, ParsedMessage, RenderedIds, Renderer, Waits
from .live import LiveText
from .local_template import LocalTemplate, asks_plainly, load

_LOGGER = logging.getLogger(__name__)
_TOOL_CALL = re.compile(r"<tool_call>(.*?)</tool_call>|<tool_call>(.*)", re.DOTALL)
_CALL_BEGINS = "<tool_call>"
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


def can_parse(request: ChatRequest) -> bool:
    """Whether sampled ids may be parsed here; logprobs are worded by the engine."""
    return request.wishes.top_logprobs is None and asks_plainly(request)


def parse(
    template: LocalTemplate, request: ChatRequest, prompt_ids: Sequence[int], ids: Sequence[int]
) -> ParsedMessage:
    """What sampled ids say."""
    has_tools = _has_tools(request)
    text = template.decode(prompt_ids, ids, skip_special_tokens=not has_tools)
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


def _has_tools(request: ChatRequest) -> bool:
    return bool(request.tools) and request.tool_choice is not ToolUse.NONE


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
            return parse(self._template, request, prompt_ids, [entry.token_id for entry in sampled])
        return await self._engine.parse(request, prompt_ids, sampled, waits)

    def live(self, request: ChatRequest, prompt_ids: Sequence[int]) -> LiveText | None:
        """What reads an answer while it is sampled, as `parse` will; None: only the whole can be read."""
        if not can_parse(request):
            return None
        has_tools = _has_tools(request)
        marks = (*request.wishes.stop, *((_CALL_BEGINS,) if has_tools else ()))
        return LiveText(lambda: self._template.decoder(prompt_ids, not has_tools), marks)


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
        if theirs_said != parse(template, request, prompt, ids):
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
