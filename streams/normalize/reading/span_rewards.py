"""What a span says of its agent's own reward, in Agent Lightning's forms, as the fact that it is. Pure.

    agentlightning.reward.N.name, .value     0.3: the first is the reward, further ones are its dimensions
    reward                                   0.2: on a span named agentlightning.annotation
    agentops.task.output, .entity.output     its `@reward` under AgentOps: {"type": "reward", "value": 0.5}
    agentlightning.link.N.key_match, .value_match     0.3: what it is the reward of

In: a span's name and attributes. Out: SpanRewards; none on nearly every span. Invariant: nothing here decides whether
one counts, for that is the assembler's. Failure: none; what is no usable number has no value, and a text that is no
JSON says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tracegrad.schemas.attributes import GEN_AI_RESPONSE_ID
from tracegrad.schemas.ids import canonical_call
from tracegrad.schemas.records.facts import SpanReward
from tracegrad.schemas.records.rollouts import AGENT_REWARD, is_usable

from .span_view import MAX_TEXT

_MAX_DIMENSIONS, _MAX_LINKS, _MAX_NAME = 8, 4, 60
_MAX_OUTPUT = 4_096
"""Of a text that is read as JSON only to see whether it is a reward, which takes thirty characters."""
_VALUES = tuple(f"agentlightning.reward.{index}.value" for index in range(_MAX_DIMENSIONS))
_NAMES = tuple(f"agentlightning.reward.{index}.name" for index in range(_MAX_DIMENSIONS))
_LINKS = tuple(
    (f"agentlightning.link.{index}.key_match", f"agentlightning.link.{index}.value_match")
    for index in range(_MAX_LINKS)
)
_OUTPUTS = ("agentops.task.output", "agentops.entity.output")
_OLDER, _OLDER_SPAN = "reward", "agentlightning.annotation"
LIGHTNING_KEYS = frozenset((*_VALUES, *_NAMES, *(key for link in _LINKS for key in link), *_OUTPUTS, _OLDER))
"""The attributes that this reads."""


class _Output(msgspec.Struct, frozen=True, kw_only=True):
    """What `@reward` writes; None: its function gave no number."""

    type: str
    value: Any = None


def rewards_in(name: str, attributes: Mapping[str, Any]) -> tuple[SpanReward, ...]:
    """Those of one span."""
    if LIGHTNING_KEYS.isdisjoint(attributes):
        return ()
    if _VALUES[0] in attributes:
        found = [(index, attributes[key]) for index, key in enumerate(_VALUES) if key in attributes]
    elif _OLDER in attributes and name == _OLDER_SPAN:
        found = [(0, attributes[_OLDER])]
    else:
        found = [(0, value) for key in _OUTPUTS if (value := _returned(attributes.get(key))) is not None][:1]
    # What any other link than an answer's means is not known.
    answers = (str(attributes.get(value)) for key, value in _LINKS if attributes.get(key) == GEN_AI_RESPONSE_ID)
    target = next((canonical_call(answer) or answer[:MAX_TEXT] for answer in answers), None)
    named = ((_name(index, attributes), _number(value)) for index, value in found)
    return tuple(SpanReward(name=called, value=value, target=target) for called, value in named)


def _returned(text: Any) -> Any:
    if not isinstance(text, str) or len(text) > _MAX_OUTPUT or '"reward"' not in text:
        return None
    try:
        output = msgspec.json.decode(text, type=_Output)
    except (msgspec.MsgspecError, RecursionError):
        return None
    return output.value if output.type == "reward" else None


def _name(index: int, attributes: Mapping[str, Any]) -> str:
    """The first is the reward itself, whatever it is called."""
    called = attributes.get(_NAMES[index])
    return f"{AGENT_REWARD}.{index if called is None else str(called)[:_MAX_NAME]}" if index else AGENT_REWARD


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, bool | int | float) and is_usable(value) else None
