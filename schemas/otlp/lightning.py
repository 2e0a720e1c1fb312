"""What a span says of a reward, in Agent Lightning's forms. Pure.

    agentlightning.reward.N.name, .value     0.3: the first is the reward, further ones are its dimensions
    reward                                   0.2: on a span named agentlightning.annotation
    agentops.task.output, .entity.output     its `@reward` under AgentOps: {"type": "reward", "value": 0.5}
    agentlightning.link.N.key_match, .value_match     0.3: what it is the reward of

In: a span's name and attributes. Out: what is said, as it is said; none on nearly every span. Invariant: nothing here
judges a value, or decides whether one counts. Failure: none; a text that is no JSON says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from ..attributes import GEN_AI_RESPONSE_ID

_MAX_DIMENSIONS = 8
_MAX_LINKS = 4
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


class LightningReward(NamedTuple):
    """One dimension."""

    number: int
    """0: the reward itself."""
    name: str | None
    """As it is called; None: it is not."""
    value: Any
    response_id: str | None
    """The answer that it is linked to by its id; what any other link means is not known."""


class _Output(msgspec.Struct, frozen=True, kw_only=True):
    """What `@reward` writes; None: its function gave no number."""

    type: str
    value: Any = None


def lightning_rewards(name: str, attributes: Mapping[str, Any]) -> tuple[LightningReward, ...]:
    """Those of one span."""
    if LIGHTNING_KEYS.isdisjoint(attributes):
        return ()
    if _VALUES[0] in attributes:
        found = [(index, attributes[key]) for index, key in enumerate(_VALUES) if key in attributes]
    elif _OLDER in attributes and name == _OLDER_SPAN:
        found = [(0, attributes[_OLDER])]
    else:
        found = [(0, value) for key in _OUTPUTS if (value := _returned(attributes.get(key))) is not None][:1]
    if not found:
        return ()
    answer = next(
        (str(attributes.get(value)) for key, value in _LINKS if attributes.get(key) == GEN_AI_RESPONSE_ID), None
    )
    named = ((index, attributes.get(_NAMES[index]), value) for index, value in found)
    return tuple(
        LightningReward(index, None if called is None else str(called), value, answer) for index, called, value in named
    )


def _returned(text: Any) -> Any:
    if not isinstance(text, str) or len(text) > _MAX_OUTPUT or '"reward"' not in text:
        return None
    try:
        output = msgspec.json.decode(text, type=_Output)
    except (msgspec.MsgspecError, RecursionError):
        return None
    return output.value if output.type == "reward" else None
