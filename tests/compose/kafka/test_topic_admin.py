"""Topics on a real cluster: made once, checked ever after; a run begins where it was told."""

from __future__ import annotations

import uuid

import pytest
from confluent_kafka.cimpl import NewTopic

from tracegrad.compose.kafka.client_settings import KafkaConfig
from tracegrad.compose.kafka.log import KafkaLog
from tracegrad.compose.kafka.topic_admin import create_topics, plan_topics, start_run
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.ids import RunName
from tracegrad.schemas.log.protocol import TopicPartition
from tracegrad.schemas.topics import INPUTS, REGISTRY, Stage, Topic, Topics

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


def test_raw_topic_of_a_collector_keeps_its_count(kafka_log: KafkaLog) -> None:
    """It was there before us, with partitions of its own."""
    theirs = f"collector-{uuid.uuid4().hex[:8]}"
    kafka_log.admin.create_topics([NewTopic(theirs, 3, 1, config={})])
    renamed = new_run()
    topics = Topics(run=renamed.run, prefix=renamed.prefix, renames={"otlp_spans": theirs})
    plans = create_topics(kafka_log, topics, plan_topics(topics, policies=["policy"], kafka=KafkaConfig(partitions=2)))
    assert next(plan for plan in plans if plan.name == theirs).is_new is False


def write_calls(log: KafkaLog, topics: Topics, count: int) -> None:
    """Some records on one raw topic."""
    writer = log.writer()
    for _ in range(count):
        writer.append(topics.name(Topic.LLM_CALLS), key=b"k", value=b"v", partition=0)
    writer.close()


def test_run_begins_at_the_end_and_resumes_where_it_was(kafka_log: KafkaLog, fresh_topics: Topics) -> None:
    """Creating a run commits its start once; the same name resumes."""
    calls, group = fresh_topics.name(Topic.LLM_CALLS), fresh_topics.group(Stage.NORMALIZE)
    write_calls(kafka_log, fresh_topics, 3)
    chosen = start_run(kafka_log, fresh_topics)
    assert {where.topic for where in chosen} == {fresh_topics.name(topic) for topic in INPUTS[Stage.NORMALIZE]}
    assert chosen[TopicPartition(calls, 0)] == 3
    assert kafka_log.committed(group, calls) == {0: 3, 1: 0, 2: 0, 3: 0}
    write_calls(kafka_log, fresh_topics, 2)
    assert start_run(kafka_log, fresh_topics) == {}
    assert kafka_log.committed(group, calls)[0] == 3


def test_replay_begins_where_it_is_told(kafka_log: KafkaLog, fresh_topics: Topics) -> None:
    """At the beginning, or at offsets that lie in the log."""
    write_calls(kafka_log, fresh_topics, 3)
    where = TopicPartition(fresh_topics.name(Topic.LLM_CALLS), 0)
    with pytest.raises(ConfigurationError, match="start offset"):
        start_run(kafka_log, fresh_topics, start={where: 9})
    assert start_run(kafka_log, fresh_topics, start={where: 2})[where] == 2
    again = Topics(run=RunName("replay"), prefix=fresh_topics.prefix)
    assert start_run(kafka_log, again, start="beginning")[where] == 0
