"""Headers that say of what a record was made: sets of positions, bounded, never a reason to refuse a record."""

from __future__ import annotations

import itertools
from random import Random

import pytest

from tests.seeds import any_seed
from tracegrad.schemas.log.made_of import (
    MADE_OF_HEADER,
    MAX_BYTES,
    ORIGIN_HEADER,
    EpisodeRef,
    GroupMadeOf,
    MadeOf,
    Parts,
    made_of,
    made_of_header,
    merged,
    origin_header,
    origins_in,
    parse_place,
    place_of,
    raw_positions,
)
from tracegrad.schemas.log.protocol import Headers
from tracegrad.schemas.topics import Topic


def offsets(ranges: list[tuple[int, int]]) -> set[int]:
    """One by one."""
    return {offset for begin, end in ranges for offset in range(begin, end)}


def size_of(headers: Headers) -> int:
    """Of the only header."""
    ((_, value),) = headers
    return len(value)


def told(parts: Parts) -> MadeOf:
    """What the header of an episode of these says."""
    headers = made_of_header(MadeOf(id="e", key="e", group="g", closed_by="complete", parts=parts))
    assert size_of(headers) <= MAX_BYTES
    made = made_of(headers, MadeOf)
    assert made is not None
    return made


@any_seed
def test_ranges_are_a_set_in_any_order(seed: int) -> None:
    """Of single offsets and stretches, each any number of times; none touches the next."""
    random = Random(seed)
    ranges = [(begin, begin + random.randrange(4)) for begin in random.choices(range(100), k=40)]
    found = merged(ranges)
    assert merged(random.sample([*ranges, *ranges], 2 * len(ranges))) == found
    assert offsets(found) == offsets(ranges)
    assert all(end < begin for (_, end), (begin, _) in itertools.pairwise(found))


def test_what_fits_is_exact() -> None:
    """Whatever it is made of; equal parts give equal bytes."""
    parts: Parts = {"b": {"otlp_spans/1": [(3, 4), (1, 2)]}, "a": {"llm_calls/0": [(5, 9)], "rewards/2": [(7, 8)]}}
    made = told(parts)
    assert (made.gap, made.num_omitted) == (1, 0)
    assert made.parts == {**parts, "b": {"otlp_spans/1": [(1, 2), (3, 4)]}}
    assert origins_in(origin_header(parts)) == made.parts
    assert origin_header({}) == () == origin_header(origins_in(()))
    assert raw_positions([parts, parts])["otlp_spans/1"] == [(1, 2), (3, 4)]


def test_beyond_the_bound_near_ranges_are_told_as_one() -> None:
    """20,000 records, each alone: the header says by which gap, and leaves none of them out."""
    ranges = [(offset, offset + 1) for offset in sorted(Random(1).sample(range(10**9), 20_000))]
    made = told({"e": {"otlp_spans/0": ranges}})
    found = made.parts["e"]["otlp_spans/0"]
    assert (made.num_omitted, made.gap > 1, len(found) > 100) == (0, True, True)
    assert found == merged(ranges, gap=made.gap)
    assert all(begin - end >= made.gap for (_, end), (begin, _) in itertools.pairwise(found))
    assert size_of(origin_header({"e": {"otlp_spans/0": ranges}})) <= MAX_BYTES


def test_keys_that_do_not_fit_are_counted() -> None:
    """5,000 traces in one episode."""
    made = told({f"{number:032x}": {"otlp_spans/0": [(number, number + 1)]} for number in range(5_000)})
    assert len(made.parts) + made.num_omitted == 5_000
    assert len(made.parts) > 500


def test_a_groups_episodes_that_do_not_fit_are_counted() -> None:
    """A group of the greatest size; one of 64 fits."""
    refs = tuple(EpisodeRef(f"{number:032x}", 0, f"{number:064x}") for number in range(4_096))
    for num in (64, 4_096):
        headers = made_of_header(GroupMadeOf(group="g", episodes=refs[:num], feedback={"rewards/0": [(1, 2)]}))
        made = made_of(headers, GroupMadeOf)
        assert made is not None and size_of(headers) <= MAX_BYTES
        assert len(made.episodes) + made.num_omitted == num
        assert made.episodes == refs[: len(made.episodes)]
        assert (made.num_omitted > 0) == (num > 64)


@pytest.mark.parametrize(
    "value", [b"", b"\xff\xfe", b"[]", b"otlp_spans/2/5", b"[" * 100_000, b'{"e":{"otlp_spans/0":[[-1,2]]}}', b"{}"]
)
def test_a_header_of_anything_else_is_absent(value: bytes) -> None:
    """A record counts all the same."""
    assert origins_in(((ORIGIN_HEADER, value),)) == {}
    assert made_of(((MADE_OF_HEADER, value),), MadeOf) is None
    assert made_of(((MADE_OF_HEADER, value),), GroupMadeOf) is None


@pytest.mark.parametrize("text", ["", "otlp_spans", "otlp_spans/", "otlp_spans/x", "otlp_spans/-1", "spans/3", "/3"])
def test_a_place_is_a_topic_and_a_partition(text: str) -> None:
    """Each that is told is read again; what is none names nothing."""
    for topic in Topic:
        assert parse_place(place_of(topic, 3)) == (topic, 3)
    assert parse_place(text) is None
