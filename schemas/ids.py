"""Identities: how a run, a group, a rollout, an attempt and an episode are named, and what contains what.

    run hash      8 hex   sha256 of the run's name and creation time
    group id     24 hex   run hash + 16 hex
    rollout id   28 hex   run hash + 20 hex
    attempt id    4 hex   random, drawn by the runner
    key          28 or 32 hex   of a conversation, by which all that belongs to it meets: the rollout id, else
                          sha256(conversation id)[:32], else the trace id
    call id      chatcmpl- + key + 9 random   drawn by the LLM gateway; the key as 22 digits of base 62. On the wire it
                          bears the prefix of the API that was asked (WirePrefix)
    tool call    call_ + key + 10 random + 3 counted in its answer      likewise: 40 characters, the most that
                          OpenAI's clients take
    episode id   32 hex   rollout id + attempt id = the trace id of an attempt that the runner made;
                          without a rollout, the key; of a conversation that went on after its episode had
                          closed, a hash of the key and the first call

So each span and each call of a runner-made attempt names its episode by its trace id alone, and whatever repeats a
minted id (a span of another trace, a log, feedback) finds its conversation without an index. Minted ids are names, not
secrets: their random part has to differ within one key only. Ids are joined, drawn and taken apart here only.
"""

from __future__ import annotations

import functools
import hashlib
import re
import secrets
from collections.abc import Callable, Container
from enum import StrEnum
from typing import NewType

RunName = NewType("RunName", str)
RunHash = NewType("RunHash", str)
GroupId = NewType("GroupId", str)
RolloutId = NewType("RolloutId", str)
AttemptId = NewType("AttemptId", str)
EpisodeId = NewType("EpisodeId", str)
TraceId = NewType("TraceId", str)
CallId = NewType("CallId", str)

GIVEN_UP_ATTEMPT = AttemptId("0000")
"""The attempt of the episode that stands for a rollout given up before any attempt was made; never drawn."""
_PREFIX, _CALL_DIGITS, _TOOL_DIGITS = (
    r"(?:chatcmpl-|cmpl-|msg_|resp_)",
    r"(?:[0-9A-Za-z]{31}|[0-9a-f]{32})",
    r"[0-9A-Za-z]{35}",
)
CALL_ID = f"{_PREFIX}{_CALL_DIGITS}(?![0-9A-Za-z])"
"""A pattern of what the agent sees as the id of an answer, whatever API it speaks, and its spans repeat; the form is
peculiar enough to be found in a span's text. The second form has no key: older records hold it."""
TOOL_CALL_ID = f"call_{_TOOL_DIGITS}(?![0-9A-Za-z])"
"""Likewise, of a tool call."""


class WirePrefix(StrEnum):
    """What an API's clients expect an answer's id to begin with."""

    CHAT = "chatcmpl-"
    """Chat completions; also of the canonical call id, as records hold it."""
    MESSAGE = "msg_"
    """Anthropic Messages."""
    RESPONSE = "resp_"
    """OpenAI Responses."""


_RUN_NAME = re.compile(r"[a-z0-9-]{1,40}")
_RUN_HASH = re.compile(r"[0-9a-f]{8}")
_ROLLOUT_ID = re.compile(r"[0-9a-f]{28}")
_ATTEMPT_ID = re.compile(r"[0-9a-f]{4}")
_TRACE_ID = re.compile(r"[0-9a-f]{32}")
_LIGHTNING = re.compile(r"(?:ro|at)-[0-9A-Za-z_-]{1,60}")
_MINTED = re.compile(f"{_PREFIX}({_CALL_DIGITS})|call_({_TOOL_DIGITS})")
_ROLLOUT_DIGITS, _TRACE_DIGITS, _KEY_DIGITS = 28, 32, 22
_INDEX_DIGITS = 3
"""Of a tool call's place in its answer: more than any context could hold."""
_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_CHAT = WirePrefix.CHAT.value
_LONG = 16**_TRACE_DIGITS
"""Keys of 28 digits are counted on from here, so that both kinds and their leading zeros come back."""


