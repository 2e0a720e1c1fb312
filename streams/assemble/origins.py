"""Of which raw records the facts of an open episode are, to be told when it closes, or when they are forwarded.

In: of each folded record its facts and the parts that its header names. Out: parts. Invariant: a set, so that order and
re-delivery change nothing. An attempt's are kept together; of a captured trace, which may be forwarded, by what goes
into one record then: the spans of a sender, each call, each reward, the links. Memory: 16 bytes a record, and some
hundreds for each kind, key and partition.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from tracegrad.schemas.log.made_of import Parts, merged
from tracegrad.schemas.records.facts import CallFact, Fact, LinkFact, LogFact, RewardFact, SpanFact
from tracegrad.schemas.records.rollouts import Reward, piece_id

_LINKS = "links"


def batch_of(fact: Fact) -> str:
    """Under which name a fact goes on with others when its trace is forwarded: kinds and senders are never mixed, and a
    call has a record of its own, for it may be large, and a reward, for it may count by itself."""
    match fact:
        case SpanFact() | LogFact():
            return f"span {fact.proved_by}"
        case CallFact():
            return f"call {fact.call.call_id}"
        case RewardFact():
            return f"reward {piece_id(fact.reward)}"
        case LinkFact():
            return _LINKS
    return type(fact).__name__


class Origins:
    """Those of one open episode. Not thread-safe."""

    def __init__(self, *, are_forwarded: bool) -> None:
        self._are_forwarded = are_forwarded
        self._batches: dict[str, dict[tuple[str, str], array[int]]] = {}
        """Batch -> (key, `topic/partition`) -> begin and end, in turn."""

    def add_record(self, facts: Iterable[Fact], parts: Parts) -> None:
        """Folds a record in."""
        batches = {""}
        if self._are_forwarded:
            found = {batch_of(fact) for fact in facts}
            # The links beside others go on with each of them.
            batches = found - {_LINKS} or found
        for key, positions in parts.items():
            for at, ranges in positions.items():
                for batch in batches:
                    held = self._batches.setdefault(batch, {}).setdefault((key, at), array("q"))
                    for begin, end in ranges:
                        if held and held[-1] == begin:
                            held[-1] = end
                        else:
                            held.extend((begin, end))

    def parts(self) -> Parts:
        """All."""
        return self._told(self._batches)

    def of(self, facts: Iterable[Fact]) -> Parts:
        """Those of some of its facts, as they are forwarded, and of the links that go with them."""
        return self._told({_LINKS, *map(batch_of, facts)})

    def of_reward(self, reward: Reward) -> Parts:
        """Those of a reward."""
        return self._told([batch_of(RewardFact(reward=reward))])

    def _told(self, batches: Iterable[str]) -> Parts:
        found: dict[str, dict[str, list[tuple[int, int]]]] = {}
        for batch in batches:
            for (key, at), held in self._batches.get(batch, {}).items():
                found.setdefault(key, {}).setdefault(at, []).extend(zip(held[::2], held[1::2], strict=True))
        return {key: {at: merged(pairs) for at, pairs in told.items()} for key, told in found.items()}
