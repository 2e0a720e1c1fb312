"""Puts the ids that were really sampled into the next prompt, so that calls of a conversation merge into one segment.

In: a ChatRequest, the episode's SpliceHistory, a Renderer. Out: a Prompt and the grammar that the request asks for.
The history holds the answers served in one episode. `match` finds the latest assistant message of a new request that
was served here with the same messages before it; `splice` then replaces everything up to that message's end, as
render/answer_end.py finds it, by the stored ids. Where that is not exact (the agent changed a message, the template
drops history) a new segment starts with its reason, and the prompt is the template's own. Ids are never guessed.
Failure: the renderer's.

    rendered up to the message   P' a' <end>\\n            (a' = the answer rendered again, P' likewise)
    rendered in full             P' a' <end>\\n <user>...
    spliced                      P  a  <end>\\n <user>...  (P, a = stored; <end> is added only if it was not sampled)
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from tracegrad.schemas.errors import EngineRefusal
from tracegrad.schemas.ids import CallId
from tracegrad.schemas.reasons import Reason
from tracegrad.schemas.records.calls import SpliceOutcome
from tracegrad.schemas.records.tokens import Ids

from ..api.chat_request import ChatRequest, Message, OtherPart, TextPart, ToolUse
from ..engines.chat_form import engine_fields
from ..engines.engine import RenderedIds, Renderer, Waits
from .answer_end import AnswerEnding, EndOfMessage, PromptRest, rest_after, rest_after_changed
from .normalise import normalised

_ENCODER = msgspec.json.Encoder(order="deterministic")
_BROKEN_TOKEN = re.compile(r"(?<=[<\[\]])(?:\u200d|\\u200d)")


class EarlierCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call as it was sampled and as the agent saw its answer."""

    call_id: CallId
    prompt_ids: Ids
    sampled_ids: Ids
    tool_call_ids: tuple[str, ...]
    is_cut: bool
    """More was sampled than the agent repeats (a stop string, dropped tool calls): its history differs from the ids."""
    recorded_s: float = 0.0
    """When its record was on the log (monotonic)."""
    whole_s: float = 0.0
    """Likewise the last call, up to this one, whose record holds its whole prompt."""


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """What of a request was served before."""

    call: EarlierCall | None
    """The latest served call with equal history; None: nothing to splice."""
    position: int
    """Index of its answer among the messages; -1 without a call."""
    outcome: SpliceOutcome
    """If the splice succeeds; its reason says why a new segment starts even so."""


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """The ids to sample from, and how they continue an earlier call."""

    ids: Ids
    parent: EarlierCall | None
    shared_tokens: int
    outcome: SpliceOutcome
    notes: tuple[str, ...] = ()
    """What was done to its messages for the template (render/normalise.py)."""