def _digest(*parts: object) -> str:
    return hashlib.sha256("\0".join(str(part) for part in parts).encode()).hexdigest()


def run_hash(name: RunName, created_at: str) -> RunHash:
    """The 8 hex characters that begin every id of a run; `created_at` is its ISO 8601 creation time."""
    return RunHash(_digest("run", name, created_at)[:8])


def group_id(run: RunHash, purpose: str, index: int) -> GroupId:
    """The id of the index-th group of a purpose; the same arguments give the same id after a restart."""
    return GroupId(run + _digest("group", run, purpose, index)[:16])


def rollout_id(group: GroupId, member: int) -> RolloutId:
    """The id of the member-th rollout of a group."""
    return RolloutId(run_hash_of(group) + _digest("rollout", group, member)[:20])


def new_attempt() -> AttemptId:
    """Drawn for an attempt that begins; never GIVEN_UP_ATTEMPT."""
    return AttemptId(f"{1 + secrets.randbelow(0xFFFF):04x}")


def conversation_key(conversation: str) -> str:
    """The key of a conversation that bears an id of its own; the id itself, maybe a person's, does not come back."""
    return hashlib.sha256(conversation.encode("utf-8", "surrogatepass")).hexdigest()[:_TRACE_DIGITS]


def key_of(rollout: str | None, conversation: str | None, trace: str | None) -> str:
    """The key of an episode, by what is known of it.

    Args:
        conversation: its key (`conversation_key`), not its id.
    """
    return rollout or conversation or trace or ""


def told_call_id(trace: str, span: str) -> CallId:
    """Of a call that a span tells, which has no id of its provider's."""
    return CallId(f"span-{trace}-{span}")


def new_call(key: str, draw: Callable[[int], int] = secrets.randbelow) -> CallId:
    """Drawn for an answer; matches CALL_ID, and `key_in` reads the key back. `draw(n)` gives a number below n."""
    return CallId(f"{WirePrefix.CHAT}{_key_digits(key)}{_drawn(9, draw)}")


def new_tool_call(key: str, draw: Callable[[int], int] = secrets.randbelow) -> str:
    """Drawn for the first tool call of an answer; matches TOOL_CALL_ID, and `key_in` reads the key back."""
    return f"call_{_key_digits(key)}{_drawn(13 - _INDEX_DIGITS, draw)}{'0' * _INDEX_DIGITS}"


def next_tool_call(before: str) -> str:
    """For the tool call that follows one in the same answer; `share_answer` tells that they belong together."""
    stem, index = before[:-_INDEX_DIGITS], _number(before[-_INDEX_DIGITS:])
    return stem + _base62(index + 1, _INDEX_DIGITS)


def share_answer(one: str, other: str) -> bool:
    """Whether two tool calls' ids were minted for one answer."""
    are_minted = re.fullmatch(TOOL_CALL_ID, one) and re.fullmatch(TOOL_CALL_ID, other)
    return are_minted is not None and one[:-_INDEX_DIGITS] == other[:-_INDEX_DIGITS]


def wire_id(call: CallId, prefix: WirePrefix) -> str:
    """How an API's client sees a call's id; `canonical_call` reads it back."""
    return prefix + call.removeprefix(WirePrefix.CHAT)


def canonical_call(text: str) -> CallId | None:
    """The call id as records hold it, of an id as some API's client saw it; None: no gateway minted it."""
    match = _MINTED.fullmatch(text)
    return CallId(_CHAT + match[1]) if match and match[1] else None


def key_in(minted: str) -> str | None:
    """The key that the id of an answer or of a tool call carries; None: it carries none."""
    match = _MINTED.fullmatch(minted)
    digits = (match[1] or match[2]) if match else ""
    return _key_of_digits(digits[:_KEY_DIGITS]) if digits and len(digits) != _TRACE_DIGITS else None


