"""An episode as a conversation: what each call read, what was sampled, which tools ran, what it was worth.

In: an episode's record, the text of tokens where a tokenizer is at hand, what its group's record says of its calls.
Out: a `CallTranscript` each call. Pure. Invariants: texts are what the policy read and wrote, special tokens too, never
rendered anew; a mask, a return or an advantage is shown where a record tells it, and nowhere else; what is long is cut
and says so. Failure: none; tokens that do not fit together are shown as numbers, a prompt that does not hang together
not at all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from tracegrad.schemas.errors import RecordError
from tracegrad.schemas.records.calls import ToolCall
from tracegrad.schemas.records.episodes import Episode, EpisodeCall, ToolExecution
from tracegrad.schemas.records.tokens import ids_from_bytes, logprobs_from_bytes
from tracegrad.schemas.text import decode_json

from .records import CallCredit

Pieces = Callable[[Sequence[int]], list[str]]
"""Token ids to the text of each."""

MAX_TEXT = 4_000
"""Characters of a text, unless all is asked for."""
MAX_TOKENS = 600
"""Tokens of a call, likewise; and of an episode EPISODE_TOKENS, beyond which its calls are shown by their texts."""
EPISODE_TOKENS = 12_000
_FIRST_CALLS = 60
_MESSAGES = (
    re.compile(r"<\|im_start\|>(?P<role>[a-z_]{1,20})\n(?P<text>.*?)(?:<\|im_end\|>\n?|$)", re.DOTALL),
    re.compile(
        r"<\|start_header_id\|>(?P<role>[a-z_]{1,20})<\|end_header_id\|>\n\n(?P<text>.*?)(?:<\|eot_id\|>|$)", re.DOTALL
    ),
)
"""How chat templates of these families set messages apart; a prompt of another one is shown whole."""
_LEVELS = ((-0.01, 0), (-0.1, 1), (-0.5, 2), (-1.0, 3), (-2.0, 4), (-4.0, 5))
_SURPRISING = 6


class Message(NamedTuple):
    """A part of a prompt."""

    role: str
    text: str
    num_cut: int = 0
    """Characters that are not shown."""


class Token(NamedTuple):
    """A sampled token."""

    text: str
    logprob: float
    level: int
    """How surprising it was: 0, all but certain, to 6."""
    is_trained: bool | None
    """None: no record tells."""


class ToolUse(NamedTuple):
    """A tool that was asked for, or ran, or both."""

    name: str
    arguments: str
    run: ToolExecution | None
    """None: no span of it is known."""
    result: str
    num_cut: int
    is_unparsable: bool = False
    is_repeated: bool = False


class CallTranscript(NamedTuple):
    """One call."""

    number: int
    """From 1, in the episode's order."""
    call: EpisodeCall
    prompt: tuple[Message, ...]
    """What it read that no call before had read or written; empty where no tokenizer is at hand."""
    content: str
    num_cut: int
    tools: tuple[ToolUse, ...]
    tokens: tuple[Token, ...]
    """Empty where no tokenizer is at hand."""
    took_s: float | None
    trained: CallCredit | None
    shade: int
    """The advantage in comparison with the greatest of those shown with it: -4 to 4."""


def call_transcripts(
    episode: Episode,
    pieces: Pieces | None = None,
    trained: Mapping[str, CallCredit] | None = None,
    *,
    greatest: float | None = None,
    is_whole: bool = False,
) -> list[CallTranscript]:
    """The calls of an episode.

    Args:
        pieces: the policy's tokenizer; None: texts are the record's, without prompts.
        trained: what its group's record says, by call.
        greatest: advantage that is shaded most; None: the greatest here.
        is_whole: nothing is cut, and all calls are shown, not the first ones alone.
    """
    trained = trained or {}
    advantages = [one.advantage for one in trained.values() if one.advantage is not None]
    most = max(map(abs, advantages), default=0.0) if greatest is None else greatest
    calls = episode.calls if is_whole else episode.calls[:_FIRST_CALLS]
    found: list[CallTranscript] = []
    left = EPISODE_TOKENS
    for number, call in enumerate(calls, start=1):
        most_tokens = len(call.sampled_ids) if is_whole else min(MAX_TOKENS, left)
        found.append(_call_transcript(number, call, pieces, trained.get(call.call_id), most, most_tokens, is_whole))
        left -= len(found[-1].tokens)
    return found


