"""Groups become transitions: returns by hand, every reason for exclusion, no influence of order."""

from __future__ import annotations

import random
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.streams.credit.test_segments import call, child
from tests.streams.make import RUN_HASH, TOPICS, config, rollout
from tests.versions import sampled_by
from tracegrad.schemas.beat import Beat, kept
from tracegrad.schemas.fold import Emission
from tracegrad.schemas.ids import GroupId, rollout_id
from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.metrics import CALLS_LEFT_OUT, CREDIT_EPISODES, MEMBERS_EXCLUDED
from tracegrad.schemas.records.calls import Purpose
from tracegrad.schemas.records.dead_letters import dead_letter_fields
from tracegrad.schemas.records.episodes import CLOSED, EPISODES, AppliedReward, Episode, EpisodeCall
from tracegrad.schemas.records.rollouts import GroupRef, RolloutState
from tracegrad.schemas.records.transitions import decode_group
from tracegrad.schemas.topics import Topic, Topics
from tracegrad.streams.config import StreamRules
from tracegrad.streams.credit.fold import OVERTAKEN, Credit
from tracegrad.streams.credit.strategies.return_to_go import returns_to_go

GROUP_ID = RUN_HASH + "e" * 16


def turns(*bonuses: float) -> tuple[EpisodeCall, ...]:
    """A chain of calls; call n samples token 10 + n and earns bonus n from rule `air:ok`."""
    calls: list[EpisodeCall] = []
    for number, bonus in enumerate(bonuses):
        rewards = (AppliedReward(rule="air:ok", value=bonus),) if bonus else ()
        fields: dict[str, Any] = {"turn": number, "rewards": rewards, "agent": "calculator"}
        if number == 0:
            calls.append(call("c0", [1], [10], **fields))
        else:
            calls.append(child(f"c{number}", f"c{number - 1}", 2 * number, [2], [10 + number], **fields))
    return tuple(calls)


def member(number: int, *, size: int = 2, **changes: Any) -> Episode:
    """A final, scored training episode of two turns."""
    fields: dict[str, Any] = {
        "rollout_id": rollout(number), "attempt_id": "a001", "task_id": "task-1", "policy": "policy",
        "group": GroupRef(id=GROUP_ID, size=size, member=number, index=4), "purpose": Purpose.TRAIN,
        "state": RolloutState.SUCCEEDED, "is_final": True, "closed_by": "complete", "calls": turns(0.5, 0.0),
        "reward": 1.0,
    }  # fmt: skip
    return Episode(episode_id=rollout(number) + "a001", **{**fields, **changes})


def record(episode: Episode | bytes, offset: int) -> Record:
    """As read from `episodes`."""
    value = EPISODES.encode(episode) if isinstance(episode, Episode) else episode
    return Record(topic="test.episodes", partition=3, offset=offset, key=b"k", value=value)


def feed(credit: Credit, *episodes: Episode | bytes) -> list[Emission]:
    """The emissions of some episodes."""
    return [credit.fold(record(episode, offset)) for offset, episode in enumerate(episodes)]


def close(*episodes: Episode, settings_: StreamRules | None = None, topics: Topics = TOPICS) -> Emission:
    """The emission that closes a group."""
    emission = feed(Credit(settings_ or config(), topics), *episodes)[-1]
    assert emission.marker is not None
    return emission


def test_each_member_of_a_group_gives_a_beat() -> None:
    """One may take seconds, and a group has up to thousands."""
    credit = Credit(config(), TOPICS)
    feed(credit, *(member(number, size=5) for number in range(4)))
    beats: list[Beat] = []
    with kept(beats.append):
        beats.clear()
        credit.fold(record(member(4, size=5), 4))
    assert len(beats) == 5


def test_returns_by_hand() -> None:
    """Final reward 1, bonuses .5, .5, 0: turn 0 is worth 2, turn 1 1.5, turn 2 1."""
    assert returns_to_go(1.0, turns(0.5, 0.5, 0.0)) == [2.0, 1.5, 1.0]
    assert returns_to_go(0.0, turns(-0.1, 0.0)) == [-0.1, 0.0]


def test_sums_do_not_lose_small_parts() -> None:
    """Ten times .1 is 1, not .9999999999999999."""
    assert returns_to_go(0.0, turns(*[0.1] * 10))[0] == 1.0


