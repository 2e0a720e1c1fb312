"""The mapping that forgets."""

from __future__ import annotations

from tracegrad.schemas.bounded import BoundedMap


def test_the_oldest_entry_is_forgotten_and_told() -> None:
    """By when it was added; to write a value again makes it no newer, to renew it does."""
    forgotten: list[tuple[str, int]] = []
    known: BoundedMap[str, int] = BoundedMap(2, lambda key, value: forgotten.append((key, value)))
    known["a"], known["b"], known["a"] = 1, 2, 3
    assert known.renew("b", 0) == 2 and known.renew("c", 4) == 4
    assert (known, forgotten) == ({"b": 2, "c": 4}, [("a", 3)])
    assert known.renew("b", 0) == 2
    known.setdefault("d", 5)
    assert (known, forgotten) == ({"b": 2, "d": 5}, [("a", 3), ("c", 4)])
