"""What a span says of its agent's own reward (schemas/otlp/lightning.py), as the fact that it is. Pure.

In: a span's name and attributes. Out: SaidRewards; none on nearly every span. Invariant: nothing here decides whether
one counts, for that is the assembler's. Failure: none; what is no usable number has no value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tracegrad.schemas.ids import canonical_call
from tracegrad.schemas.otlp.lightning import LIGHTNING_KEYS, LightningReward, lightning_rewards
from tracegrad.schemas.records.facts import SpanReward
from tracegrad.schemas.records.rollouts import AGENT_REWARD, is_usable

from .span_view import MAX_TEXT

_MAX_NAME = 60


def rewards_in(name: str, attributes: Mapping[str, Any]) -> tuple[SpanReward, ...]:
    """Those of one span."""
    if LIGHTNING_KEYS.isdisjoint(attributes):
        return ()
    return tuple(
        SpanReward(name=_name(said), value=_number(said.value), target=_target(said.response_id))
        for said in lightning_rewards(name, attributes)
    )


def _name(said: LightningReward) -> str:
    name = str(said.number) if said.name is None else said.name
    return AGENT_REWARD if said.number == 0 else f"{AGENT_REWARD}.{name[:_MAX_NAME]}"


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, bool | int | float) and is_usable(value) else None


def _target(answer: str | None) -> str | None:
    """The answer, the gateway's or another's, who pays nothing here."""
    return None if answer is None else canonical_call(answer) or answer[:MAX_TEXT]
