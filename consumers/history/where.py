"""Which groups are meant, by what stands on the source's episodes: facts known before the outcome, and the outcome.

In: bodies on `episodes`, the terms of `--where` (schemas/log/where.py). Out: ids of the episodes that fit. Invariant:
of an episode the record of the greatest revision counts, then the first, as for all that is made again. Failure: a
record that cannot be read fits nothing; ConfigurationError for terms that a mode may not choose by.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tracegrad.schemas.errors import ConfigurationError, RecordError
from tracegrad.schemas.log.follow import read_to_end
from tracegrad.schemas.log.made_of import MadeOf, made_of
from tracegrad.schemas.log.protocol import Log
from tracegrad.schemas.log.where import Term, matches, parse
from tracegrad.schemas.topics import Topic, Topics

from ..episode_facts import BEFORE, FIELDS, SETTLED, EpisodeFacts, read_facts

__all__ = ["fits", "fitting", "terms_of"]

_KINDS = {name: field.kind for name, field in FIELDS.items()}

logger = logging.getLogger(__name__)


def terms_of(text: str, *, may_see_outcome: bool) -> tuple[Term, ...]:
    """What `--where` says. Raises ConfigurationError.

    Args:
        may_see_outcome: what is chosen is trained on by its likelihood, and not compared with what was left out.
    """
    terms = parse(text, _KINDS)
    if settled := sorted({term.field for term in terms}.intersection(SETTLED)):
        raise ConfigurationError(
            f"--where: expected facts that stand on an episode's own record, got {', '.join(settled)}, which only the "
            "whole log tells (`tracegrad episodes --where`)"
        )
    seen = sorted({term.field for term in terms if term.field not in BEFORE})
    if seen and not may_see_outcome:
        raise ConfigurationError(
            f"--where: expected facts known before the outcome ({', '.join(BEFORE)}), got {', '.join(seen)}: episodes "
            "chosen by what came of them make good luck look like a good policy, since a gradient of returns compares "
            "them with those left out; only --mode filter, which learns to repeat what was good, may choose by it"
        )
    return terms


def fitting(log: Log, topics: Topics, terms: Sequence[Term], policy: str) -> frozenset[str]:
    """Ids of the episodes for which all terms hold. Blocks. Raises UnavailableError."""
    found: dict[str, tuple[int, bool]] = {}
    num_unread = 0
    for record in read_to_end(log, topics.name(Topic.EPISODES)):
        made = made_of(record.headers, MadeOf)
        if made is None or (made.id in found and found[made.id][0] >= made.revision):
            continue
        try:
            found[made.id] = made.revision, fits(read_facts(record, policy), terms)
        except RecordError:
            num_unread += 1
    if num_unread:
        logger.warning("--where: %d records of episodes cannot be read, and fit nothing", num_unread)
    return frozenset(id_ for id_, (_, is_meant) in found.items() if is_meant)


def fits(facts: EpisodeFacts, terms: Sequence[Term]) -> bool:
    """Whether all terms hold of an episode."""
    return all(matches(term, *facts.told(term.field)) for term in terms)
