"""Segments: exact-prefix chains in which each sampled token stands exactly once."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.prompts import rebuild_prompt
from tests.schemas.released import SUMMARY
from tests.versions import sampled_by
from tracegrad.schemas.errors import RecordError
from tracegrad.schemas.records.calls import Purpose, SpliceOutcome
from tracegrad.schemas.records.episodes import Episode, EpisodeCall
from tracegrad.schemas.records.rollouts import RolloutState
from tracegrad.schemas.records.tokens import ids_from_bytes, ids_to_bytes, logprobs_to_bytes
from tracegrad.schemas.records.transitions import SegmentRow, decode_group, encode_group
from tracegrad.streams.credit.segments import MAX_ROW_BYTES, build_segments, why_masked
from tracegrad.streams.credit.strategies.strategy import CallCredit


def call(name: str, suffix: Sequence[int], sampled: Sequence[int], **changes: Any) -> EpisodeCall:
    """A call whose n-th sampled token has logprob -(n + 1)."""
    fields: dict[str, Any] = {
        "turn": 0, "agent": None, "joined_by": "none", "policy": "policy", "parent_call_id": None, "shared_tokens": 0,
        "logprobs": logprobs_to_bytes([-float(n + 1) for n in range(len(sampled))]),
        "versions": (sampled_by(1),), "temperature": 1.0, "finish_reason": "stop",
        "content": None, "splice": SpliceOutcome(kind="first"),
    }  # fmt: skip
    return EpisodeCall(
        call_id=name, suffix_ids=ids_to_bytes(suffix), sampled_ids=ids_to_bytes(sampled), **{**fields, **changes}
    )


def child(
    name: str, parent: str, shared: int, suffix: Sequence[int], sampled: Sequence[int], **rest: Any
) -> EpisodeCall:
    """A call that shares a prefix with another's prompt + sampled ids."""
    return call(name, suffix, sampled, parent_call_id=parent, shared_tokens=shared, **rest)


def segments(calls: Sequence[EpisodeCall], policy: str = "policy") -> list[SegmentRow]:
    """The rows of an episode with these calls, each worth nothing."""
    episode = Episode(
        episode_id="episode", rollout_id=None, attempt_id=None, group=None, task_id=None, policy=policy,
        purpose=Purpose.TRAIN, state=RolloutState.SUCCEEDED, is_final=True, closed_by="complete", calls=tuple(calls),
        reward=0.0,
    )  # fmt: skip
    return build_segments(episode, policy, [CallCredit(0.0, "")] * len(calls))


def test_a_chain_of_two_turns_is_one_row() -> None:
    """Prompt 1 2, sampled 3 4; the next prompt adds the tool's 5 6; sampled 7."""
    (row,) = segments([call("a", [1, 2], [3, 4]), child("b", "a", 4, [5, 6], [7])])
    assert row.token_ids.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert row.loss_mask.tolist() == [0, 0, 1, 1, 0, 0, 1]
    assert row.logprobs.tolist() == [0, 0, -1, -2, 0, 0, -1]
    assert [(piece.call_id, piece.start, piece.end) for piece in row.turns] == [("a", 2, 4), ("b", 6, 7)]


def test_a_prompt_that_drops_tokens_starts_a_new_row() -> None:
    """It shares only 1 2 3 with its parent: the history was changed."""
    rows = segments([call("a", [1, 2], [3, 4]), child("b", "a", 3, [9], [7])])
    assert [row.token_ids.tolist() for row in rows] == [[1, 2, 3, 4], [1, 2, 3, 9, 7]]
    assert [row.loss_mask.tolist() for row in rows] == [[0, 0, 1, 1], [0, 0, 0, 0, 1]]


def test_branches_repeat_the_prefix_with_mask_zero() -> None:
    """Two calls continue `a`: the first stays in the row, the second repeats what was sampled without training it."""
    calls = [call("a", [1], [2]), child("b", "a", 2, [3], [4]), child("c", "a", 2, [5], [6])]
    rows = segments(calls)
    assert [row.token_ids.tolist() for row in rows] == [[1, 2, 3, 4], [1, 2, 5, 6]]
    assert [row.loss_mask.tolist() for row in rows] == [[0, 1, 0, 1], [0, 0, 0, 1]]
    assert [[piece.call_id for piece in row.turns] for row in rows] == [["a", "b"], ["c"]]


def test_parallel_calls_are_not_chained_by_time() -> None:
    """Same prompt, one after the other on the log: two rows."""
    rows = segments([call("a", [1, 2], [3]), call("b", [1, 2], [4])])
    assert [row.token_ids.tolist() for row in rows] == [[1, 2, 3], [1, 2, 4]]


def test_an_equal_prefix_chains_without_a_declared_parent() -> None:
    """The match is on tokens; the reference only stores the prompt."""
    (row,) = segments([call("a", [1], [2]), call("b", [1, 2, 3], [4])])
    assert row.token_ids.tolist() == [1, 2, 3, 4]


