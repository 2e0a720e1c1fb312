"""The picture of two ways to reward a history: what it tells, and that any numbers give a valid file."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracegrad.consumers.views.compare_chart import Compared, draw_comparison

SPREADS = ((0.0, 0.25), (0.25, 0.0), (0.0, 0.0), (0.5, 0.5))
COMPARED = Compared(("a.toml", "<b> & $co.toml"), SPREADS, ({}, {"air:ok a": 1.5}), (("flat0", 0.5),), 0.25)


def texts(drawn: bytes) -> list[str]:
    """All that can be read in a picture."""
    root = ElementTree.fromstring(drawn)
    return ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.slow
def test_it_tells_of_groups_rules_and_episodes() -> None:
    """Equal numbers give equal bytes; a PNG is one."""
    drawn = draw_comparison(COMPARED, "svg")
    told = texts(drawn)
    assert {"both: 1", "gained: B alone: 1", "lost: A alone: 1", "neither: 1", "air:ok a", "flat0"} <= set(told)
    assert any("4 groups, rank correlation of the calls' returns 0.250" in text for text in told)
    assert draw_comparison(COMPARED, "svg") == drawn
    assert draw_comparison(COMPARED, "png").startswith(b"\x89PNG")


@pytest.mark.slow
def test_of_many_groups_a_part_is_drawn() -> None:
    """A file that can be opened, whose title says how many there are."""
    many = COMPARED._replace(spreads=[(number / 1e5, 0.5) for number in range(100_000)])
    drawn = draw_comparison(many, "svg")
    assert len(drawn) < 2_000_000
    assert any("100000 groups" in text for text in texts(drawn))


FLOATS = st.floats(-1e6, 1e6)
NAMES = st.text("ab$_\\<&^", max_size=8)


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)), max_size=5),
    st.dictionaries(NAMES, FLOATS, max_size=3),
    st.lists(st.tuples(NAMES, st.floats(0, 1e6)), max_size=3),
)
def test_odd_numbers_and_names_give_a_valid_file(
    spreads: list[tuple[float, float]], paid: dict[str, float], most: list[tuple[str, float]]
) -> None:
    """None at all too."""
    compared = Compared(("a", "b"), spreads, (paid, {}), most, None)
    assert ElementTree.fromstring(draw_comparison(compared, "svg")).tag == "{http://www.w3.org/2000/svg}svg"