@functools.lru_cache(maxsize=1024)
def _key_of_digits(digits: str) -> str | None:
    """All ids of a conversation have its key, and spans repeat each of them."""
    number = _number(digits)
    if number >= _LONG + 16**_ROLLOUT_DIGITS:
        return None
    return f"{number:032x}" if number < _LONG else f"{number - _LONG:028x}"


def _key_digits(key: str) -> str:
    if not _ROLLOUT_ID.fullmatch(key) and not _TRACE_ID.fullmatch(key):
        raise ValueError(f"expected a key of 28 or 32 hex characters, got {key[:60]!r}")
    return _base62(int(key, 16) + (_LONG if len(key) == _ROLLOUT_DIGITS else 0), _KEY_DIGITS)


def _drawn(width: int, draw: Callable[[int], int]) -> str:
    return _base62(draw(62**width), width)


def _number(digits: str) -> int:
    return functools.reduce(lambda number, digit: number * 62 + _DIGITS.index(digit), digits, 0)


def _base62(number: int, width: int) -> str:
    digits = []
    for _ in range(width):
        number, digit = divmod(number, 62)
        digits.append(_DIGITS[digit])
    return "".join(reversed(digits))


def episode_id(rollout: str, attempt: str) -> EpisodeId:
    """The episode of an attempt, which is also its trace id."""
    return EpisodeId(rollout + attempt)


def stretch_id(key: str, first_call: str) -> EpisodeId:
    """A later episode of a captured conversation, after an earlier one has closed."""
    return EpisodeId(_digest(key, first_call)[:_TRACE_DIGITS])


def waiting_id(key: str) -> EpisodeId:
    """What is here of a later episode of a captured conversation before its first call is."""
    return stretch_id(key, "")


def split_episode_id(episode: str) -> tuple[RolloutId, AttemptId]:
    """The rollout and attempt of an episode that has a rollout."""
    return RolloutId(episode[:28]), AttemptId(episode[28:])


def run_hash_of(identifier: str) -> RunHash:
    """The run's hash in a group, rollout or episode id."""
    return RunHash(identifier[:8])


def attempt_of(episode: str, runs: Container[str]) -> tuple[RolloutId, AttemptId] | None:
    """The rollout and attempt that an episode or trace id names; None unless it is of one of these runs."""
    # A captured trace takes a run's hash for its first 8 digits once in four thousand million.
    is_ours = run_hash_of(episode) in runs and _TRACE_ID.fullmatch(episode)
    return split_episode_id(episode) if is_ours else None


def _parse(pattern: re.Pattern[str], text: str, what: str) -> str:
    if not pattern.fullmatch(text):
        raise ValueError(f"expected {what} matching {pattern.pattern}, got {text[:60]!r}")
    return text


def parse_run_name(text: str) -> RunName:
    """Raises ValueError unless the text can name a run."""
    return RunName(_parse(_RUN_NAME, text, "a run name"))


def parse_run_hash(text: str) -> RunHash:
    """Raises ValueError unless the text is a run's hash."""
    return RunHash(_parse(_RUN_HASH, text, "a run hash"))


def parse_rollout_id(text: str) -> RolloutId:
    """Raises ValueError unless the text is a rollout id."""
    return RolloutId(_parse(_ROLLOUT_ID, text, "a rollout id"))


def parse_attempt_id(text: str) -> AttemptId:
    """Raises ValueError unless the text is an attempt id."""
    return AttemptId(_parse(_ATTEMPT_ID, text, "an attempt id"))


def is_rollout(key: str) -> bool:
    """Whether a key is a rollout's."""
    return _ROLLOUT_ID.fullmatch(key) is not None


def is_lightning(text: str) -> bool:
    """Whether a text is an id of Agent Lightning's (`ro-` a rollout, `at-` an attempt): a name, and none of ours."""
    return _LIGHTNING.fullmatch(text) is not None


def parse_trace_id(text: str) -> TraceId:
    """Raises ValueError unless the text is a trace id in hex."""
    return TraceId(_parse(_TRACE_ID, text, "a trace id"))