def test_a_group_becomes_one_record_with_a_row_a_segment() -> None:
    """The whole record, by hand."""
    emission = close(member(1, reward=0.0, num_tools=3, num_tools_succeeded=2), member(0))
    (output,) = emission.outputs
    assert (output.topic, output.key, output.partition) == (Topic.TRANSITIONS, b"policy", 0)
    summary, rows = decode_group(output.value)
    assert (summary.group_id, summary.group_index, summary.task_id, summary.excluded) == (GROUP_ID, 4, "task-1", "")
    assert [(m.rollout_id, m.reward, m.num_tools, m.num_tools_succeeded) for m in summary.members] == [
        (rollout(0), 1.0, 0, 0),
        (rollout(1), 0.0, 3, 2),
    ]
    assert [row.rollout_id for row in rows] == [rollout(0), rollout(1)]
    first = rows[0]
    assert (first.token_ids.tolist(), first.loss_mask.tolist(), first.rollout_tokens) == (
        [1, 10, 2, 11],
        [0, 1, 0, 1],
        2,
    )
    got = [(t.start, t.end, t.turn, t.peers, t.return_, t.weight, t.reward_parts, t.versions) for t in first.turns]
    assert got == [
        (1, 2, 0, "calculator:0", 1.5, 1.0, (AppliedReward(rule="air:ok", value=0.5),), (sampled_by(1),)),
        (3, 4, 1, "calculator:1", 1.0, 1.0, (), (sampled_by(1),)),
    ]
    assert [turn.return_ for turn in rows[1].turns] == [0.5, 0.0]
    assert emission.marker is not None
    assert emission.marker.partition == 3
    marker = CLOSED.decode(emission.marker.value)
    assert (marker.id, marker.disposition, marker.num_calls) == (GROUP_ID, "emitted", 4)
    assert [position.offset for position in emission.done] == [0, 1]


def test_each_policy_has_a_record_in_its_own_partition() -> None:
    """Calls of other policies are context, but what they earned counts in the return."""
    mixed = (call("p", [1], [2], policy="policy"), call("q", [5], [6], policy="critic"))
    mixed = (mixed[0], msgspec.structs.replace(mixed[1], rewards=(AppliedReward(rule="air:ok", value=0.25),)))
    emission = close(member(0, size=1, calls=mixed), settings_=config(policies=("critic", "policy", "unused")))
    assert [(output.key, output.partition) for output in emission.outputs] == [
        (b"critic", 0),
        (b"policy", 1),
        (b"unused", 2),
    ]
    decoded = [decode_group(output.value) for output in emission.outputs]
    assert [[row.token_ids.tolist() for row in rows] for _, rows in decoded] == [[[5, 6]], [[1, 2]], []]
    assert decoded[1][1][0].turns[0].return_ == 1.25
    assert decoded[2][0].members[0].excluded == "no_calls"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"state": RolloutState.ABORTED, "reward": None}, "aborted"),
        ({"state": RolloutState.GIVEN_UP, "reward": None, "calls": ()}, "given_up"),
        ({"state": RolloutState.UNKNOWN}, "unknown_state"),
        ({"reward": None, "unscored": "grader raised"}, "unscored"),
        ({"reward": 1e13}, "unscored"),
        ({"calls": ()}, "no_calls"),
        ({"calls": turns(0.0, 0.0)[1:]}, "broken_prefix"),
        ({"calls": (call("a", [1], [-1]),)}, "bad_tokens"),
        ({"reward": 1e12, "calls": turns(1e12)}, "bad_return"),
    ],
)
def test_a_rollout_that_cannot_train_is_listed_with_its_reason(changes: dict[str, Any], reason: str) -> None:
    """Its neighbours train; a missing reward is never 0."""
    credit = Credit(config(), TOPICS)
    summary, rows = decode_group(feed(credit, member(0), member(1, **changes))[-1].outputs[0].value)
    assert [m.excluded for m in summary.members] == ["", reason]
    assert credit.metrics.value(MEMBERS_EXCLUDED, reason) == 1
    assert {row.rollout_id for row in rows} == {rollout(0)}
    assert summary.excluded == ""


def test_a_call_without_its_parent_is_left_out_alone() -> None:
    """The rollout trains on its other calls, and that turn's reward still counts for those before it."""
    first, lost, orphan = turns(0.0, 0.0, 0.5)
    assert orphan.parent_call_id == lost.call_id
    alone = msgspec.structs.replace(first, call_id="alone", turn=3)
    credit = Credit(config(), TOPICS)
    (emission,) = feed(credit, member(0, size=1, calls=(first, orphan, alone)))
    summary, rows = decode_group(emission.outputs[0].value)
    assert credit.metrics.value(CALLS_LEFT_OUT) == 1
    assert [m.excluded for m in summary.members] == [""]
    assert [(turn.call_id, turn.return_) for row in rows for turn in row.turns] == [
        (first.call_id, 1.5),
        ("alone", 1.0),
    ]


