"""Every record of every topic can be shown to a person, and none that is malformed stops it."""

from __future__ import annotations

import json

import msgspec
import pytest

from tests.consumers.audit.small_run import small_run
from tests.streams.make import TOPICS
from tracegrad.consumers.views.tail import as_json, as_text
from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.records.calls import LLM_CALLS, CallRecord
from tracegrad.schemas.records.dead_letters import dead_letter_headers
from tracegrad.schemas.topics import Topic


def test_every_topic_is_decoded() -> None:
    """A line and JSON of each record of a whole run."""
    for topic, records in small_run().log.items():
        for record in records:
            line = as_text(topic, record)
            assert "\n" not in line
            if record.value != b"\xc1 no call":
                assert "undecodable" not in line
            assert json.loads(json.dumps(as_json(topic, record)))["offset"] == record.offset


def test_ids_and_logprobs_are_numbers_in_json() -> None:
    """Not base64."""
    record = small_run().log[Topic.LLM_CALLS][0]
    value = as_json(Topic.LLM_CALLS, record)["value"]
    assert value["sampled_ids"] == [3, 4] and value["logprobs"] == [-0.5, -0.5]


def test_a_line_has_the_fields_that_say_more_than_their_default() -> None:
    """By their names, behind what the record is; texts are cut, long lists counted, and no bytes are shown."""
    record = small_run().log[Topic.LLM_CALLS][0]
    call = LLM_CALLS.decode(record.value)
    assert isinstance(call, CallRecord)
    call = msgspec.structs.replace(call, content="word \n" * 99)
    line = as_text(Topic.LLM_CALLS, msgspec.structs.replace(record, value=LLM_CALLS.encode(call)))
    assert " CallRecord " in line and f" call_id={call.call_id} " in line and " finish_reason=stop " in line
    assert f" content={('word ' * 12)[:57]}... " in line
    assert "sampled_ids" not in line and "conversation" not in line and "schema" not in line
    group = small_run().log[Topic.TRANSITIONS][0]
    assert " members=2 " in as_text(Topic.TRANSITIONS, group) and " rows=2" in as_text(Topic.TRANSITIONS, group)


def test_of_what_a_record_was_made_is_shown() -> None:
    """In JSON; a header that says nothing stays the text that it is."""
    log = small_run().log
    episode, group = log[Topic.EPISODES][0], log[Topic.TRANSITIONS][0]
    made = as_json(Topic.EPISODES, episode)["headers"]["tracegrad.made_of"]
    assert (made["closed_by"], made["revision"], "llm_calls/0" in made["parts"][made["id"]]) == ("complete", 0, True)
    assert as_json(Topic.TRANSITIONS, group)["headers"]["tracegrad.made_of"]["episodes"][0][0] == made["id"]
    odd = msgspec.structs.replace(episode, headers=(("tracegrad.made_of", b"\xff"),))
    assert as_json(Topic.EPISODES, odd)["headers"] == {"tracegrad.made_of": "\ufffd"}


def test_a_dead_letter_says_what_its_reason_means() -> None:
    """Also one of a later release, as far as it can."""
    record = Record(topic="t", partition=0, offset=5, key=None, value=b"")
    for reason, told in (("late", "late: It came for a rollout that has no open attempt any more"), ("odd", "odd")):
        letter = dead_letter_headers(record, stage="assemble", reason=reason, detail="d")
        line = as_text(Topic.DEAD_LETTERS, msgspec.structs.replace(record, headers=letter))
        assert f"assemble: {told}, from t/0@5: d" in line


@pytest.mark.parametrize("topic", list(Topic))
@pytest.mark.parametrize("value", [None, b"", b"\xff\xfe", b"{}", b"\x93\x01\x02"])
def test_malformed_records_are_shown_as_such(topic: Topic, value: bytes | None) -> None:
    """Whatever lies on a topic."""
    record = Record(topic=TOPICS.name(topic), partition=0, offset=5, key=b"\xff", value=value)
    assert "0@5" in as_text(topic, record)
    assert as_json(topic, record)["offset"] == 5
