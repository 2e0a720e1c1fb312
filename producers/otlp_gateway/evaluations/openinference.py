"""OpenInference's annotations and evaluations, two words for one thing: lists in a span's attributes.

    annotations.N.annotation.*          of the span, or of the one that it links to
    trace.annotations.N.annotation.*    of its trace, or of the one that it links to
    session.annotations.N.annotation.*  of the session that `session.id` names

In: an EvaluationSource. Out: an Evaluation for each. Invariant: an index is no identity; what has an `identifier` is
known by it, whatever span carries it. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from .evaluation import Evaluation, EvaluationSource, about, conversation_of, trace_of, who

_KEY = re.compile(
    r"(trace\.|session\.|)(annotation|evaluation)s\.([0-9]{1,6})\.\2\."
    r"(name|score|label|explanation|annotator_kind|identifier)"
)
_BEGINNINGS = tuple(scope + word for scope in ("", "trace.", "session.") for word in ("annotations.", "evaluations."))


def is_openinference_key(key: str) -> bool:
    """Whether this reads the attribute."""
    return key.startswith(_BEGINNINGS) and _KEY.fullmatch(key) is not None


def openinference_evaluations(place: EvaluationSource) -> Iterator[Evaluation]:
    """Of one place."""
    if place.is_event:
        return
    found: dict[tuple[str, str, int], dict[str, Any]] = {}
    for key, value in place.attributes.items():
        if key.startswith(_BEGINNINGS) and (match := _KEY.fullmatch(key)):
            found.setdefault((match[1], match[2], int(match[3])), {})[match[4]] = value
    for (scope, _, _), said in sorted(found.items(), key=lambda pair: pair[0]):
        identifier = said.get("identifier")
        carrier = place.span if identifier is None and not scope else ""
        yield Evaluation(
            about=_about(place, scope),
            name=said.get("name"),
            score=said.get("score"),
            label=said.get("label"),
            reason=said.get("explanation"),
            error=None,
            identity=(carrier, str(identifier), str(said.get("annotator_kind")), *who(place)),
            at_ns=place.at_ns,
        )


def _about(place: EvaluationSource, scope: str) -> tuple[str, Any]:
    if scope == "trace.":
        return "trace_id", trace_of(place)
    return ("conversation_id", conversation_of(place)) if scope else about(place)