@pytest.mark.parametrize("state", [RolloutState.FAILED, RolloutState.TRUNCATED])
def test_failures_of_the_model_train(state: RolloutState) -> None:
    """They are graded; only our own faults leave."""
    summary, rows = decode_group(close(member(0), member(1, state=state, reward=0.0)).outputs[0].value)
    assert [m.excluded for m in summary.members] == ["", ""]
    assert len(rows) == 2


def test_a_group_without_a_usable_member_says_so() -> None:
    """Zero rows, and every reason: the trainer counts it as consumed."""
    emission = close(member(0, reward=None), member(1, state=RolloutState.ABORTED, reward=None))
    summary, rows = decode_group(emission.outputs[0].value)
    assert (rows, summary.excluded) == ([], "all_members_excluded")
    assert [m.excluded for m in summary.members] == ["unscored", "aborted"]


def test_validation_superseded_and_captured_episodes_end_here() -> None:
    """They join no group and are done at once."""
    credit = Credit(config(), TOPICS)
    emissions = feed(credit, member(0, purpose=Purpose.VALIDATION), member(0, is_final=False), member(0, group=None))
    assert [(e.outputs, e.marker, len(e.done)) for e in emissions] == [((), None, 1)] * 3
    assert credit.num_open == 0
    assert credit.metrics.value(CREDIT_EPISODES, "superseded") == 1


def test_a_closed_group_does_not_open_again() -> None:
    """After a restart the markers are read first; an episode that comes again is done."""
    first = Credit(config(), TOPICS)
    marker = feed(first, member(0), member(1))[-1].marker
    assert marker is not None
    assert feed(first, member(0))[0] == Emission(done=(record(b"", 0).position,))
    second = Credit(config(), TOPICS)
    second.restore([Record(topic=TOPICS.name(Topic.CLOSED_GROUPS), partition=3, offset=0, key=b"", value=marker.value)])
    assert len(feed(second, member(0))[0].done) == 1
    second.reset()
    assert feed(second, member(0))[0].done == ()


def test_a_really_run_episode_beats_a_given_up_one() -> None:
    """Two final episodes of one member: whichever came first."""
    real, given_up = member(0), member(0, state=RolloutState.GIVEN_UP, reward=None, calls=())
    one = close(real, given_up, member(1)).outputs
    two = close(given_up, real, member(1)).outputs
    assert one == two
    assert decode_group(one[0].value)[0].members[0].excluded == ""


@pytest.mark.parametrize(
    ("episode", "reason"),
    [
        (b"{}", "malformed"),
        (b"\xff", "malformed"),
        (member(5), "bad_group"),
        (member(0, group=GroupRef(id="x", size=10**9, member=0, index=0)), "bad_group"),
    ],
)
def test_bad_episodes_are_dead_letters(episode: Episode | bytes, reason: str) -> None:
    """Done, with the reason; the group may still close."""
    credit = Credit(config(), TOPICS)
    emission = next(emission for emission in feed(credit, episode, member(0, group=None)) if emission.outputs)
    assert dead_letter_fields(emission.outputs[0].headers)["reason"] == reason
    assert emission.done[0].offset == 0
    assert credit.num_open == 0


def test_a_rollout_has_one_place_in_its_group() -> None:
    """A second claim is a dead letter; the group waits for the rollout whose place it took, and then closes."""
    emissions = feed(Credit(config(), TOPICS), member(0), member(1, rollout_id=rollout(0)), member(1))
    assert [output.topic for output in emissions[1].outputs] == [Topic.DEAD_LETTERS]
    assert dead_letter_fields(emissions[1].outputs[0].headers)["reason"] == "bad_group"
    summary, _ = decode_group(emissions[2].outputs[0].value)
    assert [one.rollout_id for one in summary.members] == [rollout(0), rollout(1)]


def test_open_groups_are_bounded() -> None:
    """Beyond the bound the oldest closes with what it has: a group that is refused would be waited for for ever."""
    credit = Credit(config(max_open_groups=1), TOPICS)
    others = [member(n, group=GroupRef(id="other", size=2, member=n, index=0)) for n in range(2)]
    emissions = feed(credit, member(0), others[0], member(1), others[1])
    assert [len(emission.outputs) for emission in emissions] == [0, 1, 0, 1]
    summaries = [decode_group(emissions[at].outputs[0].value)[0] for at in (1, 3)]
    assert [[one.excluded for one in summary.members] for summary in summaries] == [["", "given_up"], ["", ""]]
    assert [position.offset for emission in emissions for position in emission.done] == [0, 2, 1, 3]


