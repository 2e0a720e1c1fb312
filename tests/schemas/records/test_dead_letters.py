"""Dead letters: what their headers say can be read again."""

from __future__ import annotations

import msgspec

from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.records.dead_letters import dead_letter_fields, dead_letter_headers


def test_the_headers_of_a_letter_go_before_those_of_its_origin() -> None:
    """Of a letter that was made of a letter the last stage speaks; other headers of the origin stay beside."""
    record = Record(topic="llm_calls", partition=3, offset=7, key=None, value=b"x", headers=(("other", b"1"),))
    first = dead_letter_headers(record, stage="normalize", reason="malformed", detail="expected a call", item=2)
    letter = msgspec.structs.replace(record, topic="dead_letters", offset=9, headers=first)
    fields = {"stage": "normalize", "reason": "malformed", "detail": "expected a call", "item": "2"}
    assert dead_letter_fields(letter.headers) == fields | {"topic": "llm_calls", "partition": "3", "offset": "7"}
    again = dead_letter_fields(dead_letter_headers(letter, stage="audit", reason="odd"))
    assert again["topic"] == "dead_letters" and again["stage"] == "audit"
