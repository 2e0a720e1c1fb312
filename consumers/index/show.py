"""What was found, for people: a table of episodes, a chain of lineage.

In: facts of episodes, a Lineage. Out: lines. Pure. Failure: none.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any

from tracegrad.schemas.reasons import reason_text
from tracegrad.schemas.records.calls import Purpose
from tracegrad.schemas.text import one_line

from .lineage import EpisodeLink, GroupLink, Lineage, StepLink, VersionLink
from .subject import Kind

_HEADS = (
    "episode",
    "written (UTC)",
    "task",
    "agent",
    "state",
    "reward",
    "calls",
    "tokens",
    "tools",
    "version",
    "trained",
)
_MEASURED = 100
"""Rows by which the columns are made wide enough."""
_MAX_CELL = 40


def episode_lines(found: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """A head and a line each; `trained` is the step that did, or why none did."""
    rows = (_row(facts) for facts in found)
    first = list(itertools.islice(rows, _MEASURED))
    if not first:
        return
    widths = [max(map(len, column)) for column in zip(_HEADS, *first, strict=True)]
    for row in itertools.chain([_HEADS], first, rows):
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _row(facts: Mapping[str, Any]) -> tuple[str, ...]:
    failed = f" ({facts['tools_failed']} failed)" if facts["tools_failed"] else ""
    trained = "" if facts["step"] is None else f"step {facts['step']}"
    row = (
        facts["episode"],
        time_text(facts["at_ms"]),
        facts["task"] or "",
        ", ".join(facts["agents"]),
        facts["state"],
        _number(facts["reward"]) or ("rated" if facts["rated"] else facts["unscored"]) or "",
        str(facts["calls"]),
        str(facts["tokens"]),
        f"{facts['tools']}{failed}",
        "" if facts["version"] is None else str(facts["version"]),
        facts["excluded"] or trained,
    )
    return tuple(cell if len(cell) <= _MAX_CELL else cell[: _MAX_CELL - 2] + ".." for cell in map(one_line, row))


def lineage_lines(found: Lineage) -> Iterator[str]:
    """From the end that was asked for to the other."""
    return map(one_line, _lines_of(found))


def _lines_of(found: Lineage) -> Iterator[str]:
    yield f"{found.asked} (taken for: {found.kind})"
    forward = [_episodes_lines(found), map(_step_line, found.steps), map(_version_line, found.versions)]
    yield from itertools.chain.from_iterable(reversed(forward) if found.kind is Kind.VERSION else forward)
    if found.contained_in:
        yield f"contained in version {_stretches(found.contained_in)}"
    elif not found.versions:
        yield f"in no version: {_why_none(found)}"


def _episodes_lines(found: Lineage) -> Iterator[str]:
    """Each group, and its episodes."""
    by_group = {group: list(of) for group, of in itertools.groupby(found.episodes, attrgetter("group"))}
    for group in found.groups:
        yield _group_line(group)
        if group.feedback:
            yield f"  said behind its close {_places(group.feedback)}"
        for episode in by_group.get(group.group, ()):
            yield from _episode_lines(episode)


def _why_none(found: Lineage) -> str:
    told = [*(group.excluded for group in found.groups), *(episode.excluded for episode in found.episodes)]
    if any(told):
        return f"left out, {_reasons(told)}"
    if found.episodes and all(one.purpose == Purpose.VALIDATION for one in found.episodes):
        return "it is held out"
    return "it waits for a step, or its group is open"


def _reasons(words: Iterable[str | None]) -> str:
    return "; ".join(map(reason_text, sorted({word for word in words if word})))


def _version_line(link: VersionLink) -> str:
    of = {
        "step": f"by step {link.step} from version {link.base_version}",
        "rollback": f"a rollback, the content of version {link.base_version}",
        "start": "the model that the run began with",
    }
    return f"version {link.version} ({link.label}), {time_text(link.at_ms)}: {of[link.made_by]}"


def _step_line(link: StepLink) -> str:
    reward = f", reward {_number(link.reward)}" if link.reward is not None else ""
    left_out = f", left out: {len(link.excluded)} ({_reasons(link.excluded.values())})" if link.excluded else ""
    return (
        f"step {link.step} (epoch {link.epoch}), {time_text(link.at_ms)}: transitions/0 [{link.begin}, {link.next}), "
        f"groups trained: {link.num_trained}{left_out}{reward}"
        + (f" -> version {link.version}" if link.version is not None else ", no version of its own")
    )


def _group_line(link: GroupLink) -> str:
    where = "not on transitions" if link.offset is None else f"transitions/0 [{link.offset}]"
    rules = f", AIR rules {', '.join(link.rules)}" if link.rules else ""
    return f"group {link.group}: {where}{rules}" + (
        f", left out: {reason_text(link.excluded)}" if link.excluded else ""
    )


def _episode_lines(link: EpisodeLink) -> Iterator[str]:
    reward = f", reward {_number(link.reward)}" if link.reward is not None else ""
    left_out = f", left out: {reason_text(link.excluded)}" if link.excluded else ""
    yield f"  episode {link.episode}: {link.state}{reward}, episodes/{link.partition} [{link.offset}]{left_out}"
    if link.calls:
        yield f"    calls {' '.join(link.calls)}"
    if link.made_of:
        yield f"    made of {_places(link.made_of)}"


def _places(found: Mapping[str, Sequence[tuple[int, int]]]) -> str:
    return ", ".join(f"{place} {' '.join(map(_range, ranges))}" for place, ranges in found.items())


def _range(ends: tuple[int, int]) -> str:
    begin, end = ends
    return f"[{begin}]" if end == begin + 1 else f"[{begin}, {end})"


def _stretches(found: Sequence[tuple[int, int]]) -> str:
    return ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in found)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def time_text(at_ms: float) -> str:
    """A time, UTC."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return "?"
