"""Agent Lightning's rewards (schemas/otlp/lightning.py), reported by a program that is not the agent.

In: an EvaluationSource. Out: an Evaluation for each dimension. Invariant: of several rewards of one thing the last
counts, as it does there. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator

from tracegrad.schemas.otlp.lightning import lightning_rewards

from .evaluation import Evaluation, EvaluationSource, about

_PRIMARY, _REWARD = "primary", "reward"
"""What it calls a reward to which nobody gave a name, and what that is called here."""


def lightning_evaluations(place: EvaluationSource) -> Iterator[Evaluation]:
    """Of one place."""
    if place.is_event:
        return
    for said in lightning_rewards(place.name, place.attributes):
        is_unnamed = said.name is None or (said.number == 0 and said.name == _PRIMARY)
        yield Evaluation(
            about=("response_id", said.response_id) if said.response_id else about(place),
            name=_REWARD if is_unnamed else said.name,
            score=said.value,
            label=None,
            reason=None,
            error=None,
            identity=(),
            at_ns=place.at_ns,
        )
