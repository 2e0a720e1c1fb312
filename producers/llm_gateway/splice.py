"""Puts the ids that were really sampled into the next prompt, so that turns of a conversation merge. Pure.

A `SpliceHistory` holds the turns served in one episode. `match` finds the latest assistant turn of a new request that
was served here with the same messages before it; `splice` then replaces everything up to that turn's end by the stored
ids. Where that is not exact (the agent changed a turn, the template drops history) a new segment starts with its
reason, and the prompt is the template's own. Ids are never guessed.

    rendered up to the turn   P' a' <end>\\n            (a' = the answer rendered again, P' likewise)
    rendered in full          P' a' <end>\\n <user>...
    spliced                   P  a  <end>\\n <user>...  (P, a = stored; <end> is added only if it was not sampled)
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tracegrad.schemas.ids import CallId
from tracegrad.schemas.records.calls import SpliceOutcome

from .api.chat_request import Message, OtherPart, TextPart

__all__ = ["Match", "Prompt", "ServedTurn", "SpliceHistory", "end_of_turn", "splice", "whole"]

_ENCODER = msgspec.json.Encoder(order="deterministic")


class ServedTurn(msgspec.Struct, frozen=True, kw_only=True):
    """One answer as it was sampled and as the agent saw it."""

    call_id: CallId
    prompt_ids: npt.NDArray[np.int32]
    sampled_ids: npt.NDArray[np.int32]
    tool_call_ids: tuple[str, ...]
    is_cut: bool
    """The agent saw less than was sampled (a stop string, dropped tool calls): its history differs from the ids."""


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """What of a request was served before."""

    turn: ServedTurn | None
    """The latest served turn with equal history; None: nothing to splice."""
    position: int
    """Index of that assistant message; -1 without a turn."""
    kind: str
    """SpliceOutcome.kind if the splice succeeds."""
    reason: str
    """Why a new segment starts even so; empty otherwise."""


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """The ids to sample from, and how they continue an earlier call."""

    ids: npt.NDArray[np.int32]
    parent: ServedTurn | None
    shared_tokens: int
    outcome: SpliceOutcome


class SpliceHistory:
    """The served turns of one episode, found by what was said before them. Not thread-safe."""

    def __init__(self) -> None:
        self._by_conversation: dict[bytes, list[ServedTurn]] = {}
        self._before: set[bytes] = set()
        """Conversations that were asked."""
        self._answers: set[bytes] = set()
        self._minted: set[str] = set()
        self.num_ids = 0
        """Token ids that are held."""

    def remember(self, context: Any, messages: Sequence[Message], answer: Message, turn: ServedTurn) -> None:
        """Adds a served answer.

        Args:
            context: what else decides the prompt (tools, template arguments).
            messages: the request's messages.
            answer: the assistant message as the agent got it.
        """
        keys = _conversations(context, [*messages, answer])
        self._by_conversation.setdefault(keys[-1], []).append(turn)
        self._before.add(keys[-2])
        self._answers.add(_said(answer))
        self._minted.update(turn.tool_call_ids)
        self.num_ids += len(turn.prompt_ids) + len(turn.sampled_ids)

    def match(self, context: Any, messages: Sequence[Message]) -> Match:
        """The latest assistant turn of these messages that was served here after equal messages."""
        if not self._by_conversation:
            return Match(turn=None, position=-1, kind="first", reason="")
        keys = _conversations(context, messages)
        spoken = [i for i, message in enumerate(messages) if message.role == "assistant"]
        reason = "" if spoken else "new_conversation"
        for position in reversed(spoken):
            turn = self._served(keys[position + 1], messages[position])
            if turn is not None and turn.is_cut:
                reason = reason or "answer_cut"
            elif turn is not None:
                kind = "new_segment" if reason else "extended"
                return Match(turn=turn, position=position, kind=kind, reason=reason)
            reason = reason or self._why_unserved(keys[position], messages[position])
        return Match(turn=None, position=-1, kind="new_segment", reason=reason)

    def _served(self, key: bytes, message: Message) -> ServedTurn | None:
        """Equal answers to equal messages differ in their minted ids, or else the newest is meant."""
        turns = self._by_conversation.get(key, [])
        ids = tuple(call.id for call in message.tool_calls)
        return next((turn for turn in turns if turn.tool_call_ids == ids), turns[-1] if turns else None)

    def _why_unserved(self, key_before: bytes, message: Message) -> str:
        if _said(message) in self._answers:
            return "history_changed"
        if key_before in self._before or any(call.id in self._minted for call in message.tool_calls):
            return "turn_changed"
        return "no_match"


def _conversations(context: Any, messages: Sequence[Message]) -> list[bytes]:
    """A digest of the conversation before each message, and of the whole."""
    digest = hashlib.sha256(_ENCODER.encode(context))
    keys = [digest.digest()]
    for message in messages:
        digest.update(_said(message))
        keys.append(digest.digest())
    return keys


def _said(message: Message) -> bytes:
    """What a message says, alike for all frameworks' ways to write it; ids of tool calls do not count."""
    parts: list[Any] = [message.role, _content(message.content)]
    if message.role == "assistant":
        parts.append([[call.name, _arguments(call.arguments)] for call in message.tool_calls])
    elif message.name is not None:
        parts.append(message.name)
    return hashlib.sha256(_ENCODER.encode(parts)).digest()