class SpliceHistory:
    """The served calls of one episode, found by what was said before them. Not thread-safe."""

    def __init__(self) -> None:
        self._by_conversation: dict[bytes, list[EarlierCall]] = {}
        self._before: set[bytes] = set()
        """Conversations that were asked."""
        self._answers: set[bytes] = set()
        self._minted: set[str] = set()
        self.num_ids = 0
        """Token ids that are held."""

    def remember(
        self, asked: bytes, answer: Message, call: EarlierCall, stop_text: str = "", stops: Sequence[str] = ()
    ) -> list[bytes]:
        """Adds a served answer, in each form in which the agent may repeat it. Returns of each the digest of all that
        was said, as `last_said` gives it of the next request.

        Args:
            asked: the digest of the conversation that it answers.
            answer: the assistant message as the agent got it.
            stop_text: what ended it, as CallRecord.stop_text.
            stops: the stop strings that it was asked with.
        """
        keys = []
        for form, of_form in _forms(answer, call, stop_text, stops):
            said = _said(form)
            keys.append(_extended(asked, said))
            self._by_conversation.setdefault(keys[-1], []).append(of_form)
            self._answers.add(said)
        self._before.add(asked)
        self._minted.update(call.tool_call_ids)
        self.num_ids += len(call.prompt_ids) + len(call.sampled_ids)
        return keys

    def match(self, context: Any, messages: Sequence[Message]) -> Match:
        """The latest assistant message of these that was served here after equal messages."""
        if not self._by_conversation:
            return Match(call=None, position=-1, outcome=SpliceOutcome(kind="first"))
        keys = _conversations(context, messages)
        spoken = [i for i, message in enumerate(messages) if message.role == "assistant"]
        reason = "" if spoken else Reason.NEW_CONVERSATION
        for position in reversed(spoken):
            call = self._served(keys[position + 1], messages[position])
            if call is not None and call.is_cut:
                reason = reason or Reason.ANSWER_CUT
            elif call is not None:
                outcome = SpliceOutcome(kind="new_segment" if reason else "extended", reason=reason)
                return Match(call=call, position=position, outcome=outcome)
            reason = reason or self._why_unserved(keys[position], messages[position])
        return Match(call=None, position=-1, outcome=SpliceOutcome(kind="new_segment", reason=reason))

    def _served(self, key: bytes, message: Message) -> EarlierCall | None:
        """Equal answers to equal messages differ in their minted ids, or else the newest is meant."""
        served = self._by_conversation.get(key, [])
        ids = tuple(call.id for call in message.tool_calls)
        return next((call for call in served if call.tool_call_ids == ids), served[-1] if served else None)

    def _why_unserved(self, key_before: bytes, message: Message) -> str:
        if _said(message) in self._answers:
            return Reason.HISTORY_CHANGED
        if key_before in self._before or any(call.id in self._minted for call in message.tool_calls):
            return Reason.ANSWER_CHANGED
        return Reason.NO_MATCH


def _forms(
    answer: Message, call: EarlierCall, stop_text: str, stops: Sequence[str]
) -> Iterator[tuple[Message, EarlierCall]]:
    """An answer as it was sent, and with the stop string put back that was cut off, which some agents strip
    besides; each with its call, which is cut where more was sampled than the form says. White space around a text,
    which templates trim, does not count."""
    if not call.is_cut or not stop_text or answer.tool_calls:
        yield answer, call
        return
    said = answer.content if isinstance(answer.content, str) else ""
    texts = [said, *(f"{said}{stop}" for stop in stops if stop_text.startswith(stop))]
    for form in dict.fromkeys(form for text in texts for form in (text, text.strip())):
        is_cut = form.strip() != f"{said}{stop_text}".strip()
        yield msgspec.structs.replace(answer, content=form), msgspec.structs.replace(call, is_cut=is_cut)


def _conversations(context: Any, messages: Sequence[Message]) -> list[bytes]:
    """A digest of the conversation before each message, and of the whole."""
    keys = [hashlib.sha256(_ENCODER.encode(context)).digest()]
    for message in messages:
        keys.append(_extended(keys[-1], _said(message)))
    return keys


def _extended(conversation: bytes, said: bytes) -> bytes:
    """A chain: with the digest of what was said before, an answer alone gives the next one."""
    return hashlib.sha256(conversation + said).digest()


def conversation_digest(context: Any, messages: Sequence[Message]) -> bytes:
    """Of all that a request says, and of what else decides its prompt (tools, template arguments)."""
    return _conversations(context, messages)[-1]


def last_said(context: Any, messages: Sequence[Message]) -> tuple[bytes, tuple[str, ...]] | None:
    """The digest of a conversation up to its last answer, and that answer's tool-call ids; None: it has no answer."""
    position = max((i for i, message in enumerate(messages) if message.role == "assistant"), default=None)
    if position is None:
        return None
    ids = tuple(call.id for call in messages[position].tool_calls)
    return _conversations(context, messages[: position + 1])[-1], ids


def _said(message: Message) -> bytes:
    """What a message says, alike for all frameworks' ways to write it; ids of tool calls do not count."""
    parts: list[Any] = [message.role, _content(message.content)]
    if message.role == "assistant":
        parts[1] = _whole_tokens(parts[1]) if isinstance(parts[1], str) else parts[1]
        parts.append([[call.name, _arguments(_whole_tokens(call.arguments))] for call in message.tool_calls])
    elif message.name is not None:
        parts.append(message.name)
    return hashlib.sha256(_ENCODER.encode(parts)).digest()


