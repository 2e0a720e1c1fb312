"""Which open episodes are strays: traces of which nothing but spans has come, that anybody can make by the thousand.

In: an episode's id and size after each record of spans, or that something else spoke of it. Out: the ids that have to
go. Invariant: bounded in number and bytes apart from all other episodes; those that came without a credential go first,
of them the longest silent. Failure: none.
"""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["Strays"]


class Strays:
    """The strays of one worker, the longest silent first. Not thread-safe."""

    def __init__(self, max_traces: int, max_bytes: int) -> None:
        self._max_traces = max_traces
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._sizes: tuple[dict[str, int], dict[str, int]] = ({}, {})
        """Those that came without a credential of the run, which anybody can send, and those that came with one."""

    def __len__(self) -> int:
        return sum(map(len, self._sizes))

    def __contains__(self, episode_id: str) -> bool:
        return any(episode_id in sizes for sizes in self._sizes)

    def add(self, episode_id: str, num_bytes: int, *, is_proved: bool) -> None:
        """One that is silent no longer, and holds so many bytes in all."""
        self.discard(episode_id)
        self._sizes[is_proved][episode_id] = num_bytes
        self._num_bytes += num_bytes

    def discard(self, episode_id: str) -> None:
        """One that is none, or no longer open."""
        for sizes in self._sizes:
            self._num_bytes -= sizes.pop(episode_id, 0)

    def surplus(self) -> Iterator[str]:
        """Takes out those beyond the bounds."""
        while len(self) > self._max_traces or self._num_bytes > self._max_bytes:
            episode_id = next(iter(self._sizes[False] or self._sizes[True]))
            self.discard(episode_id)
            yield episode_id

    def clear(self) -> None:
        """Forgets all."""
        for sizes in self._sizes:
            sizes.clear()
        self._num_bytes = 0