def _content(content: str | tuple[TextPart | OtherPart, ...] | None) -> Any:
    """None, an empty text and no parts are alike, as are a text and its only part."""
    if isinstance(content, tuple) and len(content) == 1 and isinstance(content[0], TextPart):
        return content[0].text
    return content or ""


def _arguments(arguments: str) -> Any:
    """Frameworks write JSON arguments anew, so they are compared as values; other text as it is."""
    try:
        value = [json.loads(arguments)]
        _ENCODER.encode(value)
        return value
    except (ValueError, OverflowError, RecursionError):
        return arguments


def splice(match: Match, up_to_turn: Sequence[int], in_full: Sequence[int], end_of_turn: int | None) -> Prompt:
    """The prompt with the stored ids in place.

    Args:
        match: with a turn.
        up_to_turn: the messages up to that turn, rendered without a generation prompt.
        in_full: all messages rendered.
        end_of_turn: the token that ends an assistant turn in this template; None: there is none.
    """
    turn = match.turn
    assert turn is not None
    if end_of_turn is None:
        return whole(in_full, reason="no_end_of_turn")
    cut = _last(up_to_turn, end_of_turn) + 1
    if cut == 0:
        return whole(in_full, reason="no_end_of_turn")
    if list(in_full[:cut]) != list(up_to_turn[:cut]):
        return whole(in_full, reason="history_dropped")
    shared = len(turn.prompt_ids) + len(turn.sampled_ids)
    was_sampled = len(turn.sampled_ids) > 0 and turn.sampled_ids[-1] == end_of_turn
    rest = [] if was_sampled else [end_of_turn]
    ids = np.concatenate([turn.prompt_ids, turn.sampled_ids, np.asarray([*rest, *in_full[cut:]], np.int32)])
    outcome = SpliceOutcome(kind=match.kind, reason=match.reason)
    return Prompt(ids=ids, parent=turn, shared_tokens=shared, outcome=outcome)


def whole(ids: Sequence[int], *, reason: str = "", kind: str = "new_segment") -> Prompt:
    """The template's own prompt, continuing nothing."""
    outcome = SpliceOutcome(kind=kind, reason=reason)
    return Prompt(ids=np.asarray(ids, np.int32), parent=None, shared_tokens=0, outcome=outcome)


def _last(ids: Sequence[int], token: int) -> int:
    """Index of the last occurrence, or -1."""
    return next((i for i in range(len(ids) - 1, -1, -1) if ids[i] == token), -1)


def end_of_turn(one: Sequence[int], other: Sequence[int], terminals: Sequence[int] = ()) -> int | None:
    """The end-of-turn token, from the same conversation rendered with two answers that differ in their last letter.

    Args:
        terminals: tokens that ended sampled answers; one of them in the common tail is preferred.
    """
    length = 0
    while length < min(len(one), len(other)) and one[-1 - length] == other[-1 - length]:
        length += 1
    tail = list(one[len(one) - length :])
    return next((token for token in tail if token in terminals), tail[0] if tail else None)