def _call_transcript(
    number: int,
    call: EpisodeCall,
    pieces: Pieces | None,
    trained: CallCredit | None,
    most: float,
    most_tokens: int,
    is_whole: bool,
) -> CallTranscript:
    content, num_cut = _cut(call.content or "", is_whole)
    took = call.ended_at_ns - call.started_at_ns
    advantage = trained.advantage if trained is not None else None
    return CallTranscript(
        number=number,
        call=call,
        prompt=tuple(_prompt(call, pieces, is_whole)) if pieces is not None else (),
        content=content,
        num_cut=num_cut,
        tools=tuple(_tools(call, is_whole)),
        tokens=_tokens(call, pieces, trained, most_tokens) if pieces is not None else (),
        took_s=took / 1e9 if took > 0 and call.started_at_ns else None,
        trained=trained,
        shade=round(4 * advantage / most) if advantage is not None and most > 0 else 0,
    )


def _cut(text: str, is_whole: bool) -> tuple[str, int]:
    if is_whole or len(text) <= MAX_TEXT:
        return text, 0
    return text[:MAX_TEXT], len(text) - MAX_TEXT


def _prompt(call: EpisodeCall, pieces: Pieces, is_whole: bool) -> Iterator[Message]:
    """What the call's prompt has beyond the call before it."""
    try:
        text = "".join(pieces(ids_from_bytes(call.suffix_ids).tolist()))
    except RecordError:
        return
    for form in _MESSAGES:
        found = list(form.finditer(text))
        if found:
            for one in found:
                # The last one is the opening of the answer.
                if one["text"].strip() or one is not found[-1]:
                    yield Message(one["role"], *_cut(one["text"], is_whole))
            return
    if text.strip():
        yield Message("prompt", *_cut(text, is_whole))


def _tokens(call: EpisodeCall, pieces: Pieces, trained: CallCredit | None, most: int) -> tuple[Token, ...]:
    try:
        ids, logprobs = ids_from_bytes(call.sampled_ids).tolist(), logprobs_from_bytes(call.logprobs).tolist()
    except RecordError:
        return ()
    ids = ids[:most]
    texts = pieces(ids)
    mask = trained.mask if trained is not None and len(trained.mask) >= len(ids) else None
    return tuple(
        Token(text, logprob, _level(logprob), bool(mask[place]) if mask is not None else None)
        for place, (text, logprob) in enumerate(zip(texts, logprobs, strict=False))
    )


def _level(logprob: float) -> int:
    return next((level for bound, level in _LEVELS if logprob >= bound), _SURPRISING)


def _tools(call: EpisodeCall, is_whole: bool) -> Iterator[ToolUse]:
    """What it asked for, each with its run; then what ran unasked."""
    runs: dict[str, list[ToolExecution]] = {}
    for one in call.tools:
        runs.setdefault(one.tool_call_id or "", []).append(one)
    for asked in call.tool_calls:
        run = runs[asked.id].pop(0) if runs.get(asked.id) else None
        yield _use(asked.name, _pretty(asked), run, is_whole, call, asked.id)
    for one in chain.from_iterable(runs.values()):
        yield _use(one.name, "", one, is_whole, call, "")


def _use(
    name: str, arguments: str, run: ToolExecution | None, is_whole: bool, call: EpisodeCall, asked: str
) -> ToolUse:
    result, num_cut = _cut((run.result if run is not None else None) or "", is_whole)
    arguments, more = _cut(arguments, is_whole)
    return ToolUse(
        name,
        arguments + (f" .. ({more:,} more)" if more else ""),
        run,
        result,
        num_cut,
        asked in call.unparsable,
        asked in call.repeated,
    )


def _pretty(asked: ToolCall) -> str:
    """Short arguments as in a call, `expr = "4*5"`; else as they were sampled."""
    try:
        found = decode_json(asked.arguments)
    except (ValueError, RecursionError):
        return asked.arguments
    if not isinstance(found, dict) or len(asked.arguments) > MAX_TEXT:
        return asked.arguments
    return ", ".join(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in found.items())
