"""Which members of which groups: a set that is small enough to be kept for a whole run.

In: places of rollouts. Out: whether each was there. Groups are numbered from 0 without gaps, and complete about in that
order, so those below the first incomplete one need not be kept: memory follows the groups in the works, not the run.
"""

from __future__ import annotations

from tracegrad.schemas.records.rollouts import GroupRef

__all__ = ["Members"]


class Members:
    """Members of the groups of one run and purpose. Not thread-safe."""

    def __init__(self) -> None:
        self._num_dropped = 0
        """Groups 0 .. this - 1 are complete."""
        self._later: dict[int, set[int] | None] = {}
        """Index of a group -> its members; None: all of them."""

    def add(self, group: GroupRef) -> bool:
        """Adds the member that `group` names. False: it was there."""
        if group in self:
            return False
        members = self._later.setdefault(group.index, set())
        assert members is not None
        members.add(group.member)
        if len(members) == group.size:
            self._later[group.index] = None
        while self._later.get(self._num_dropped, ()) is None:
            del self._later[self._num_dropped]
            self._num_dropped += 1
        return True

    def __contains__(self, group: GroupRef) -> bool:
        return self._has(group.index, group.member)

    def _has(self, index: int, member: int) -> bool:
        if 0 <= index < self._num_dropped:
            return True
        members = self._later.get(index, ())
        return members is None or member in members

    @property
    def num_groups(self) -> int:
        """Groups of which any member was added."""
        return self._num_dropped + len(self._later)

    @property
    def num_kept(self) -> int:
        """Groups that take memory."""
        return len(self._later)

    def missing(self, index: int, size: int) -> list[int]:
        """Those of members 0 .. size - 1 of a group that were not added."""
        return [member for member in range(size) if not self._has(index, member)]

    def incomplete(self) -> list[int]:
        """Groups of which some members were added, and not all."""
        return [index for index, members in self._later.items() if members is not None]
