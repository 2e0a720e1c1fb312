"""What another model answered is no call of the policy's."""

from __future__ import annotations

from tests.schemas.released import RUN, UPSTREAM_CALL
from tests.streams.make import TOPICS, config
from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.metrics import CONTEXT_CALLS
from tracegrad.schemas.records.calls import LLM_CALLS
from tracegrad.schemas.topics import Topic
from tracegrad.streams.normalize.fold import Normalize


def test_a_call_of_another_model_is_counted_and_is_no_fact() -> None:
    """Nor a dead letter: an episode closes by the calls of its policy."""
    normalize = Normalize(config(run_hash=RUN), TOPICS)
    name, value = TOPICS.name(Topic.LLM_CALLS), LLM_CALLS.encode(UPSTREAM_CALL)
    record = Record(topic=name, partition=0, offset=0, key=None, value=value)
    assert normalize.fold(record).outputs == ()
    assert normalize.metrics.value(CONTEXT_CALLS) == 1
