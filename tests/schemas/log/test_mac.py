"""The MAC of a record: its bytes for ever, and what it vouches for."""

from __future__ import annotations

import pytest

from tests.forgery import HOW, OTHER, OTHER_KEY, forged
from tests.streams.make import RUN_HASH, rollout
from tracegrad.schemas.ids import RunHash
from tracegrad.schemas.log.mac import MAC_HEADER, SIGNED, KeyRing
from tracegrad.schemas.log.protocol import Headers, Record
from tracegrad.schemas.reasons import Reason
from tracegrad.schemas.topics import Topic

RUN = RunHash(RUN_HASH)
KEY = bytes(range(32))
RING = KeyRing(RUN, {RUN: KEY})
RELEASED = {
    Topic.REWARDS: "df0ea908ee016bfe7b7fd6b21e20f9b55654b207fdb42af602709b65e5bf5110",
    Topic.ROLLOUT_EVENTS: "688a98baacbdc4135bac0effd20dc5fd87394d115eb0a2fea32a9db32500f9de",
    Topic.TRAINING_STEPS: "5fc60ff3f900f43e025ba1fb7c4a24904cd5e871393391c3204122224ed8adc9",
    Topic.WEIGHTS: "57bf0376644b12cb42fdee2978de9f998b35806273c7683487694009fb215b0e",
    Topic.ADVANTAGES: "483760f53077b9c2c7b8bc34153686d5641e2b6efa0d916a2c98db4069d48fe0",
    Topic.WEIGHT_ACKS: "2239fb8aa51ef10453ec43c441b21ce15a6ae8a4df21bc706f6f1a59a3bf4788",
}
"""Signed topic -> the MAC of a record with key k and value v; other programs compute the same, from docs/topics.md."""


def record(topic: Topic, key: bytes | None, value: bytes | None, headers: Headers) -> Record:
    """As it is read."""
    return Record(topic=topic, partition=0, offset=0, key=key, value=value, headers=headers)


def test_the_header_is_part_of_the_contract() -> None:
    """Its name and its bytes."""
    for topic, mac in RELEASED.items():
        assert RING.sign(topic, b"k", b"v") == ("tracegrad.mac", f"{RUN}:{mac}".encode())
    assert RELEASED.keys() == SIGNED


@pytest.mark.parametrize("how", HOW)
def test_every_way_to_forge_is_refused(how: str) -> None:
    """Also by the key of a run that this one selects."""
    ring = KeyRing(RUN, {RUN: KEY, OTHER: OTHER_KEY})
    wishes = list(forged(len(SIGNED) * len(HOW), RING))
    found = wishes[HOW.index(how) * len(SIGNED) :][: len(SIGNED)]
    expected = Reason.UNSIGNED if how in ("unsigned", "two_macs") else Reason.MISMATCH
    for topic, key, value, headers in found:
        assert ring.refusal(topic, record(topic, key, value, headers)) is expected


@pytest.mark.parametrize("topic", [Topic.REWARDS, Topic.ROLLOUT_EVENTS])
def test_another_run_speaks_of_its_own_rollouts_where_it_is_selected(topic: Topic) -> None:
    """Its words about ours are none of its business, and its own topics are nobody else's."""
    other, own = KeyRing(OTHER, {OTHER: OTHER_KEY}), OTHER + "0" * 20
    selecting = KeyRing(RUN, {RUN: KEY, OTHER: OTHER_KEY})
    theirs = record(topic, own.encode(), b"v", (other.sign(topic, own.encode(), b"v"),))
    assert (selecting.refusal(topic, theirs), RING.refusal(topic, theirs)) == (None, Reason.OTHER_RUN)
    about_us = rollout(1).encode()
    meddling = record(topic, about_us, b"v", (other.sign(topic, about_us, b"v"),))
    assert selecting.refusal(topic, meddling) is Reason.MISMATCH
    copied = record(Topic.WEIGHTS, b"policy", b"v", (other.sign(Topic.WEIGHTS, b"policy", b"v"),))
    assert selecting.refusal(Topic.WEIGHTS, copied) is Reason.MISMATCH


def test_feedback_on_what_no_run_owns_is_believed_of_any_key_on_the_ring() -> None:
    """A trace's or a conversation's key names no run; a stranger's MAC is of another run, and none is unsigned."""
    for key, value in ((b"f" * 32, b"v"), (None, b"v"), (b"\xff", None)):
        signed = (RING.sign(Topic.REWARDS, key, value),)
        assert RING.refusal(Topic.REWARDS, record(Topic.REWARDS, key, value, signed)) is None
        stranger = (KeyRing(OTHER, {OTHER: OTHER_KEY}).sign(Topic.REWARDS, key, value),)
        assert RING.refusal(Topic.REWARDS, record(Topic.REWARDS, key, value, stranger)) is Reason.OTHER_RUN
        assert RING.refusal(Topic.REWARDS, record(Topic.REWARDS, key, value, ())) is Reason.UNSIGNED


@pytest.mark.parametrize("given", [b"", b":", b"0123abcd", b"0123abcd:", b"\xff:\xff", b"0123abcd:" + b"\xe9" * 64])
def test_headers_that_are_none_are_refused(given: bytes) -> None:
    """And nothing raises, whatever the bytes."""
    found = record(Topic.WEIGHTS, b"policy", b"v", ((MAC_HEADER, given),))
    assert RING.refusal(Topic.WEIGHTS, found) in (Reason.UNSIGNED, Reason.MISMATCH)


def test_no_byte_moves_between_topic_key_and_value() -> None:
    """Equal bytes cut elsewhere, or absent instead of empty, are another record."""
    cuts = [(b"ab", b"c"), (b"a", b"bc"), (b"", b"abc"), (None, b"abc"), (b"abc", b""), (b"abc", None)]
    assert len({RING.sign(Topic.REWARDS, *cut) for cut in cuts}) == len(cuts)


def test_topics_that_are_not_signed_are_not_judged() -> None:
    """A Collector signs nothing."""
    assert RING.refusal(Topic.OTLP_SPANS, record(Topic.OTLP_SPANS, None, b"v", ())) is None


def test_no_key_is_shown() -> None:
    """Not by a traceback, not in a log."""
    assert repr(RING) == f"KeyRing({RUN}, 1 keys)"
