"""Of what a record was made, told in its headers: positions differ between runs, and equal content is equal bytes.

    episode_events, episode_scores   tracegrad.origin    Parts
    episodes                         tracegrad.made_of   MadeOf: enough to fold it again, whatever the body holds
    transitions                      tracegrad.made_of   GroupMadeOf

Raw topics go by their names in the registry, so that a topic that is renamed, or copied to another cluster, is found.
Invariant: a header has at most MAX_BYTES, and says what it leaves out. On failure: a header that is none of these is
read as absent; nothing raises.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from functools import cache
from typing import Annotated, Any, TypeVar

import msgspec

from ..topics import Topic
from .protocol import Headers

ORIGIN_HEADER = "tracegrad.origin"
MADE_OF_HEADER = "tracegrad.made_of"
MAX_BYTES = 48 * 1024
"""Of one header: a message has 64 KiB beside its value."""
_Offset = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Ranges = list[tuple[_Offset, _Offset]]
"""Offsets [begin, end), ascending, none touching the next."""
Positions = dict[str, Ranges]
"""Place (`place_of`) -> offsets."""
Parts = dict[str, Positions]
"""The key that the facts of these raw records bore when normalize made them -> where the records lie. One record may
hold facts of several keys: an episode's own, or its conversation's, and those of traces that were forwarded to it."""


class MadeOf(msgspec.Struct, frozen=True, kw_only=True):
    """An episode. Example: MadeOf(id="7c..", key="7c..", group="7c..", closed_by="complete", parts={"7c..": {..}})."""

    id: str
    key: str
    """Of a captured one that of its conversation, else the id again."""
    group: str
    """The key of its record: its group, else its conversation."""
    closed_by: str
    """As in Episode."""
    revision: int = 0
    """0: as it was closed first."""
    parts: Parts = {}
    gap: int = 1
    """Ranges that lie nearer to each other than this are told as one; 1: exact. Beyond MAX_BYTES it grows until they
    fit: what lies between two records of one key is another key's, or came late."""
    num_omitted: int = 0
    """Keys whose positions do not fit even so, the last by name."""


class EpisodeRef(msgspec.Struct, frozen=True, array_like=True):
    """One record of `episodes`."""

    id: str
    revision: int
    sha256: str
    """Of its bytes."""


class GroupMadeOf(msgspec.Struct, frozen=True, kw_only=True):
    """A group of `transitions`."""

    group: str
    episodes: tuple[EpisodeRef, ...] = ()
    """By member; a member whose rollout left no record stands for none."""
    num_omitted: int = 0
    """Those that do not fit, the last."""
    feedback: Positions = {}
    """On `rewards`: what was said of it behind its close."""


M = TypeVar("M", MadeOf, GroupMadeOf)
_ENCODER = msgspec.json.Encoder(order="deterministic")


def place_of(topic: Topic, partition: int) -> str:
    """Of a raw record. Example: otlp_spans/3."""
    return f"{topic.value}/{partition}"


def parse_place(place: str) -> tuple[Topic, int] | None:
    """Topic and partition; None where it is no place."""
    name, _, partition = place.rpartition("/")
    return (Topic(name), int(partition)) if name in set(Topic) and partition.isdecimal() else None


def merged(ranges: Iterable[tuple[int, int]], *, gap: int = 1) -> Ranges:
    """These in any order and any number of times, those nearer than a gap as one."""
    found: Ranges = []
    for begin, end in sorted(ranges):
        if found and begin < found[-1][1] + gap:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        elif begin < end:
            found.append((begin, end))
    return found


def _coarse(parts: Parts, gap: int) -> Parts:
    return {key: {at: merged(found[at], gap=gap) for at in sorted(found)} for key, found in sorted(parts.items())}


def _fitting(parts: Parts, max_bytes: int) -> tuple[Parts, int]:
    """(as many keys as fit, by the gap that makes their ranges fewest or fewer; the gap)."""
    gap, told = 1, _coarse(parts, 1)
    while len(_ENCODER.encode(told)) > max_bytes and gap < 2**62:
        gap *= 4
        told = _coarse(told, gap)
    while len(_ENCODER.encode(told)) > max_bytes:
        told = dict(list(told.items())[: len(told) * 3 // 4])
    return told, gap


def origin_header(parts: Parts) -> Headers:
    """Of a record that was made of these; none of one that was made of none."""
    told, _ = _fitting(parts, MAX_BYTES)
    return ((ORIGIN_HEADER, _ENCODER.encode(told)),) if told else ()


def origins_in(headers: Headers) -> Parts:
    """The parts that a record's headers tell; none where they do not."""
    return _told_in(headers, ORIGIN_HEADER, Parts) or {}


def _told_in(headers: Headers, header: str, kind: Any) -> Any:
    """What the first header of a name says; None where there is none, or it says nothing of the kind."""
    value = next((value for name, value in headers if name == header), b"")
    with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _decoder_of(kind).decode(value)
    return None


@cache
def _decoder_of(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def made_of_header(made: MadeOf | GroupMadeOf) -> Headers:
    """Of a record that was made of these."""
    if isinstance(made, MadeOf):
        rest = len(_ENCODER.encode(msgspec.structs.replace(made, parts={})))
        parts, gap = _fitting(made.parts, MAX_BYTES - rest)
        made = msgspec.structs.replace(made, parts=parts, gap=gap, num_omitted=len(made.parts) - len(parts))
    while len(value := _ENCODER.encode(made)) > MAX_BYTES and isinstance(made, GroupMadeOf):
        kept = len(made.episodes) * 3 // 4
        num_omitted = made.num_omitted + len(made.episodes) - kept
        feedback = {at: merged(found, gap=2**62) for at, found in made.feedback.items()}
        made = msgspec.structs.replace(made, episodes=made.episodes[:kept], num_omitted=num_omitted, feedback=feedback)
    return ((MADE_OF_HEADER, value),)


def made_of(headers: Headers, kind: type[M]) -> M | None:
    """What a record's headers say; None where they do not."""
    made: M | None = _told_in(headers, MADE_OF_HEADER, kind)
    return made


def raw_positions(parts: Iterable[Parts]) -> Positions:
    """All of them, whatever the keys."""
    found: dict[str, list[tuple[int, int]]] = {}
    for one in parts:
        for positions in one.values():
            for at, ranges in positions.items():
                found.setdefault(at, []).extend(ranges)
    return {at: merged(ranges) for at, ranges in sorted(found.items())}
