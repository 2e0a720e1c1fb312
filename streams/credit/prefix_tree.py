"""The token ids of an episode's calls as a prefix tree: each token once for each path, never each prompt whole.

In: calls in order, their prompts as differences to earlier calls; which row ends at a call. Out: where a call's ids
lie, the row that its prompt goes on from, the ids of a row. Invariant: equal ids lie at one place, whoever declared
what; work and memory grow with the tokens that calls add and rows hold, not with prompts' lengths, nor with the number
of rows. Failure: a prompt whose parent is missing, or shorter than what is shared, is None.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import NamedTuple

from tracegrad.schemas.records.calls import TOKEN_BYTES
from tracegrad.schemas.records.episodes import EpisodeCall

_LAST = float("inf")


class _Path:
    """Ids that follow each other; where others follow instead, another path forks off."""

    __slots__ = ("above", "begin", "ends", "forks", "ids")

    def __init__(self, above: _Path | None, begin: int) -> None:
        self.above = above
        self.begin = begin
        """Bytes from the root to its first id, where it forks off from the one above."""
        self.ids = bytearray()
        """Its own, int32 LE; grows at its end."""
        self.forks: dict[tuple[int, bytes], _Path] = {}
        """By place and first id."""
        self.ends: list[tuple[int, int]] = []
        """(bytes from the root, number) of the rows that end within its own ids, sorted."""


class Prefix(NamedTuple):
    """A prefix: the ids from the root to a byte of a path."""

    path: _Path
    end: int
    """Bytes from the root."""


class AddedCall(NamedTuple):
    """A call that was added."""

    known: Prefix
    """As much of its prompt as earlier calls had."""
    num_prompt_bytes: int
    end: Prefix
    """Its prompt + sampled ids."""


class PrefixTree:
    """The ids of one episode. Not thread-safe."""

    def __init__(self) -> None:
        self._root = _Path(None, 0)
        self._calls: dict[str, Prefix] = {}

    def add_call(self, call: EpisodeCall) -> AddedCall | None:
        """Takes the next call; None where its chain of parents is broken."""
        start = self._shared(call)
        if start is None:
            return None
        known, num_known = _follow(start, call.suffix_ids)
        end = _grow(known, call.suffix_ids[num_known:] + call.sampled_ids)
        self._calls[call.call_id] = end
        return AddedCall(known, start.end + len(call.suffix_ids), end)

    def _shared(self, call: EpisodeCall) -> Prefix | None:
        """Where the prompt leaves its parent's ids."""
        if len(call.suffix_ids) % TOKEN_BYTES or len(call.sampled_ids) % TOKEN_BYTES:
            return None
        parent = Prefix(self._root, 0) if call.parent_call_id is None else self._calls.get(call.parent_call_id)
        end = call.shared_tokens * TOKEN_BYTES
        if parent is None or not 0 <= end <= parent.end:
            return None
        path = parent.path
        while path.above is not None and end <= path.begin:
            path = path.above
        return Prefix(path, end)

    def row_at(self, place: Prefix) -> int | None:
        """The row whose ids are the longest prefix of a place's; of equal ones the first."""
        path: _Path | None = place.path
        end = place.end
        while path is not None:
            index = bisect_right(path.ends, (end, _LAST))
            if index:
                return path.ends[bisect_left(path.ends, (path.ends[index - 1][0], -1))][1]
            end, path = path.begin, path.above
        return None

    def end_row(self, number: int, place: Prefix, *, before: Prefix | None) -> None:
        """A row ends here, no longer where it ended before."""
        if before is not None:
            del before.path.ends[bisect_left(before.path.ends, (before.end, number))]
        insort(place.path.ends, (place.end, number))

    def ids(self, place: Prefix) -> bytes:
        """All ids from the root on."""
        parts = []
        path: _Path | None = place.path
        end = place.end
        while path is not None:
            parts.append(path.ids[: end - path.begin])
            end, path = path.begin, path.above
        return b"".join(reversed(parts))


def _follow(place: Prefix, ids: bytes) -> tuple[Prefix, int]:
    """The place after as many of these ids as lie here already, and how many bytes of them those are."""
    path, end = place
    num_known = 0
    while True:
        fork = path.forks.get((end, ids[num_known : num_known + TOKEN_BYTES]))
        num_equal = TOKEN_BYTES if fork else _num_equal(path.ids, end - path.begin, ids, num_known)
        if not num_equal:
            return Prefix(path, end), num_known
        # Every turn takes one of the ids at least: a call walks no more forks than it has of them.
        path, end, num_known = fork or path, end + num_equal, num_known + num_equal


def _num_equal(one: bytearray, begin: int, other: bytes, at: int) -> int:
    """Bytes of the ids that are equal from there on; the work grows with them, not with what follows them."""
    most = min(len(one) - begin, len(other) - at)
    num, size, is_doubling = 0, TOKEN_BYTES, True
    while size >= TOKEN_BYTES:
        if num + size <= most and one[begin + num : begin + num + size] == other[at + num : at + num + size]:
            num += size
        else:
            is_doubling = False
        size = size * 2 if is_doubling else size // 2
    return num


def _grow(place: Prefix, ids: bytes) -> Prefix:
    """The place after these ids, which are put there as far as they are new."""
    (path, end), num_known = _follow(place, ids)
    new = ids[num_known:]
    if new and end < path.begin + len(path.ids):
        above, path = path, _Path(path, end)
        above.forks[end, new[:TOKEN_BYTES]] = path
    path.ids += new
    return Prefix(path, end + len(new))
