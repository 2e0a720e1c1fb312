"""Records that nobody should have written: mutants of the released ones, for every reader of every topic.

    for record in mutants(Topic.WEIGHTS, "run.weights", 300): ...

In: a topic and a number. Out: records at the offsets 0, 1, .. of partition 0, the same for the same arguments: bytes
cut, flipped, doubled; other values deep inside (NUL, a megabyte, huge and negative numbers, NaN, wrong types, halves of
surrogate pairs, deep nesting); other keys and headers; none at all. Most decode, so that they reach what is behind the
decoder. POISON_MUTANTS in the environment sets how many there are of each topic.
"""

from __future__ import annotations

import copy
import json
import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pyarrow as pa
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.schemas.released import GOLDEN
from tests.streams.make import agent_span, otlp, tool_span
from tracegrad.schemas.log.protocol import Headers, Record
from tracegrad.schemas.topics import Topic

NUM = int(os.environ.get("POISON_MUTANTS", "40"))
_FILES = {
    Topic.LLM_CALLS: ("call-1.msgpack", "calls_closed-1.msgpack"),
    Topic.REWARDS: ("reward-1.json",),
    Topic.ROLLOUT_EVENTS: ("rollout_event-1.json", "rollout_event-1-b.json"),
    Topic.ROLLOUTS: ("rollout-1.json",),
    Topic.EPISODE_EVENTS: ("facts-1.msgpack", "facts-1-b.msgpack", "close-1.msgpack"),
    Topic.CLOSED_EPISODES: ("closed-1.json",),
    Topic.CLOSED_GROUPS: ("closed-1.json",),
    Topic.EPISODES: ("episode-1.json",),
    Topic.EPISODE_SCORES: ("score-1.json", "emitted-1.json"),
    Topic.TRANSITIONS: ("transitions-1.arrow",),
    Topic.WEIGHTS: ("epoch_claim-1.json", "version-1.json", "rollback-1.json", "held_out_pass-1.json"),
    Topic.WEIGHT_ACKS: ("weight_ack-1.json",),
    Topic.TRAINING_STEPS: ("training_step-1.json",),
    Topic.ADVANTAGES: ("advantages-1.json",),
    Topic.PROCESS_STATUS: ("process_report-1.json", "supervised_process-1.json"),
}
_TRACE = "1f2e3d4c" + "0123456789abcdef0123" + "9a3c"
_SPANS = otlp(agent_span(_TRACE, 1, "planner"), tool_span(_TRACE, 2, parent=1))
GOOD: dict[Topic, tuple[bytes, ...]] = {
    **{topic: tuple((GOLDEN / name).read_bytes() for name in names) for topic, names in _FILES.items()},
    Topic.OTLP_SPANS: (_SPANS,),
    Topic.OTLP_LOGS: (_SPANS,),
    Topic.DEAD_LETTERS: (b"anything",),
}
"""Records of each topic that every reader takes."""

_BIG = "x" * 1_000_000
_ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**53, 2**63 - 1, 2**63, -(2**63), 2**64 - 1, 10**40, 0.5, -0.0, 1e308, 1e-320,
    float("nan"), float("inf"), "", "\x00", "a\x00b", "/etc/\x00", "../" * 40,
    "/" + "n" * 5000, _BIG, "\ud800", "\u202e", "\x1b]0;x\x07", "nan", "version", "epoch_claim", "unknown",
    [], {}, [[]], [None], ["\x00"], {"": None}, {"\x00": {}},
    {"type": "x"}, b"", b"\x00", b"abc", b"\xff" * 4096,
)  # fmt: skip
_HEADERS: tuple[Headers, ...] = (
    (),
    (("", b""),),
    (("\x00", b"\xff\x00"), ("traceparent", b"00-zz")),
    tuple((f"h{number}", b"x" * 100) for number in range(200)),
    (
        ("tracegrad.reason", b"\xff"),
        ("tracegrad.topic", b"x"),
        ("tracegrad.partition", b"-1"),
        ("tracegrad.offset", b"n"),
    ),
    (("tracegrad.origin", b"\x00" * 1000),),
)
_KEYS: tuple[bytes | None, ...] = (None, b"", b"\x00", b"\xff\xfe", b"policy", b"k" * 100_000)


def mutants(topic: Topic, name: str, num: int = NUM, *, seed: int = 0) -> Iterator[Record]:
    """`num` of them, of the topic whose full name is `name`."""
    draw = random.Random(f"{topic}-{seed}")
    for offset in range(num):
        value = _value(topic, draw)
        key = draw.choice(_KEYS) if draw.random() < 0.3 else b"policy"
        headers = draw.choice(_HEADERS) if draw.random() < 0.3 else ()
        yield Record(topic=name, partition=0, offset=offset, key=key, value=value, headers=headers)


def _value(topic: Topic, draw: random.Random) -> bytes | None:
    if draw.random() < 0.05:
        return None
    good = draw.choice(GOOD[topic])
    if draw.random() < 0.35 or topic is Topic.DEAD_LETTERS:
        return _broken(good, draw)
    if topic in (Topic.OTLP_SPANS, Topic.OTLP_LOGS):
        return _odd_spans(good, draw)
    if topic is Topic.TRANSITIONS:
        return _odd_group(good, draw)
    if topic in (Topic.LLM_CALLS, Topic.EPISODE_EVENTS):
        return _odd_msgpack(good, draw)
    return _odd_json(good, draw)


