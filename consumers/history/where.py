"""Which groups are meant, by what stands on the source's episodes: facts known before the outcome, and the outcome.

In: bodies on `episodes`, the terms of `--where` (schemas/log/where.py). Out: ids of the episodes that fit. Invariant:
of an episode the record of the greatest revision counts, then the first, as for all that is made again. Failure: a
record that cannot be read fits nothing; ConfigurationError for terms that a mode may not choose by.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from tracegrad.schemas.errors import ConfigurationError, RecordError
from tracegrad.schemas.log.follow import read_to_end
from tracegrad.schemas.log.made_of import MadeOf, made_of
from tracegrad.schemas.log.protocol import Log
from tracegrad.schemas.log.where import Kind, Term, matches, parse
from tracegrad.schemas.records.episodes import EPISODES, Episode
from tracegrad.schemas.topics import Topic, Topics

__all__ = ["BEFORE", "OUTCOME", "fits", "fitting", "terms_of"]

_Fact = str | float | bool | None
_Facts = Callable[[Episode], Sequence[_Fact]]
_TOKEN_BYTES = 4

logger = logging.getLogger(__name__)


def _first_agent(episode: Episode) -> Sequence[_Fact]:
    return _agents(episode)[:1]


def _agents(episode: Episode) -> Sequence[_Fact]:
    return [*(call.agent for call in episode.calls), *(call.agent for call in episode.context_calls)]


def _first_version(episode: Episode) -> Sequence[_Fact]:
    return [span.version for call in episode.calls[:1] for span in call.versions[:1]]


BEFORE: Mapping[str, tuple[Kind, _Facts]] = {
    "agent": (Kind.TEXT, _first_agent),
    "captured": (Kind.FLAG, lambda one: [one.rollout_id is None]),
    "conversation": (Kind.TEXT, lambda one: [one.conversation]),
    "first_version": (Kind.NUMBER, _first_version),
    "group": (Kind.TEXT, lambda one: [one.group.id if one.group is not None else one.conversation]),
    "policy": (Kind.TEXT, lambda one: [one.policy]),
    "purpose": (Kind.TEXT, lambda one: [one.purpose.value]),
    "service": (Kind.TEXT, lambda one: one.services),
    "task": (Kind.TEXT, lambda one: [one.task_id]),
}
"""Known before anything was sampled; of agents the one that made the first call, since it chose whom to ask."""
OUTCOME: Mapping[str, tuple[Kind, _Facts]] = {
    "agents": (Kind.TEXT, _agents),
    "calls": (Kind.NUMBER, lambda one: [len(one.calls)]),
    "closed_by": (Kind.TEXT, lambda one: [one.closed_by]),
    "duration_s": (Kind.NUMBER, lambda one: [one.duration_s]),
    "final": (Kind.FLAG, lambda one: [one.is_final]),
    "reward": (Kind.NUMBER, lambda one: [one.reward]),
    "state": (Kind.TEXT, lambda one: [one.state.value]),
    "tokens": (Kind.NUMBER, lambda one: [sum(len(call.sampled_ids) for call in one.calls) // _TOKEN_BYTES]),
    "tools": (Kind.NUMBER, lambda one: [one.num_tools]),
    "tools_succeeded": (Kind.NUMBER, lambda one: [one.num_tools_succeeded]),
    "turns": (Kind.NUMBER, lambda one: [max((call.turn + 1 for call in one.calls), default=0)]),
}
"""What came of it."""
_ALL = {**BEFORE, **OUTCOME}


def terms_of(text: str, *, may_see_outcome: bool) -> tuple[Term, ...]:
    """What `--where` says. Raises ConfigurationError.

    Args:
        may_see_outcome: what is chosen is trained on by its likelihood, and not compared with what was left out.
    """
    terms = parse(text, {name: kind for name, (kind, _) in _ALL.items()})
    seen = sorted({term.field for term in terms if term.field in OUTCOME})
    if seen and not may_see_outcome:
        raise ConfigurationError(
            f"--where: expected facts known before the outcome ({', '.join(BEFORE)}), got {', '.join(seen)}: episodes "
            "chosen by what came of them make good luck look like a good policy, since a gradient of returns compares "
            "them with those left out; only --mode filter, which learns to repeat what was good, may choose by "
            f"{', '.join(OUTCOME)}"
        )
    return terms


def fitting(log: Log, topics: Topics, terms: Sequence[Term]) -> frozenset[str]:
    """Ids of the episodes for which all terms hold. Blocks. Raises UnavailableError."""
    found: dict[str, tuple[int, bool]] = {}
    num_unread = 0
    for record in read_to_end(log, topics.name(Topic.EPISODES)):
        made = made_of(record.headers, MadeOf)
        if made is None or (made.id in found and found[made.id][0] >= made.revision):
            continue
        try:
            found[made.id] = made.revision, fits(EPISODES.decode(record.value), terms)
        except RecordError:
            num_unread += 1
    if num_unread:
        logger.warning("--where: %d records of episodes cannot be read, and fit nothing", num_unread)
    return frozenset(id_ for id_, (_, is_meant) in found.items() if is_meant)


def fits(episode: Episode, terms: Sequence[Term]) -> bool:
    """Whether all terms hold of an episode."""
    return all(matches(term, *_ALL[term.field][1](episode)) for term in terms)
