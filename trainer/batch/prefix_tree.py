"""Rows that begin alike as one tree of tokens, in which what they share is there once.

    a b c d        0:a 1:b 2:c 3:d        places of row 0: 0 1 2 3
    a b x    ->        2:x 3:y                    of row 1: 0 1 4 5
    a b x y    (numbers: depths)                  of row 2 as of row 1

A group's rollouts answer one prompt, which is most of their tokens; a token sees those above it alone, at the positions
that they have in its row, so its hidden state is the row's own (tree training, arXiv:2511.00413). In: rows of ids. Out:
the tree's ids, depths, who sees whom, and where each row's tokens lie. Pure. Do not combine with a model whose layers
look at more than the mask says, or at less: sliding windows, recurrent layers (model/hidden.py refuses them).

Tensor suffixes: S tokens of the tree, T tokens of a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tracegrad.schemas.records.tokens import Ids

Places = npt.NDArray[np.int64]


class PrefixTree(NamedTuple):
    """Of the rows of a micro-batch."""

    ids_S: Places
    depths_S: Places
    """A token's position in each row that has it."""
    sees_SS: npt.NDArray[np.bool_]
    """[s, t]: t is s, or above it."""
    places: list[Places]
    """[T] of each row."""


def by_prefix(rows: Sequence[Ids]) -> list[int]:
    """Their numbers in the order of their ids: no other row shares more of one than the one before it, or behind it."""
    return sorted(range(len(rows)), key=lambda number: rows[number].astype(">u4").tobytes())


def tree_sizes(rows: Sequence[Ids]) -> Iterator[int]:
    """How many tokens each row adds to the tree of those before it, where they stand in the order of `by_prefix`."""
    before: Ids = np.empty(0, np.int32)
    for row in rows:
        yield len(row) - _num_shared(before, row)
        before = row


def prefix_tree(rows: Sequence[Ids]) -> PrefixTree:
    """The tree of rows in the order of `by_prefix`."""
    sizes = [*tree_sizes(rows)]
    total = sum(sizes)
    ids_S, depths_S, sees_SS = np.zeros(total, np.int64), np.zeros(total, np.int64), np.zeros((total, total), np.bool_)
    places: list[Places] = []
    end = 0
    for row, size in zip(rows, sizes, strict=True):
        shared, begin, end = len(row) - size, end, end + size
        above: Any = places[-1][:shared] if places else ()
        own_T = np.concatenate([above, np.arange(begin, end)]).astype(np.int64)
        ids_S[begin:end], depths_S[begin:end] = row[shared:], np.arange(shared, len(row))
        sees_SS[begin:end, own_T] = depths_S[begin:end, None] >= np.arange(len(row))
        places.append(own_T)
    return PrefixTree(ids_S, depths_S, sees_SS, places)


def _num_shared(one: Ids, other: Ids) -> int:
    num = min(len(one), len(other))
    differs = np.flatnonzero(one[:num] != other[:num])
    return int(differs[0]) if len(differs) else num
