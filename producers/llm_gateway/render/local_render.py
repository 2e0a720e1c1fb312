"""Renders and parses in the gateway, where that was proved to equal the engine's own work; else asks the engine.

In: the folder of a version on `weights`. Out: a Renderer. Before its first use it must give the engine's ids and
messages on all probes; one difference and it is never used. Requests of other kinds than the probes', templates that
raise and prompts near the context's end go to the engine, whose answer or refusal counts.
"""

from __future__ import annotations

import logging
from pathlib import Path

from tracegrad.schemas.errors import EngineRefusal
from tracegrad.schemas.records.calls import ToolCall

from ..answer import ParsedMessage
from ..api.chat_request import ChatRequest, Message, Tool
from ..engines.client import Waits
from .engine_render import Rendered, Renderer, Sampled
from .local_template import LocalTemplate, can_parse, can_render, load

__all__ = ["LocalRenderer", "prove"]

_LOGGER = logging.getLogger(__name__)
_TOOLS = (
    Tool(
        name="look_up",
        description="Finds a thing's <size> & \u00e9tat",
        parameters={"type": "object", "properties": {"thing": {"type": "string"}}, "required": ["thing"]},
    ),
    Tool(name="calc", parameters={"type": "object"}),
)


def _calls(*arguments: str) -> tuple[ToolCall, ...]:
    return tuple(ToolCall(id=f"call_{i}", name="look_up", arguments=text) for i, text in enumerate(arguments))


_ASK = Message(role="user", content="What is 1234 times  56?\n\n- first\n- \u4f60\u597d <|im_end|>  ")
_SYSTEM = Message(role="system", content="Be brief. ")
_PLAIN = Message(role="assistant", content=" 69104, it is.\n")
_ONE = Message(role="assistant", tool_calls=_calls('{"thing":"a \\"b\\"", "n": 1.50}'))
_TWO = Message(role="assistant", content="Let me see.", tool_calls=_calls('{"thing": "\u00e9"}', "{}"))
_RESULT = Message(role="tool", tool_call_id="call_0", content='{"size": 7}\n')
_EMPTY = Message(role="tool", tool_call_id="call_1", content="")
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
    # Calls to other parsers, words to Hermes.
    '```json\n{"name": "calc", "arguments": {"expr": "1+2"}}\n```',
    '{"name": "calc", "parameters": {"expr": "1+2"}}',
    '[{"name": "calc", "arguments": {"expr": "1+2"}}]',
    '[calc(expr="1+2")]',
    "<tool_call>\n<function=calc>\n<parameter=expr>\n1+2\n</parameter>\n</function>\n</tool_call>",
)


class LocalRenderer:
    """A Renderer that does the plain kinds itself."""

    def __init__(self, template: LocalTemplate, engine: Renderer, *, max_tokens: int) -> None:
        self._template = template
        self._engine = engine
        self._max_tokens = max_tokens

    async def ids(self, request: ChatRequest, waits: Waits, *, to_generate: bool = True) -> Rendered:
        """See Renderer."""
        if can_render(request):
            ids = render(self._template, request, to_generate=to_generate)
            if ids and len(ids) < self._max_tokens:
                return Rendered(ids=ids)
        return await self._engine.ids(request, waits, to_generate=to_generate)

    async def parse(self, request: ChatRequest, sampled: Sampled, waits: Waits) -> ParsedMessage:
        """See Renderer."""
        if sampled.logprobs is None and can_parse(request):
            return self._template.parse(request, sampled.prompt_ids, sampled.ids)
        return await self._engine.parse(request, sampled, waits)


def render(template: LocalTemplate, request: ChatRequest, *, to_generate: bool) -> list[int] | None:
    """The ids, or None when the template refuses: it may raise anything that Jinja or its own code can."""
    from jinja2 import TemplateError

    try:
        return template.ids(request, generation_prompt=to_generate)
    except (TemplateError, TypeError, ValueError, LookupError, ArithmeticError, RecursionError):
        return None


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
                ours = render(template, request, to_generate=to_generate)
                if not can_render(request) or theirs != ours:
                    _LOGGER.info("rendering here differs from the engine's (probe %d): the engine renders", number)
                    return None
    request = ChatRequest(messages=(_ASK,), tools=_TOOLS)
    prompt = template.encode("<|im_start|>assistant\n")
    for number, ids in enumerate(_sampled(template)):
        theirs_said = await engine.parse(request, Sampled(prompt, ids), waits)
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