def _broken(good: bytes, draw: random.Random) -> bytes:
    """Other bytes, whatever they mean."""
    at = draw.randrange(len(good))
    flipped = bytearray(good)
    for _ in range(draw.randint(1, 8)):
        flipped[draw.randrange(len(good))] ^= 1 << draw.randrange(8)
    return draw.choice(
        (
            good[:at],
            bytes(flipped),
            bytes(flipped),
            good[:at] + good,
            good + good,
            good[:at] + draw.randbytes(draw.randint(1, 64)) + good[at:],
            b"",
            b"\x00",
            b"null",
            b"[" * 200_000,
            b'{"a":' * 100_000,
            b"\x91" * 200_000,
            b"\x81\xa1a" * 100_000,
            b"\xdd\xff\xff\xff\xff",
            b"\xdf\xff\xff\xff\xff",
            b"\xc6\xff\xff\xff\xff",
            b"\n" * 1_000_000,
            draw.randbytes(1000),
        )
    )


def _places(value: Any) -> list[tuple[Any, Any]]:
    """(container, key) of everything within."""
    found = []
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        found += [(value, key), *_places(value[key])]
    return found


def _change(value: Any, draw: random.Random) -> Any:
    """The same with other values at one to three places."""
    value = copy.deepcopy(value)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        container, key = draw.choice(_places(value) or [([0], 0)])
        how = draw.random()
        if how < 0.1:
            del container[key]
        elif how < 0.15:
            container[key] = [container[key]] * 3
        elif how < 0.2:
            for _ in range(draw.choice((30, 500, 5_000))):
                container[key] = [container[key]] if draw.random() < 0.5 else {"a": container[key]}
        else:
            # Mostly of the same type, or few would get past the decoder.
            alike = [odd for odd in _ODD if type(odd) is type(container[key])]
            container[key] = copy.deepcopy(draw.choice(alike if alike and draw.random() < 0.8 else _ODD))
    return value


def _encoded(encode: Callable[[Any], bytes], good: Any, draw: random.Random) -> bytes:
    """The first change that this wire can hold."""
    while True:
        try:
            return encode(_change(good, draw))
        except (ValueError, TypeError, OverflowError, RecursionError, msgspec.MsgspecError, UnicodeError):
            continue


def _json_bytes(value: Any) -> bytes:
    """With NaN and lone surrogates as some writers write them."""
    return json.dumps(value).encode()


def _odd_json(good: bytes, draw: random.Random) -> bytes:
    return _encoded(_json_bytes, json.loads(good), draw)


def _odd_msgpack(good: bytes, draw: random.Random) -> bytes:
    return _encoded(msgspec.msgpack.encode, msgspec.msgpack.decode(good), draw)


def _odd_group(good: bytes, draw: random.Random) -> bytes:
    """Another summary, or other values in the columns."""
    table = pa.ipc.open_stream(good).read_all()
    schema, rows = table.schema, table.to_pylist()
    metadata = dict(schema.metadata)
    if draw.random() < 0.5:
        metadata = {key: _odd_json(value, draw) for key, value in metadata.items()}
    else:
        rows = _encoded_rows(rows, schema, draw)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema.with_metadata(metadata)) as writer:
        for batch in pa.Table.from_pylist(rows, schema=schema.with_metadata(metadata)).to_batches():
            writer.write_batch(batch)
    encoded: bytes = sink.getvalue().to_pybytes()
    return encoded


def _encoded_rows(rows: list[Any], schema: pa.Schema, draw: random.Random) -> list[Any]:
    while True:
        try:
            changed = _change(rows, draw)
            pa.Table.from_pylist(changed, schema=schema)
        except (pa.ArrowException, ValueError, TypeError, AttributeError, OverflowError, RecursionError, UnicodeError):
            continue
        return list(changed)


def _odd_spans(good: bytes, draw: random.Random) -> bytes:
    """Other ids, names, times and values of attributes."""
    request = ExportTraceServiceRequest.FromString(good)
    for resource_spans in request.resource_spans:
        for span in resource_spans.scope_spans[0].spans:
            span.name = draw.choice(("", "\x00", _BIG, "\x1b[2J", span.name))
            span.trace_id = draw.choice((b"", b"\x00" * 16, b"x" * 15, span.trace_id, span.trace_id, span.trace_id))
            span.span_id = draw.choice((b"", b"\x00" * 8, span.span_id, span.span_id, span.span_id))
            span.parent_span_id = draw.choice((b"", span.span_id, b"1", span.parent_span_id))
            span.start_time_unix_nano = draw.choice((0, 2**64 - 1, span.start_time_unix_nano))
            span.dropped_attributes_count = draw.choice((0, 2**32 - 1))
            for pair in span.attributes:
                pair.key = draw.choice((pair.key, pair.key, "", "\x00", "rollout.id", "gen_ai.response.id"))
                inner = pair.value
                match draw.randrange(8):
                    case 0:
                        inner.string_value = draw.choice(("", "\x00", _BIG))
                    case 1:
                        inner.int_value = draw.choice((0, -(2**63), 2**63 - 1))
                    case 2:
                        inner.double_value = draw.choice((float("nan"), float("-inf"), 1e308))
                    case 3:
                        inner.bytes_value = b"\xff" * draw.randint(0, 100)
                    case 4:
                        for _ in range(draw.choice((5, 40))):
                            inner = inner.array_value.values.add()
    value: bytes = request.SerializeToString()
    return value
