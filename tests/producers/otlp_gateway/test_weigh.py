"""What a body takes once it is decoded is told before it is: two bytes of it can be an empty span of 180."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.producers.otlp_gateway.bodies import TRACE, request_of
from tracegrad.producers.budget import weigh_json
from tracegrad.producers.otlp_gateway.receive import weigh_protobuf

pytestmark = pytest.mark.slow
_ROOT = Path(__file__).parents[3]
_MEASURE = """
import asyncio, resource, sys
from tests.producers import hostile
from tests.producers.otlp_gateway.test_weigh import BODIES

async def ask(name):
    body, kind = BODIES[name]()
    async with hostile.otlp() as target:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        async with target.http.post(target.url + target.path, data=body, headers={"content-type": kind}) as answer:
            after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            print(answer.status, (after - before) // 1024)

asyncio.run(ask(sys.argv[1]))
"""


def field(number: int, value: bytes) -> bytes:
    """A field whose value has a length."""
    length, head = len(value), bytearray([number << 3 | 2])
    while length > 127:
        head.append(length & 127 | 128)
        length >>= 7
    return bytes([*head, length]) + value


def in_span(value: bytes) -> bytes:
    """A request with one span of this content."""
    return field(1, field(2, field(2, value)))


_NUM = 4_000_000
BODIES = {
    "spans": lambda: (field(1, field(2, b"\x12\x00" * _NUM)), "application/x-protobuf"),
    "attributes": lambda: (in_span(b"\x4a\x00" * _NUM), "application/x-protobuf"),
    "links": lambda: (in_span(b"\x6a\x00" * _NUM), "application/x-protobuf"),
    "resources": lambda: (b"\x0a\x00" * _NUM, "application/x-protobuf"),
    "values": lambda: (in_span(field(9, field(2, field(5, b"\x0a\x00" * _NUM)))), "application/x-protobuf"),
    "json": lambda: (b'{"resourceSpans":[' + b"{}," * _NUM + b"{}]}", "application/json"),
}
"""Bodies of 8 to 12 MB that decode to hundreds."""


@pytest.mark.parametrize("name", BODIES)
def test_a_body_that_would_decode_to_hundreds_of_megabytes_is_refused_before(name: str) -> None:
    """In a process of its own, whose memory it would have been."""
    command = [sys.executable, "-c", _MEASURE, name]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=100, check=True)
    status, megabytes = map(int, done.stdout.split())
    assert (status, megabytes < 100) == (413, True), megabytes


@given(st.lists(st.sampled_from([1, 2, 3, 9, 11, 13]), max_size=6), st.integers(1, 2_000))
def test_empty_messages_weigh_what_they_take(path: list[int], num: int) -> None:
    """Wherever they lie: upb takes 47 to 176 bytes for one."""
    body = (b"\x12\x00" * num) + (b"\x4a\x00" * num)
    for number in path:
        body = field(number, body)
    assert weigh_protobuf(body) >= num * (170 + 55)


def test_an_ordinary_body_weighs_little() -> None:
    """Of 512 spans with texts, numbers and code it is less than the body takes anyway."""
    text = 'hello: 22\n\n  {"a": [1, 2]}\n' * 20
    request = request_of([(TRACE, number) for number in range(512)], payload=text)
    for span in request.resource_spans[0].scope_spans[0].spans:
        for number in range(3):
            span.attributes.add(key=f"gen_ai.usage.{number}").value.int_value = 100 + number
    body = request.SerializeToString()
    assert weigh_protobuf(body) < 3 * len(body)
    assert weigh_json(json.dumps({"text": text}).encode()) < 20 * len(text)
