"""From an agent's export to what AIR may pay: the gateway, the signed log and the folds together."""

from __future__ import annotations

import os
from typing import Any

import httpx

from tests.memory_log import MemoryLog
from tests.producers.keys import KEY, by_host
from tests.streams.make import (
    HOST,
    RUN_HASH,
    TOPICS,
    Streams,
    call,
    closed,
    config,
    event,
    otlp,
    reward,
    rollout,
    tool_call,
    tool_span,
)
from tracegrad.producers.otlp_gateway.app import OtlpGateway
from tracegrad.producers.otlp_gateway.config import OtlpConfig, OtlpHandles
from tracegrad.schemas.attributes import PROVED_BY
from tracegrad.schemas.credentials import new_host
from tracegrad.schemas.ids import RunHash
from tracegrad.schemas.log.follow import read_to_end
from tracegrad.schemas.log.mac import MAC_HEADER, KeyRing
from tracegrad.schemas.log.signed import SignedLog
from tracegrad.schemas.metrics import Metrics
from tracegrad.schemas.records.episodes import EPISODES, Episode
from tracegrad.schemas.topics import Topic
from tracegrad.streams.assemble.air.rules import AirRule

NUM_TRIES = int(os.environ.get("TRACEGRAD_TEST_TRIES", "100"))
"""Of forged records; the long form of this test is a larger one."""
R1 = rollout(1)
OWN = R1 + "a001"
RULES = (AirRule(name="ok", status="succeeded", value=0.5, cap=9),)
CALLS = [call("a", R1, [1], [2], tool_calls=(tool_call("one"), tool_call("two")))]
RUN, OTHER = RunHash(RUN_HASH), RunHash("0badcafe")
SPANS = TOPICS.name(Topic.OTLP_SPANS)


def ran(number: int, of: str, **resource: Any) -> bytes:
    """A tool that succeeded."""
    tool = tool_span(OWN, number, at=5, gen_ai__tool__call__id=f"call_{of}", status=1)
    return otlp(tool, **resource)


async def export(log: SignedLog, body: bytes, headers: dict[str, str]) -> int:
    """What the gateway of the run answers."""
    handles = OtlpHandles(port=0, run_hash=RUN, key=KEY, ack_timeout_s=8.0)
    gateway = OtlpGateway(OtlpConfig(), handles, topics=TOPICS, writer=log.writer(), metrics=Metrics())
    transport = httpx.ASGITransport(app=gateway.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        sent = {"content-type": "application/x-protobuf"} | headers
        return (await client.post("/v1/traces", content=body, headers=sent)).status_code


def episode_of(log: SignedLog) -> Episode:
    """What the folds make of the spans on the log."""
    streams = Streams(config(air=RULES, deadline_s=1.0))
    for record in read_to_end(log, SPANS):
        streams.append(Topic.OTLP_SPANS, record.value, headers=record.headers)
    streams.feed(*CALLS, closed(R1, CALLS), reward(R1), event(R1, spans_exported=None))
    streams.tick(0.0, 2.0)
    (value,) = streams.values(Topic.EPISODES)
    return EPISODES.decode(value)


async def test_spans_past_the_gateway_are_shown_and_paid_nothing() -> None:
    """Whatever mark and header they bear: none, another run's, that of another record; the agent's own are paid."""
    raw = MemoryLog()
    raw.create_topics(TOPICS, policies=["policy"])
    log = SignedLog(raw, KeyRing(RUN, {RUN: KEY}), topics=TOPICS, metrics=Metrics())
    assert await export(log, ran(2, "one"), by_host()) == 200
    assert await export(log, ran(3, "two"), by_host(new_host())) == 200
    [seen] = [header for header in raw.records(SPANS)[0].headers if header[0] == MAC_HEADER]
    for number in range(NUM_TRIES):
        body, key = ran(100 + number, "two", **{PROVED_BY: HOST}), OWN.encode()
        of_other = KeyRing(OTHER, {OTHER: bytes(32)}).sign(Topic.OTLP_SPANS, key, body)
        lied = (MAC_HEADER, RUN_HASH.encode() + of_other[1][8:])
        raw.append(SPANS, key, body, [(), (seen,), (of_other,), (lied,), (seen, seen)][number % 5], 0)
    episode = episode_of(log)
    assert [reward.value for reward in episode.calls[0].rewards] == [0.5]
    assert [(tool.tool_call_id, tool.is_proved) for tool in episode.calls[0].tools] == [
        ("call_one", True),
        ("call_two", False),
    ]
    assert (episode.num_spans, episode.num_unproved_spans) == (NUM_TRIES + 2, NUM_TRIES + 1)
