"""Calls that leave the loss are counted."""

from __future__ import annotations

import msgspec

from tests.streams.credit.test_credit import feed, member, turns
from tests.streams.make import TOPICS, config
from tracegrad.schemas.metrics import CALLS_MASKED
from tracegrad.streams.credit.fold import Credit


def test_masked_calls_are_counted_by_reason() -> None:
    """Those of a rollout that trains, be it the assembler's reason or numbers; of an excluded one none."""
    first, second, third = turns(0.0, 0.0, 0.0)
    constrained, numberless = (
        msgspec.structs.replace(second, masked="constrained"),
        msgspec.structs.replace(third, logprobs=b""),
    )
    credit = Credit(config(), TOPICS)
    feed(credit, member(0, calls=(first, constrained, numberless)), member(1, reward=None, calls=(first, constrained)))
    assert credit.metrics.series()[CALLS_MASKED] == {("constrained",): 1, ("bad_logprobs",): 1}
