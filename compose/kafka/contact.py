"""Whether a client of librdkafka has lost the cluster for good, so that another must take its place.

In: its statistics, as it gives them every few seconds. Out: an answer. A cluster whose brokers are all fenced for a
moment (a single node late with a heartbeat on a busy machine, a rolling restart) answers with topics and no broker.
librdkafka 2.13 to 2.16 then forgets the brokers that it knows, and, by a race, not always begins again with its
bootstrap servers: it says nothing and waits for ever (issue 5301 there). Invariant: a client that merely cannot reach
its brokers, however long, is not lost: it still knows them and tries. Failure: none.
"""

from __future__ import annotations

import msgspec

__all__ = ["Contact"]

_KNOWN = ("configured", "learned")
"""Where brokers come from; others stand for none."""


class _Broker(msgspec.Struct):
    source: str


class _Statistics(msgspec.Struct):
    brokers: dict[str, _Broker]


_DECODER = msgspec.json.Decoder(_Statistics)


class Contact:
    """Of one client; `hear` is its `stats_cb`."""

    def __init__(self) -> None:
        self._num_without = 0

    def hear(self, statistics: str) -> None:
        """Takes what the client says of itself."""
        brokers = _DECODER.decode(statistics).brokers.values()
        self._num_without = 0 if any(broker.source in _KNOWN for broker in brokers) else self._num_without + 1

    @property
    def is_lost(self) -> bool:
        """Twice in a row it knew no broker: once may be the moment before it begins again."""
        return self._num_without > 1
