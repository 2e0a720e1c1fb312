"""A mapping with a bound, for processes that run for weeks. In: what is added. Out: the newest of it. Failure: none."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedMap(OrderedDict[K, V], Generic[K, V]):
    """A mapping that forgets its oldest entry, by when it was added or renewed, when it holds more than `limit`.

    Args:
        forgotten: is told of each entry that goes.
    """

    def __init__(self, limit: int, forgotten: Callable[[K, V], object] = lambda key, value: None) -> None:
        super().__init__()
        self._limit = limit
        self._forgotten = forgotten

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        if len(self) > self._limit:
            self._forgotten(*self.popitem(last=False))

    def renew(self, key: K, value: V) -> V:
        """The value of a key, or this one where it has none; its entry is the newest then."""
        known = self.setdefault(key, value)
        self.move_to_end(key)
        return known
