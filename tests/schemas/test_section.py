"""Bounds of a section stand in its types and hold for every record that exists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta
from msgspec.structs import replace

from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.section import Count, Function, PathKind, Port, Seconds, Section, Whole


class Some(Section, frozen=True, kw_only=True):
    """A field of each kind."""

    whole: Whole = 0
    count: Count | None = None
    port: Port = 1
    wait_s: Seconds = 1.0
    share: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    plain: float = 0.0
    script: Function | None = None


FITS: dict[str, Callable[[float], bool]] = {
    "whole": lambda value: 0 <= value < float("inf"),
    "count": lambda value: 1 <= value < float("inf"),
    "port": lambda value: 1 <= value <= 65_535,
    "wait_s": lambda value: 0 < value < float("inf"),
    "share": lambda value: 0 <= value < 1,
    "plain": lambda value: abs(value) < float("inf"),
}


@given(st.sampled_from(sorted(FITS)), st.integers(-2, 70_000) | st.floats(width=32))
def test_a_value_beyond_its_bound_is_refused_with_its_key(key: str, value: float) -> None:
    """When the record is made, and when it is made from another."""
    if FITS[key](value):
        assert getattr(replace(Some(), **{key: value}), key) == value
        return
    with pytest.raises(ConfigurationError, match=f"^{key}: expected"):
        Some(**{key: value})  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=f"^{key}: expected"):
        replace(Some(), **{key: value})


def test_none_is_within_every_bound() -> None:
    """Where the type allows it."""
    assert Some(count=None).count is None


def test_paths_are_known_by_their_type() -> None:
    """For the loader, which makes them absolute."""
    assert Some.path_kinds() == {"script": PathKind.FUNCTION}
