"""schemas/log/protocol.py on Apache Kafka: the `Log` that compose hands to the rooms.

In: bootstrap servers, allow-listed client settings, the topics as the run found them. Out: an idempotent writer with
acks=all, and readers that never skip and never commit by themselves. The modules of compose/kafka/ alone import
confluent_kafka.

Invariants: every library error leaves them as one of schemas/errors.py; every wait and every queue is bounded; offsets
are told only of the topic that the run began with; a key stays in its partition as long as the run lives.
Async code awaits `asyncio.wrap_future(writer.append(...))` and calls the rest by `asyncio.to_thread`; a reader
belongs to one thread at a time, a writer to all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from tracegrad.schemas.errors import LogGapError
from tracegrad.schemas.log.protocol import LogReader, Offsets, Record, TopicPartition

from .admin import KafkaAdmin, checked
from .client_settings import consumer_settings, producer_settings, shared_settings
from .positions import ANOTHER_RUN, TopicStart
from .reader import GroupReader, TailReader
from .writer import KafkaWriter


class KafkaLog:
    """schemas.log.protocol.Log on a Kafka cluster, and its administration.

    Args:
        bootstrap_servers: `host:port[,host:port]`.
        client_settings: of client_settings.CLIENT_SETTINGS; anything else is refused.
        starts: the run's topics by name, as it began with them.
        is_history: what lay there for long is read: each record's checksum is looked at.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        client_settings: Mapping[str, str] | None = None,
        *,
        starts: Mapping[str, TopicStart] | None = None,
        is_history: bool = False,
    ) -> None:
        self.bootstrap_servers = bootstrap_servers
        self._base = shared_settings(bootstrap_servers, client_settings or {})
        self._starts = starts or {}
        self._is_history = is_history

    @cached_property
    def admin(self) -> KafkaAdmin:
        """Administration of the cluster, for compose only."""
        return KafkaAdmin(self._base)

    def writer(self) -> KafkaWriter:
        """A new writer; one a process is enough."""
        counts = {name: len(start.offsets) for name, start in self._starts.items() if start.offsets}
        return KafkaWriter(producer_settings(self._base), partitions=counts)

    def tail(self, starts: Mapping[TopicPartition, int]) -> LogReader:
        """A reader of these partitions from these offsets, without a group. LogGapError as documented."""
        for topic in {where.topic for where in starts}:
            self._require_same(topic)
        kept = self.admin.kept(starts)
        settings = consumer_settings(self._base, group=None, is_of_history=self._is_history)
        reader = TailReader(self.admin, settings)
        reader.assign({where: checked(where, offset, kept[where]) for where, offset in starts.items()})
        return reader

    def join(self, group: str, topics: Sequence[str]) -> LogReader:
        """A member of a consumer group, from its committed offsets, else offset 0."""
        self.admin.partition_counts(topics)
        for topic in topics:
            self._require_same(topic)
        return GroupReader(self.admin, consumer_settings(self._base, group=group), group, topics)

    def judged(self, record: Record) -> Record | None:
        """As it is: who judges records stands above (schemas/log/signed.py)."""
        return record

    def offsets(self, topic: str) -> Mapping[int, Offsets]:
        """First and next offsets of each partition of a topic. LogGapError when it was made anew."""
        self._require_same(topic)
        return {where.partition: offsets for where, offsets in self.admin.offsets(self.admin.partitions(topic)).items()}

    def offsets_since(self, topic: str, at_ms: int) -> tuple[int, ...]:
        """Of each partition the first record that was written at that time or later, else its end; 0: of all there
        are."""
        kept = self.offsets(topic)
        places = [TopicPartition(topic, number) for number in sorted(kept)]
        found = self.admin.offsets_at(places, at_ms) if at_ms else {}
        return tuple(found.get(where, kept[where.partition].begin) for where in places)

    def committed(self, group: str, topic: str) -> Mapping[int, int]:
        """Committed next offsets of a group; partitions without one are absent."""
        return self.admin.committed(group, topic)

    def topic_id(self, topic: str) -> str:
        """Kafka's id of a topic; empty on a cluster without them."""
        return self.admin.topic_id(topic)

    def _require_same(self, topic: str) -> None:
        """Raises LogGapError for a topic that was made anew: its offsets name other records."""
        began = self._starts.get(topic)
        if began is None or not began.id or (found := self.topic_id(topic)) in ("", began.id):
            return
        raise LogGapError(
            f"expected topic {topic!r} with the id {began.id}, as when this run began, got {found}: it was deleted and "
            f"made anew, or this is another cluster, and offsets name other records; restore it, or {ANOTHER_RUN}"
        )
