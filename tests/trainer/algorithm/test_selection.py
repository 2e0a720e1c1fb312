"""Which groups train and what length costs, by hand."""

from __future__ import annotations

import pytest

from tracegrad.trainer.algorithm.selection import overlong, selected


@pytest.mark.parametrize(
    ("rule", "share", "expected"),
    [
        ("none", 0.25, [True, True, True, True]),
        ("spread", 0.25, [True, False, True, True]),
        ("top_std", 0.5, [False, False, True, True]),
        ("top_std", 0.1, [False, False, True, False]),
    ],
)
def test_groups_are_selected_by_their_std(rule: str, share: float, expected: list[bool]) -> None:
    """The earlier of two with an equal one goes first; one stays at least."""
    assert selected([0.1, 0.0, 0.5, 0.5], rule, share) == expected


def test_overlong_costs_more_and_more_up_to_1() -> None:
    """A limit of 20 with a buffer of 5: nothing up to 15 tokens, 2/5 at 17, 1 from 20 on."""
    assert [overlong(length, 20, 5) for length in (3, 15, 17, 20, 99)] == [0.0, 0.0, -0.4, -1.0, -1.0]
