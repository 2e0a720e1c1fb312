"""What a fold took, dropped and refused, by reason; for the worker's log lines and its tests."""

from __future__ import annotations

from collections import Counter

__all__ = ["Counters"]


class Counters:
    """Counts since the process started; a reset of the fold's state does not clear them."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, reason: str, num: int = 1) -> None:
        """Counts `num` more of a stable short word, such as `late_calls` or `dead_letter:malformed`."""
        self._counts[reason] += num

    def __getitem__(self, reason: str) -> int:
        return self._counts[reason]

    def snapshot(self) -> dict[str, int]:
        """A copy, by name in order."""
        return dict(sorted(self._counts.items()))
