"""Where Kafka's clients put a key, for the partitions that a topic had once.

In: a key and a number of partitions. Out: a partition. Invariant: equal to Java's, aiokafka's and librdkafka's
`murmur2_random` on a topic of so many. Partitions that are added to a topic move its keys, and a client knows the
present number only; records of one key in two partitions have no order.
"""

from __future__ import annotations

__all__ = ["partition_for"]

_SEED, _FACTOR, _SHIFT, _WORD = 0x9747B28C, 0x5BD1E995, 24, 0xFFFFFFFF


def partition_for(key: bytes, num_partitions: int) -> int:
    """murmur2 of the key, without its sign, modulo the partitions."""
    return (_murmur2(key) & 0x7FFFFFFF) % num_partitions


def _murmur2(data: bytes) -> int:
    """Austin Appleby's MurmurHash2, 32 bits, with the seed of Kafka's `Utils.murmur2`."""
    end = len(data) & ~3
    digest = _SEED ^ len(data)
    for at in range(0, end, 4):
        block = int.from_bytes(data[at : at + 4], "little") * _FACTOR & _WORD
        block = (block ^ block >> _SHIFT) * _FACTOR & _WORD
        digest = digest * _FACTOR & _WORD ^ block
    if end < len(data):
        digest = (digest ^ int.from_bytes(data[end:], "little")) * _FACTOR & _WORD
    digest = (digest ^ digest >> 13) * _FACTOR & _WORD
    return digest ^ digest >> 15