def place(index: int, number: int) -> GroupRef:
    """Of a member of the index-th group of two."""
    return GroupRef(id=f"{RUN_HASH}{index:016x}", size=2, member=number, index=index)


@pytest.mark.slow
def test_a_group_whose_member_never_comes_takes_no_room_for_ever() -> None:
    """One in 50 is lost in part: none of the others is refused, and those closed without it name whom they miss."""
    num_groups = OVERTAKEN + 400
    credit = Credit(config(max_open_groups=25, max_open_bytes=100_000), TOPICS)
    emissions: list[Emission] = []
    for index in range(num_groups):
        for number in range(1 if index % 50 == 0 else 2):
            of = place(index, number)
            one = member(0, group=of, rollout_id=rollout_id(GroupId(of.id), number), calls=turns(0.0))
            emissions.append(credit.fold(record(one, 2 * index + number)))
    summaries = [decode_group(e.outputs[0].value)[0] for e in emissions if e.marker is not None]
    assert {output.topic for e in emissions for output in e.outputs} == {Topic.TRANSITIONS}
    excluded = {summary.group_index: [one.excluded for one in summary.members] for summary in summaries}
    assert {tuple(reasons) for index, reasons in excluded.items() if index % 50} == {("", "")}
    assert {tuple(reasons) for index, reasons in excluded.items() if not index % 50} == {("", "given_up")}
    assert credit.num_open == num_groups - len(summaries) <= OVERTAKEN // 49 + 1
    assert sum(len(e.done) for e in emissions) + credit.num_open == len(emissions)


def limited(message_bytes: int) -> Topics:
    """The run's topics with this limit on `transitions`."""
    return msgspec.structs.replace(TOPICS, max_message_bytes={"transitions": message_bytes})


def test_bytes_of_all_open_groups_are_bounded() -> None:
    """An episode beyond joins without its calls, so that its group closes all the same; a closed one makes room."""
    size = len(EPISODES.encode(member(0)))
    credit = Credit(config(max_open_bytes=size), TOPICS)
    for _ in range(2):
        emission = feed(credit, member(0), member(1))[-1]
        summary, rows = decode_group(emission.outputs[0].value or b"")
        assert [one.excluded for one in summary.members] == ["", "too_many_open_bytes"]
        assert [row.rollout_id for row in rows] == [rollout(0)]
        credit._closed.clear()


def test_a_group_above_the_message_limit_names_the_key_and_the_size_it_needs() -> None:
    """The group is excluded as a whole, never lost; with the limit that it asks for, and no byte less, it leaves."""
    members = [member(number, calls=(call("c", [1], [7] * 5000),)) for number in range(2)]
    summary, rows = decode_group(close(*members, topics=limited(128 * 1024)).outputs[0].value)
    assert (rows, summary.excluded) == ([], "too_large")
    asked = re.search(r"\[kafka\.max_message_bytes\] transitions = (\d+)", summary.detail)
    assert asked is not None
    for needed, excluded in ((int(asked[1]), ""), (int(asked[1]) - 1, "too_large")):
        summary, rows = decode_group(close(*members, topics=limited(needed)).outputs[0].value)
        assert (summary.excluded, len(rows)) == (excluded, 0 if excluded else 2)


def test_numbers_that_arrow_cannot_hold_exclude_the_group() -> None:
    """A turn of 10**12 does not fit int32."""
    huge = tuple(msgspec.structs.replace(c, turn=10**12) for c in turns(0.0))
    summary, rows = decode_group(close(member(0, size=1, calls=huge)).outputs[0].value)
    assert (rows, summary.excluded) == ([], "unencodable")


@given(st.integers(0, 2**32), st.integers(1, 5))
def test_the_order_of_the_members_does_not_matter(seed: int, size: int) -> None:
    """Permuted and repeated episodes give the same bytes, and all positions are done once."""
    rng = random.Random(seed)
    episodes = [
        member(n, size=size, reward=rng.choice([None, rng.random()]), calls=turns(rng.random(), 0.0))
        for n in range(size)
    ]
    expected = close(*episodes).outputs
    shuffled = episodes * 2
    rng.shuffle(shuffled)
    credit = Credit(config(), TOPICS)
    emissions = feed(credit, *shuffled)
    assert [e.outputs for e in emissions if e.outputs] == [expected]
    assert sorted(position.offset for e in emissions for position in e.done) == list(range(2 * size))