def test_a_masked_call_keeps_its_tokens() -> None:
    """A truncated answer stays context for what follows."""
    calls = [call("a", [1], [2, 3], masked="truncated"), child("b", "a", 3, [4], [5])]
    (row,) = segments(calls)
    assert (row.token_ids.tolist(), row.loss_mask.tolist()) == ([1, 2, 3, 4, 5], [0, 0, 0, 0, 1])
    assert row.logprobs.tolist() == [0, 0, 0, 0, -1]
    assert [piece.masked for piece in row.turns] == ["truncated", ""]


@pytest.mark.parametrize("temperature", [0.0, math.nan, math.inf, 1e-38, 1e30, -1.0])
@pytest.mark.parametrize("masked", ["", "truncated"])
def test_what_credit_writes_the_trainer_can_read(masked: str, temperature: float) -> None:
    """A call that cannot train says no temperature: it must not make its whole group malformed."""
    rows = segments([call("a", [1], [2, 3], masked=masked, temperature=temperature), child("b", "a", 3, [4], [5])])
    member = replace(SUMMARY.members[0], rollout_id="episode")
    assert decode_group(encode_group(replace(SUMMARY, members=(member,)), rows))[1] == rows
    assert [piece.temperature for piece in rows[0].turns] == [0.0, 1.0]


def test_other_policies_are_context() -> None:
    """A prompt may rest on another policy's call; its tokens are not sampled here."""
    calls = [call("a", [1], [2], policy="other"), child("b", "a", 2, [3], [4])]
    (row,) = segments(calls)
    assert (row.token_ids.tolist(), row.loss_mask.tolist()) == ([1, 2, 3, 4], [0, 0, 0, 1])
    (other,) = segments(calls, "other")
    assert other.token_ids.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ([child("b", "gone", 1, [3], [4])], "broken_prefix"),
        ([child("b", "b", 1, [3], [4])], "broken_prefix"),
        ([child("b", "c", 1, [3], [4]), child("c", "b", 1, [3], [4])], "broken_prefix"),
        ([call("a", [1], [2], shared_tokens=1)], "broken_prefix"),
        ([call("a", [1], [2], logprobs=b"", shared_tokens=2)], "broken_prefix"),
        ([call("a", [1], [-2])], "bad_tokens"),
    ],
    ids=["lost-parent", "self", "circle", "no-parent", "shared-alone", "negative"],
)
def test_a_broken_prompt_is_refused_with_its_reason(broken: list[EpisodeCall], reason: str) -> None:
    """Training on text that the model never saw is worse than no sample; no vocabulary has negative ids."""
    with pytest.raises(RecordError) as error:
        segments(broken)
    assert error.value.reason == reason


@pytest.mark.parametrize("policy", ["other", "policy"])
@pytest.mark.parametrize(("parent", "shared"), [("gone", 4), ("a", 3), ("a", -1)], ids=["lost", "beyond", "negative"])
def test_a_break_elsewhere_costs_nothing(policy: str, parent: str, shared: int) -> None:
    """A broken call does not matter to calls that do not rest on it; those that do are left out too."""
    calls = [child("x", parent, shared, [1], [1], policy=policy), child("y", "x", 1, [1], [1], policy=policy)]
    (row,) = segments([call("a", [1], [2]), *calls])
    assert [turn.call_id for turn in row.turns] == ["a"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ""),
        ({"masked": "constrained"}, "constrained"),
        ({"logprobs": logprobs_to_bytes([-1.0])}, "bad_logprobs"),
        ({"logprobs": logprobs_to_bytes([-1.0, math.nan])}, "bad_logprobs"),
        ({"logprobs": logprobs_to_bytes([-1.0, 0.5])}, "bad_logprobs"),
        ({"temperature": 0.0}, "bad_temperature"),
        ({"temperature": math.nan}, "bad_temperature"),
        ({"temperature": math.inf}, "bad_temperature"),
        ({"temperature": 1e-38}, "bad_temperature"),
        ({"versions": (sampled_by(-1),)}, "bad_versions"),
        ({"versions": ()}, "bad_versions"),
        ({"versions": (sampled_by(1, start=1),)}, "bad_versions"),
    ],
)
def test_calls_whose_numbers_cannot_train_are_masked(changes: dict[str, Any], expected: str) -> None:
    """One bad call must not make the whole group unreadable."""
    assert why_masked(call("a", [1], [2, 3], **changes)) == expected


@st.composite
def trees(draw: st.DrawFn) -> list[EpisodeCall]:
    """Episodes of up to eight calls with few distinct tokens, so that prefixes meet by chance too."""
    tokens = st.lists(st.integers(0, 2), max_size=3)
    calls: list[EpisodeCall] = []
    full: list[list[int]] = []
    for number in range(draw(st.integers(1, 8))):
        suffix, sampled = draw(tokens) * draw(st.integers(1, 6)), draw(tokens)
        parent = draw(st.integers(-1, number - 1))
        shared = (
            draw(st.sampled_from([len(full[parent]), draw(st.integers(0, len(full[parent])))])) if parent >= 0 else 0
        )
        fields = {"parent_call_id": str(parent), "shared_tokens": shared} if parent >= 0 else {}
        calls.append(call(str(number), suffix, sampled, **fields))
        full.append((full[parent][:shared] if parent >= 0 else []) + suffix + sampled)
    return calls


