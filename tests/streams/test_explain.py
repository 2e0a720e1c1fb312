"""Parts of a call's return add up to it, and each says why."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from tests.streams.assemble.test_air import turn
from tests.streams.assemble.test_air_rules import RULES
from tests.streams.assemble.test_air_rules import drawn as drawn_record
from tests.streams.credit.strategies.test_strategies import drawn
from tests.streams.credit.test_credit import close, member, turns
from tests.streams.make import config
from tracegrad.schemas.records.transitions import decode_group
from tracegrad.streams.assemble.air.apply import apply_air
from tracegrad.streams.assemble.air.rules import AirConfig, AirRule
from tracegrad.streams.credit.config import CreditConfig
from tracegrad.streams.explain import explain

AIR = AirConfig(rules=RULES)


@pytest.mark.parametrize(
    "keys",
    [
        {}, {"gamma": 0.9}, {"strategy": "broadcast"}, {"strategy": "turn"}, {"strategy": "agent"},
        {"strategy": "anchor", "gamma": 0.5},
    ],
)  # fmt: skip
def test_parts_add_up_to_the_return_of_the_transition(keys: dict[str, Any]) -> None:
    """1,000 random episodes: to the bit where nothing is discounted; the return is that of the group's record."""
    credit = CreditConfig(**keys)
    for seed in range(1000):
        rng = random.Random(seed)
        episode = drawn(rng, 0, 1)
        if rng.random() < 0.5:
            record = drawn_record(rng)
            episode = apply_air(AIR, msgspec.structs.replace(record, group=member(0, size=1).group))
        told = explain(episode, credit, AIR)
        for one in told:
            exact = one.credit.return_ if credit.gamma == 1.0 else pytest.approx(one.credit.return_)
            assert one.sum == exact
        if seed < 50:
            _, rows = decode_group(close(episode, settings_=config(credit=credit)).outputs[0].value)
            returns = {one.call_id: one.credit.return_ for one in told}
            assert all(turn_.return_ == returns[turn_.call_id] for row in rows for turn_ in row.turns)


def test_each_part_says_what_a_rule_paid_for() -> None:
    """Where the rules are those by which the episode was rewarded; else the names alone."""
    air = AirConfig(rules=(AirRule(name="ok", status="succeeded", value=0.5),))
    episode = apply_air(air, member(0, size=1, calls=turns(0.0, 0.0)))
    calls = (msgspec.structs.replace(episode.calls[0], tools=turn("succeeded").tools), episode.calls[1])
    episode = apply_air(air, msgspec.structs.replace(episode, calls=calls))
    first, last = explain(episode, CreditConfig(), air)
    assert [(part.what, part.call_id, part.value, part.why) for part in first.parts] == [
        ("final", "", 1.0, ""),
        ("air:ok", "c0", 0.5, "tool calc status=succeeded"),
    ]
    assert [part.what for part in last.parts] == ["final"]
    assert [part.why for part in explain(episode, CreditConfig(), AirConfig())[0].parts] == ["", ""]