def _content(content: str | tuple[TextPart | OtherPart, ...] | None) -> Any:
    """None, an empty text and no parts are alike, as are a text and its only part."""
    if isinstance(content, tuple) and len(content) == 1 and isinstance(content[0], TextPart):
        return content[0].text
    return content or ""


def _whole_tokens(text: str) -> str:
    """pydantic-ai sends special tokens that a model wrote back with an invisible character behind their first one."""
    return _BROKEN_TOKEN.sub("", text) if "\u200d" in text or "\\u200d" in text else text


def _arguments(arguments: str) -> Any:
    """Frameworks write JSON arguments anew, so they are compared as values; other text as it is."""
    try:
        value = [json.loads(arguments or "{}", parse_float=_number)]
        _ENCODER.encode(value)
        return value
    except (ValueError, OverflowError, RecursionError):
        return arguments


def _number(text: str) -> float:
    """JavaScript writes 1.0 as 1."""
    value = float(text)
    return int(value) if value.is_integer() and abs(value) <= 2**53 else value


def splice(match: Match, in_full: Sequence[int], rest: PromptRest) -> Prompt:
    """The prompt with the stored ids in place, or the template's own where what follows them cannot be told.

    Args:
        match: with a call.
        in_full: all messages rendered.
        rest: what follows that call's answer.
    """
    call = match.call
    assert call is not None
    if rest.reason:
        return whole(in_full, SpliceOutcome(kind="new_segment", reason=rest.reason))
    ids = np.concatenate([call.prompt_ids, call.sampled_ids, np.asarray(rest.ids, np.int32)])
    shared = len(call.prompt_ids) + len(call.sampled_ids)
    return Prompt(ids=ids, parent=call, shared_tokens=shared, outcome=match.outcome)


def whole(ids: Sequence[int], outcome: SpliceOutcome) -> Prompt:
    """The template's own prompt, continuing nothing."""
    return Prompt(ids=np.asarray(ids, np.int32), parent=None, shared_tokens=0, outcome=outcome)


def splice_context(request: ChatRequest) -> list[Any]:
    """What besides the messages decides the rendered prompt; a grammar or a forced tool does not."""
    fields = engine_fields(request, with_grammar=False)
    return [fields, request.tools, request.tool_choice is ToolUse.NONE]


async def build_prompt(
    renderer: Renderer, ends: EndOfMessage, history: SpliceHistory, request: ChatRequest, waits: Waits
) -> tuple[Prompt, Any]:
    """The prompt of a request with the stored ids spliced in, and the grammar it asks for."""
    match = history.match(splice_context(request), request.messages)

    async def rendered(num_messages: int | None = None) -> tuple[RenderedIds, tuple[str, ...]]:
        part = msgspec.structs.replace(request, messages=request.messages[:num_messages])
        messages, done = await normalised(part, ends.refused, renderer, waits)
        part = msgspec.structs.replace(part, messages=messages)
        return await renderer.ids(part, waits, to_generate=num_messages is None), done

    if match.call is None:
        full, done = await rendered()
        prompt = whole(full.ids, match.outcome)
    else:
        sampled = match.call.sampled_ids[-1:].tolist()
        ending = AnswerEnding(await ends.find(renderer, waits), sampled[0] if sampled else None, ends.terminals)
        try:
            (full, done), (up_to, _) = await asyncio.gather(rendered(), rendered(match.position + 1))
            rest = rest_after(up_to.ids, full.ids, ending)
            if rest is None:
                before, _ = await rendered(match.position)
                rest = rest_after_changed(before.ids, up_to.ids, full.ids, ending)
        except EngineRefusal:
            # Of the whole, or of a part, which some templates refuse alone.
            (full, done), rest = await rendered(), PromptRest(reason=Reason.PART_REFUSED)
        prompt = splice(match, full.ids, rest)
    return msgspec.structs.replace(prompt, notes=done), full.grammar
