"""Identities contain one another, are stable, and refuse what they are not."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tracegrad.schemas import ids

RUNS = st.text("abz09-", min_size=1, max_size=40).map(ids.RunName)
HASHES = st.text("0123456789abcdef", min_size=8, max_size=8).map(ids.RunHash)
INDEXES = st.integers(0, 10**6)
ATTEMPTS = st.text("0123456789abcdef", min_size=4, max_size=4).map(ids.AttemptId)
KEYS = st.sampled_from((28, 32)).flatmap(lambda n: st.text("0123456789abcdef", min_size=n, max_size=n))


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
    """And are the same after a restart; `a` + `bc` and `ab` + `c` are different runs."""
    first = ids.rollout_id(ids.group_id(run, "train", a[0]), a[1])
    second = ids.rollout_id(ids.group_id(run, "train", b[0]), b[1])
    assert (first == second) == (a == b)
    assert ids.group_id(run, "train", a[0]) != ids.group_id(run, "validation", a[0])
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
    """An attempt is never the one that stands for none."""
    drawn = ids.new_attempt()
    assert ids.parse_attempt_id(drawn) == drawn != ids.GIVEN_UP_ATTEMPT


@given(KEYS, st.sampled_from(ids.WirePrefix), st.data())
def test_a_minted_id_carries_its_key_through_any_api(key: str, prefix: ids.WirePrefix, data: st.DataObject) -> None:
    """Rollout ids and 32 digits are told apart, leading zeros come back; at most 40 characters."""

    def draw(below: int) -> int:
        return data.draw(st.integers(0, below - 1))

    call, tool = ids.new_call(key, draw), ids.new_tool_call(key, draw)
    wire = ids.wire_id(call, prefix)
    assert re.fullmatch(ids.CALL_ID, wire)
    assert re.fullmatch(ids.TOOL_CALL_ID, tool)
    assert ids.canonical_call(wire) == call
    assert ids.canonical_call(tool) is None
    assert ids.key_in(wire) == ids.key_in(call) == ids.key_in(tool) == key
    assert max(map(len, (wire, call, tool))) <= 40


@pytest.mark.parametrize("key", ["0" * 28, "f" * 28, "0" * 32, "f" * 32])
def test_ids_of_one_key_differ_by_what_is_drawn(key: str) -> None:
    """The greatest and the least numbers too."""
    least, most = ids.new_call(key, lambda below: 0), ids.new_call(key, lambda below: below - 1)
    assert least != most
    assert ids.key_in(least) == ids.key_in(most) == key
    assert ids.new_call(key) != ids.new_call(key)
    assert ids.new_tool_call(key) != ids.new_tool_call(key)


def test_tool_calls_of_one_answer_know_each_other() -> None:
    """However many; another answer's do not, nor ids that are not minted here."""
    key = "f" * 32
    minted = [ids.new_tool_call(key)]
    while len(minted) < 5000:
        minted.append(ids.next_tool_call(minted[-1]))
    assert len(set(minted)) == len(minted)
    assert all(ids.share_answer(minted[0], other) and ids.key_in(other) == key for other in minted)
    for other in (ids.new_tool_call(key), "call_1", "", minted[0][:-1]):
        assert not ids.share_answer(minted[0], other) and not ids.share_answer(other, minted[0])
    assert not ids.share_answer("call_1", "call_1")


@pytest.mark.parametrize("key", ["", "f" * 27, "f" * 30, "F" * 32, "g" * 28, "f" * 32 + "\n"])
def test_what_is_no_key_mints_nothing(key: str) -> None:
    """Else its id would name another conversation."""
    with pytest.raises(ValueError, match="expected a key"):
        ids.new_call(key)


@given(st.text(max_size=60))
@example("chatcmpl-B9MBs8CjcvOU2jLn4n570S5qMJKcT")
@example("msg_01XFDUDYJgAACzvnptvVoYEL")
@example("resp_67ccd2bed1ec8190b14f964abc0542670bb6a6b452d3795b")
@example("call_abc")
def test_no_text_breaks_the_readers_of_ids(text: str) -> None:
    """Spans and feedback hold anything, and a provider's ids have other lengths; what is no minted id gives None, and
    any conversation id a key."""
    assert ids.key_in(text) is None
    assert ids.canonical_call(text) is None
    assert re.fullmatch("[0-9a-f]{32}", ids.conversation_key(text))


def test_an_id_that_carries_no_key_is_read_as_a_calls() -> None:
    """Of an older record, which the logs of the past hold as do recorded spans; and of as many digits as ours."""
    for other in (f"chatcmpl-{0x5F0C:032x}", "chatcmpl-" + "z" * 31):
        assert re.fullmatch(ids.CALL_ID, other)
        assert (ids.canonical_call(other), ids.key_in(other)) == (other, None)


def test_a_key_is_the_rollout_else_the_conversation_else_the_trace() -> None:
    """The order in which they bind."""
    assert [ids.key_of(*known) for known in (("r", "c", "t"), (None, "c", "t"), (None, None, "t"))] == ["r", "c", "t"]


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
