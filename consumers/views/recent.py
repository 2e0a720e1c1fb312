"""A mapping with a bound, for folds that run for weeks. In: what is added. Out: the newest of it. Failure: none."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

__all__ = ["Recent"]

K = TypeVar("K")
V = TypeVar("V")


class Recent(OrderedDict[K, V], Generic[K, V]):
    """A mapping that forgets what was added first when it holds more than `limit`."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        if len(self) > self._limit:
            self.popitem(last=False)
