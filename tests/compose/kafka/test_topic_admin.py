"""Topics on a real cluster: made once, checked ever after."""

from __future__ import annotations

import uuid

import pytest
from confluent_kafka.cimpl import NewPartitions, NewTopic

from tests.serving import until
from tracegrad.compose.kafka.client_settings import KafkaConfig
from tracegrad.compose.kafka.log import KafkaLog
from tracegrad.compose.kafka.topic_admin import create_topics, plan_topics
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.ids import RunName
from tracegrad.schemas.topics import REGISTRY, Topic, Topics

pytestmark = pytest.mark.kafka


def new_run() -> Topics:
    """Names that no other test uses."""
    name = uuid.uuid4().hex[:12]
    return Topics(run=RunName(f"run-{name}"), prefix=f"t{name}.")


def test_dry_run_makes_nothing_and_says_all(kafka_log: KafkaLog) -> None:
    """Names, counts, settings, and who must be allowed what, for those who own the cluster."""
    topics = new_run()
    plans = plan_topics(topics, policies=["policy"], kafka=KafkaConfig())
    lines = "\n".join(line for plan in plans for line in plan.lines())
    assert len(plans) == len(REGISTRY)
    assert not set(kafka_log.admin.partition_counts()) & {plan.name for plan in plans}
    assert f"topic {topics.name(Topic.LLM_CALLS)} partitions=4 replication=1 max.message.bytes=8388608" in lines
    assert "acl write,describe: LLM gateway" in lines
    assert all(plan.is_new is None for plan in plans)


def test_second_call_changes_nothing(kafka_log: KafkaLog) -> None:
    """The same run can be created again; what is there is left as it is."""
    topics = new_run()
    first = create_topics(kafka_log, topics, plan_topics(topics, policies=["a", "b"], kafka=KafkaConfig(partitions=2)))
    second = create_topics(kafka_log, topics, plan_topics(topics, policies=["a", "b"], kafka=KafkaConfig(partitions=2)))
    assert all(plan.is_new for plan in first)
    assert not any(plan.is_new for plan in second)
    counts = kafka_log.admin.partition_counts([plan.name for plan in first])
    assert counts == {plan.name: plan.partitions for plan in first}
    assert (counts[topics.name(Topic.EPISODES)], counts[topics.name(Topic.WEIGHTS)]) == (2, 1)


def test_other_partition_count_is_refused(kafka_log: KafkaLog) -> None:
    """Keys would move to other partitions, away from their markers."""
    topics = new_run()
    create_topics(kafka_log, topics, plan_topics(topics, policies=["policy"], kafka=KafkaConfig(partitions=2)))
    with pytest.raises(ConfigurationError, match="expected 3 partitions"):
        create_topics(kafka_log, topics, plan_topics(topics, policies=["policy"], kafka=KafkaConfig(partitions=3)))


@pytest.mark.parametrize("topic", [Topic.EPISODES, Topic.ROLLOUTS, Topic.WEIGHTS])
def test_partitions_added_to_a_topic_of_the_run_are_refused_with_the_remedy(kafka_log: KafkaLog, topic: Topic) -> None:
    """Keys have moved away from their markers, their requests, their claims."""
    topics = new_run()
    plans = plan_topics(topics, policies=["policy"], kafka=KafkaConfig(partitions=2))
    create_topics(kafka_log, topics, plans)
    name = topics.name(topic)
    for future in kafka_log.admin._client.create_partitions([NewPartitions(name, 3)]).values():
        future.result(10)
    until(lambda: kafka_log.admin.partition_counts([name])[name] == 3, 10)
    with pytest.raises(ConfigurationError, match=rf"{name}'?, got 3: .*--run NAME"):
        create_topics(kafka_log, topics, plans)


def test_raw_topic_of_a_collector_keeps_its_count(kafka_log: KafkaLog) -> None:
    """It was there before us, with partitions of its own."""
    theirs = f"collector-{uuid.uuid4().hex[:8]}"
    kafka_log.admin.create_topics([NewTopic(theirs, 3, 1, config={})])
    renamed = new_run()
    topics = Topics(run=renamed.run, prefix=renamed.prefix, renames={"otlp_spans": theirs})
    plans = create_topics(kafka_log, topics, plan_topics(topics, policies=["policy"], kafka=KafkaConfig(partitions=2)))
    assert next(plan for plan in plans if plan.name == theirs).is_new is False
