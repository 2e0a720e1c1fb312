"""Bodies that are nearly good: what a broken or hostile client sends."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from([2**70, "\ud800", "auto"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key) of everything within."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from _places(value[key])


@st.composite
def mutants(draw: st.DrawFn, good: dict[str, Any]) -> bytes:
    """A good body with other values in a few places, sometimes cut or with a byte changed."""
    body = copy.deepcopy(good)
    for _ in range(draw(st.integers(1, 3))):
        container, key = draw(st.sampled_from(list(_places(body)) or [(body, "x")]))
        container[key] = draw(_JSON)
    data = bytearray(json.dumps(body).encode())
    if draw(st.integers(0, 9)) == 0:
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.integers(0, len(data)))] if draw(st.integers(0, 9)) == 0 else data)
