"""A group of 64 rollouts of 16k tokens leaves credit, lies on a real Kafka, and is read by the trainer."""

from __future__ import annotations

import random

import pytest

from tests.streams.credit.test_credit import feed, member
from tests.streams.credit.test_segments import call
from tests.streams.make import config
from tracegrad.compose.kafka.log import KafkaLog
from tracegrad.schemas.errors import RecordError
from tracegrad.schemas.log.protocol import TopicPartition
from tracegrad.schemas.records.transitions import decode_group
from tracegrad.schemas.topics import Topic, Topics
from tracegrad.streams.credit.fold import Credit
from tracegrad.trainer.batch.batches import TransitionsReader

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(120)]

ROLLOUTS, TOKENS = 64, 16_384


def test_a_group_of_a_million_tokens_reaches_the_trainer(kafka_log: KafkaLog, fresh_topics: Topics) -> None:
    """And a dead letter of as many bytes is taken; what is beyond a topic's limit is refused by it."""
    ids = random.Random(0).choices(range(150_000), k=TOKENS)
    calls = (call("c", ids[:1000], ids[1000:]),)
    emission = feed(Credit(config(), fresh_topics), *(member(n, size=ROLLOUTS, calls=calls) for n in range(ROLLOUTS)))[
        -1
    ]
    value = emission.outputs[0].value
    assert value is not None and len(value) > 9_400_000
    writer = kafka_log.writer()
    try:
        for topic in (Topic.TRANSITIONS, Topic.DEAD_LETTERS):
            writer.append(fresh_topics.name(topic), key=b"policy", value=value, partition=0).result(30)
        noise = random.Random(1).randbytes(9_400_000)  # brokers count compressed bytes
        with pytest.raises(RecordError) as refused:
            writer.append(fresh_topics.name(Topic.LLM_CALLS), key=b"g", value=noise).result(30)
        assert refused.value.reason == "too_large"
    finally:
        writer.close()
    name = fresh_topics.name(Topic.TRANSITIONS)
    source = TransitionsReader(kafka_log, TopicPartition(name, 0), next_offset=0, poll_s=30.0)
    try:
        record = source.next()
    finally:
        source.close()
    assert record is not None
    summary, rows = decode_group(record.value)
    assert (summary.excluded, len(rows), sum(len(row.token_ids) for row in rows)) == ("", ROLLOUTS, ROLLOUTS * TOKENS)