@given(trees())
def test_segments_partition_the_sampled_tokens(calls: list[EpisodeCall]) -> None:
    """Each call is one slice of one row, after exactly its own prompt; the mask is the union of the slices."""
    prompts: list[bytes] = []
    full: dict[str, bytes] = {}
    for one in calls:
        prompts.append(rebuild_prompt(one, full) or b"")
        full[one.call_id] = prompts[-1] + one.sampled_ids
    rows = segments(calls)
    assert sorted(piece.call_id for row in rows for piece in row.turns) == sorted(c.call_id for c in calls)
    for row in rows:
        trained = [0] * len(row.token_ids)
        for piece in row.turns:
            number = int(piece.call_id)
            assert row.token_ids[: piece.start].tolist() == ids_from_bytes(prompts[number]).tolist()
            assert row.token_ids[piece.start : piece.end].tolist() == ids_from_bytes(calls[number].sampled_ids).tolist()
            trained[piece.start : piece.end] = [1] * (piece.end - piece.start)
        assert row.loss_mask.tolist() == trained
    assert sum(row.loss_mask.sum() for row in rows) == sum(len(c.sampled_ids) // 4 for c in calls)


@given(trees())
def test_rows_are_those_of_whole_prompts_compared(calls: list[EpisodeCall]) -> None:
    """A call continues the longest row that its prompt begins with, of equal ones the first, or begins its own."""
    full: dict[str, bytes] = {}
    expected: list[tuple[bytes, list[str]]] = []
    for one in calls:
        prompt = rebuild_prompt(one, full) or b""
        full[one.call_id] = prompt + one.sampled_ids
        ends = [(len(ids), -number) for number, (ids, _) in enumerate(expected) if prompt.startswith(ids)]
        number = -max(ends)[1] if ends else len(expected)
        names = expected[number][1] if ends else []
        expected[number : number + 1] = [(full[one.call_id], [*names, one.call_id])]
    rows = segments(calls)
    assert [(ids_to_bytes(row.token_ids), [piece.call_id for piece in row.turns]) for row in rows] == expected


class Counted(bytes):
    """Ids that count how many bytes of them are looked at."""

    num_bytes = 0

    def __getitem__(self, key: Any) -> Any:
        part = super().__getitem__(key)
        Counted.num_bytes += len(part)
        return part


@pytest.mark.parametrize("num_apart", [1, 2])
def test_prompts_that_fork_off_each_other_are_read_once(num_apart: int) -> None:
    """Each shares a token or two more than the one before: its ids are not compared again at every fork."""
    num_calls, num_own = 100, 500
    calls = [call(str(n), [1] * num_apart * n + [10 + n] * num_own, [4]) for n in range(num_calls)]
    calls = [replace(one, suffix_ids=Counted(one.suffix_ids)) for one in calls]
    Counted.num_bytes = 0
    assert len(segments(calls)) == num_calls
    assert Counted.num_bytes < 4 * sum(len(one.suffix_ids) for one in calls)


@pytest.mark.slow
def test_ten_thousand_turns_are_one_row_however_long_their_prompts_sum_to() -> None:
    """Each turn adds three tokens, so the prompts sum to 600 MB and the row to 120 kB; the time grows with the row."""
    num_turns = 10_000
    calls = [call("0", [1, 2], [3])]
    calls += [child(str(n), str(n - 1), 3 * n, [1, 2], [3]) for n in range(1, num_turns)]
    (row,) = segments(calls)
    assert row.token_ids.tolist() == [1, 2, 3] * num_turns
    assert row.loss_mask.tolist() == [0, 0, 1] * num_turns
    assert [piece.start for piece in row.turns] == [3 * n + 2 for n in range(num_turns)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["apart", "from the middle", "each off the last"])
def test_time_grows_with_the_number_of_rows(kind: str) -> None:
    """A row for each call: of conversations that share a system prompt, of retries, of a last token never kept."""
    num_rows = 1_000 if kind == "each off the last" else 10_000
    calls = [call("0", [1, 2, 3], [4])]
    if kind == "apart":
        calls += [call(str(n), [1, 2, 10 + n], [4] * (n % 7)) for n in range(1, num_rows)]
    elif kind == "from the middle":
        calls = [call("0", [1] * num_rows, [4])]
        calls += [child(str(n), "0", 10 + n // 100, [10 + n], [4]) for n in range(1, num_rows)]
    else:
        calls += [child(str(n), str(n - 1), 2 * n + 1, [10], [4, 4]) for n in range(1, num_rows)]
    began = time.process_time()
    assert len(segments(calls)) == num_rows
    assert time.process_time() - began < 3.0


@pytest.mark.slow
def test_branches_that_unfold_without_bound_are_refused() -> None:
    """Each repeats a long prompt, in a few bytes of the record."""
    long = call("0", [1] * (MAX_ROW_BYTES // 40), [2])
    branches = [child(f"b{n}", "0", MAX_ROW_BYTES // 40, [n], [3]) for n in range(10)]
    with pytest.raises(RecordError) as error:
        segments([long, *branches])
    assert error.value.reason == "too_large"
