"""A prompt put together from differences is the one that was cut into them."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tests.streams.credit.test_segments import call
from tracegrad.schemas.records.prompts import rebuild_prompt
from tracegrad.schemas.records.tokens import ids_from_bytes, ids_to_bytes

IDS = st.lists(st.integers(0, 2**31 - 1), max_size=6)


@given(IDS, IDS, IDS, st.data())
def test_a_difference_and_its_parent_give_the_prompt(
    prompt: list[int], sampled: list[int], suffix: list[int], data: st.DataObject
) -> None:
    """At whatever length the two part."""
    first = call("a", prompt, sampled)
    before = [*prompt, *sampled]
    shared = data.draw(st.integers(0, len(before)))
    second = call("b", suffix, [1], parent_call_id="a", shared_tokens=shared)
    rebuilt = rebuild_prompt(second, {"a": first.suffix_ids + first.sampled_ids})
    assert rebuilt is not None
    assert ids_from_bytes(rebuilt).tolist() == [*before[:shared], *suffix]


def test_a_broken_chain_gives_nothing() -> None:
    """An unknown parent, more shared than it has, a share of no parent, or half a token."""
    full = {"a": ids_to_bytes([1, 2])}
    for broken in (
        call("b", [3], [4], parent_call_id="gone", shared_tokens=1),
        call("b", [3], [4], parent_call_id="a", shared_tokens=3),
        call("b", [3], [4], parent_call_id="a", shared_tokens=-1),
        call("b", [3], [4], shared_tokens=1),
        msgspec.structs.replace(call("b", [3], [4]), suffix_ids=b"123"),
        msgspec.structs.replace(call("b", [3], [4]), sampled_ids=b"123"),
    ):
        assert rebuild_prompt(broken, full) is None
