"""OpenLLMetry's guards: a span that says whether an answer passed. It says no number.

What its users post with `user_feedback` goes to its maker's service, and is in no span. In: a Place. Out: at most one
Evaluation, with a label. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator

from .evaluation import Evaluation, Place, about, who

__all__ = ["OPENLLMETRY_KEYS", "openllmetry_evaluations"]

_NAME, _STATUS = "gen_ai.guardrail.name", "gen_ai.guardrail.status"
_ERROR = "gen_ai.guardrail.error.type"
OPENLLMETRY_KEYS = frozenset((_NAME, _STATUS, _ERROR))
"""The attributes that this reads."""


def openllmetry_evaluations(place: Place) -> Iterator[Evaluation]:
    """Of one place."""
    said = place.attributes
    if place.is_event or _NAME not in said or _STATUS not in said:
        return
    yield Evaluation(
        about=about(place),
        name=said[_NAME],
        score=None,
        label=said[_STATUS],
        reason=None,
        error=said.get(_ERROR),
        identity=(place.span, *who(place)),
        at_ns=place.at_ns,
    )
