"""Identities contain one another, are stable, and refuse what they are not."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracegrad.schemas import ids

RUNS = st.text("abz09-", min_size=1, max_size=40).map(ids.RunName)
HASHES = st.text("0123456789abcdef", min_size=8, max_size=8).map(ids.RunHash)
INDEXES = st.integers(0, 10**6)
ATTEMPTS = st.text("0123456789abcdef", min_size=4, max_size=4).map(ids.AttemptId)


@given(RUNS, st.datetimes().map(str), INDEXES, st.integers(0, 64), ATTEMPTS)
def test_each_id_begins_with_what_contains_it(
    run: ids.RunName, created_at: str, index: int, member: int, attempt: ids.AttemptId
) -> None:
    """The run's hash, then the rollout, then the attempt: an episode names all of them."""
    run_hash = ids.run_hash(run, created_at)
    group = ids.group_id(run_hash, "train", index)
    rollout = ids.rollout_id(group, member)
    episode = ids.episode_id(rollout, attempt)
    assert (len(run_hash), len(group), len(rollout), len(episode)) == (8, 24, 28, 32)
    assert ids.run_hash_of(group) == ids.run_hash_of(rollout) == ids.run_hash_of(episode) == run_hash
    assert ids.split_episode_id(episode) == (rollout, attempt)
    assert str(ids.parse_trace_id(episode)) == str(episode)
    assert ids.parse_rollout_id(rollout) == rollout


@given(HASHES, st.tuples(INDEXES, INDEXES), st.tuples(INDEXES, INDEXES))
def test_ids_differ_where_anything_differs(run: ids.RunHash, a: tuple[int, int], b: tuple[int, int]) -> None:
    """And are the same after a restart."""
    first = ids.rollout_id(ids.group_id(run, "train", a[0]), a[1])
    second = ids.rollout_id(ids.group_id(run, "train", b[0]), b[1])
    assert (first == second) == (a == b)
    assert ids.group_id(run, "train", a[0]) != ids.group_id(run, "validation", a[0])


def test_parts_of_a_digest_do_not_run_together() -> None:
    """`a` + `bc` and `ab` + `c` are different runs."""
    assert ids.run_hash(ids.RunName("a"), "bc") != ids.run_hash(ids.RunName("ab"), "c")


@given(st.lists(HASHES, max_size=3), HASHES, st.text("0123456789abcdef", min_size=24, max_size=25))
def test_an_episode_names_its_attempt_only_for_its_own_run(
    runs: list[ids.RunHash], run: ids.RunHash, rest: str
) -> None:
    """Any other trace, and what is no trace id at all, was captured."""
    own = ids.attempt_of(run + rest, [*runs, run])
    assert own == (ids.split_episode_id(run + rest) if len(rest) == 24 else None)
    assert ids.attempt_of(run + rest, [other for other in runs if other != run]) is None


@given(ATTEMPTS)
def test_drawn_ids_are_what_their_readers_look_for(attempt: ids.AttemptId) -> None:
    """An attempt is never the one that stands for none; a call matches its pattern."""
    drawn = ids.new_attempt()
    assert ids.parse_attempt_id(drawn) == drawn != ids.GIVEN_UP_ATTEMPT
    assert re.fullmatch(ids.CALL_ID, ids.new_call())


PARSERS: list[tuple[Callable[[str], str], str]] = [
    (ids.parse_run_name, r"[a-z0-9-]{1,40}"),
    (ids.parse_run_hash, r"[0-9a-f]{8}"),
    (ids.parse_rollout_id, r"[0-9a-f]{28}"),
    (ids.parse_attempt_id, r"[0-9a-f]{4}"),
    (ids.parse_trace_id, r"[0-9a-f]{32}"),
]


@pytest.mark.parametrize(("parse", "pattern"), PARSERS, ids=lambda value: getattr(value, "__name__", ""))
@given(text=st.one_of(st.text(max_size=50), st.text("0123456789abcdef-\n", max_size=41)))
def test_parser_takes_exactly_its_pattern(parse: Callable[[str], str], pattern: str, text: str) -> None:
    """Also no trailing newline and no digits of other scripts."""
    if re.fullmatch(pattern, text):
        assert parse(text) == text
    else:
        with pytest.raises(ValueError, match="expected"):
            parse(text)
