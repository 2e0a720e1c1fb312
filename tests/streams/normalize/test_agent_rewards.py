"""What spans of Agent Lightning say of their agent's reward, in each of its forms; whether it counts is not asked."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.streams.make import call_id
from tracegrad.schemas.records.facts import SpanReward
from tracegrad.schemas.records.rollouts import is_usable
from tracegrad.streams.normalize.reading.span_rewards import LIGHTNING_KEYS, rewards_in

REWARD = "agentlightning.reward"
ANNOTATION = "agentlightning.annotation"
CALL = call_id("a")


def linked(key: str, value: str) -> dict[str, Any]:
    """The attributes of a link."""
    return {"agentlightning.link.0.key_match": key, "agentlightning.link.0.value_match": value}


@pytest.mark.parametrize(
    ("attributes", "found"),
    [
        ({f"{REWARD}.0.name": "primary", f"{REWARD}.0.value": 0.5}, [("agent", 0.5, None)]),
        (
            {f"{REWARD}.0.name": "done", f"{REWARD}.0.value": 1, f"{REWARD}.1.name": "short", f"{REWARD}.1.value": 0.2},
            [("agent", 1.0, None), ("agent.short", 0.2, None)],
        ),
        ({"reward": 0.25}, [("agent", 0.25, None)]),
        ({"agentops.task.output": '{"type": "reward", "value": 0.75}'}, [("agent", 0.75, None)]),
        ({"agentops.entity.output": '{"type": "reward", "value": 2}'}, [("agent", 2.0, None)]),
        ({"agentops.entity.output": '{"type": "reward", "value": null}'}, []),
        ({"agentops.entity.output": '{"type": "answer", "value": "reward"}'}, []),
        ({"agentops.entity.output": '"reward" it is'}, []),
        ({f"{REWARD}.0.value": 0.5, **linked("gen_ai.response.id", CALL)}, [("agent", 0.5, CALL)]),
        (
            {f"{REWARD}.0.value": 0.5, **linked("gen_ai.response.id", "chatcmpl-other")},
            [("agent", 0.5, "chatcmpl-other")],
        ),
        ({f"{REWARD}.0.value": 0.5, **linked("span_id", "00f067aa0ba902b7")}, [("agent", 0.5, None)]),
        ({f"{REWARD}.0.value": math.nan}, [("agent", None, None)]),
        ({f"{REWARD}.0.value": "1.0"}, [("agent", None, None)]),
        ({f"{REWARD}.1.value": 1.0}, []),
        ({"agentlightning.message.body": "reward: 1"}, []),
        ({}, []),
    ],
    ids=str,
)
def test_each_form(attributes: dict[str, Any], found: list[tuple[str, float | None, str | None]]) -> None:
    """The first dimension is the reward; what is no usable number has no value; a link to an answer is its target."""
    said = [SpanReward(name=name, value=value, target=target) for name, value, target in found]
    assert list(rewards_in(ANNOTATION, attributes)) == said


def test_the_older_form_is_of_its_span_alone() -> None:
    """Any framework may have an attribute `reward`."""
    assert rewards_in("step", {"reward": 1.0}) == ()


VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(sorted(LIGHTNING_KEYS)), VALUES, max_size=8), st.sampled_from([ANNOTATION, "x"]))
def test_any_values_are_read_without_raising(attributes: dict[str, Any], name: str) -> None:
    """And what comes out is a usable number or none."""
    for said in rewards_in(name, attributes):
        assert said.value is None or is_usable(said.value)
        assert len(said.name) <= 66
