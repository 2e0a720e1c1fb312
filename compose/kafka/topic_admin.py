"""Topics of a run, from the registry: made, checked, printed.

In: the run's `Topics`, partition counts, policies. Out: topics on the cluster, or a plan to print for those who
own it. Invariants: idempotent; existing topics are never changed, but their partition counts
must be the ones asked for, because keys would move (ConfigurationError); the topics along which a marker follows
its input have equal counts.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec
from confluent_kafka.cimpl import NewTopic

from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.topics import INPUTS, REGISTRY, Topics

from .client_settings import TAIL_GROUP, KafkaConfig
from .log import KafkaLog

logger = logging.getLogger(__name__)


class TopicPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One topic as it is to be."""

    name: str
    partitions: int
    replication: int
    settings: dict[str, str]
    writers: str
    readers: str
    is_new: bool | None = None
    """Whether it was made now; None of a plan."""

    def lines(self) -> list[str]:
        """For people who create topics and ACLs by their own tools."""
        settings = " ".join(f"{name}={value}" for name, value in sorted(self.settings.items()))
        return [
            f"topic {self.name} partitions={self.partitions} replication={self.replication} {settings}",
            f"  acl write,describe: {self.writers}",
            f"  acl read,describe:  {self.readers}",
        ]


class GroupPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One consumer group, for ACLs: Kafka makes it when its first member joins."""

    group: str
    members: str
    """Who joins it or commits for it."""
    watchers: str = ""
    """Who looks at its offsets."""

    def lines(self) -> list[str]:
        """For people who create ACLs by their own tools."""
        watched = [f"  acl describe:       {self.watchers}"] if self.watchers else []
        return [f"group {self.group}", f"  acl read,describe:  {self.members}", *watched]


def plan_groups(topics: Topics) -> list[GroupPlan]:
    """All consumer groups of a run, and the name under which readers come that join none."""
    joined = [
        # A start commits for normalize where a new run begins, and for each what Kafka forgot (`positions`).
        GroupPlan(group=topics.group(stage), members=f"{stage}, start of a run", watchers="audit, report, live view")
        for stage in INPUTS
    ]
    return [*joined, GroupPlan(group=TAIL_GROUP, members="all other readers")]


def plan_topics(topics: Topics, *, policies: Sequence[str], kafka: KafkaConfig) -> list[TopicPlan]:
    """All topics of a run, in the registry's order. Asks no cluster."""
    if not policies:
        raise ConfigurationError("expected a policy, got none: transitions have a partition for each")
    counts = {"run": kafka.partitions, "policies": len(policies), "one": 1}
    return [
        TopicPlan(
            name=topics.name(spec.topic),
            partitions=counts[spec.partitions],
            replication=kafka.replication,
            settings={"max.message.bytes": str(topics.message_bytes(spec.topic)), **spec.settings},
            writers=spec.written_by,
            readers=spec.read_by,
        )
        for spec in REGISTRY
    ]


def create_topics(log: KafkaLog, topics: Topics, plans: Sequence[TopicPlan]) -> list[TopicPlan]:
    """Makes what is missing and checks what is there; returns the plans of the run with what was found.

    Raises:
        ConfigurationError: an existing topic of the run has another partition count. A raw topic, which may be
            a Collector's, keeps its own.
    """
    # Asked first: who may not create topics may still use those that the cluster's owner made.
    existing = log.admin.partition_counts().keys() & {plan.name for plan in plans}
    existing |= log.admin.create_topics(
        [
            NewTopic(plan.name, plan.partitions, plan.replication, config=plan.settings)
            for plan in plans
            if plan.name not in existing
        ]
    )
    counts = log.admin.partition_counts([plan.name for plan in plans])
    raw = {topics.name(spec.topic) for spec in REGISTRY if spec.raw}
    for plan in plans:
        if plan.name not in raw and counts[plan.name] != plan.partitions:
            raise ConfigurationError(
                f"expected {plan.partitions} partitions of topic {plan.name!r}, got {counts[plan.name]}: a run keeps "
                "its [kafka] partitions, for keys would move away from their markers; restore the topic, or start "
                "another run (--run NAME)"
            )
    made = len(plans) - len(existing)
    if made:
        logger.info("topics of run %s: %d made, %d there before", topics.run, made, len(existing))
    return [msgspec.structs.replace(plan, is_new=plan.name not in existing) for plan in plans]
