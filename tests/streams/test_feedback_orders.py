"""Feedback on a conversation of two requests: every order of what comes of it, whatever dies in between, is one result.

What comes in time, by the log, gives `transitions` of equal bytes, also where the first episode's time ends while the
second answer is in flight. What is in time is decided by `episode_scores` alone: whatever lies there, a group is what
can be computed from that topic and the episodes, however often it was written; each piece was heard, or is told late;
and nothing waits for ever.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from random import Random

import pytest

from tests.streams.assemble.test_feedback import said
from tests.streams.assemble.test_interleavings import told_of, trace_of
from tests.streams.assemble.test_links import KEY, OTHER, TRACE, captured
from tests.streams.make import TOPICS, Item, config
from tests.streams.shells import STAGES, Shells
from tracegrad.schemas.ids import stretch_id
from tracegrad.schemas.metrics import Metrics
from tracegrad.schemas.records.calls import CallRecord
from tracegrad.schemas.records.episodes import CLOSED, EPISODE_SCORES, EPISODES, LATE, UNCLAIMED, Episode, Score
from tracegrad.schemas.records.facts import Close
from tracegrad.schemas.records.rollouts import REWARDS, Reward, piece_id
from tracegrad.schemas.records.transitions import decode_group
from tracegrad.schemas.topics import Topic
from tracegrad.streams.config import SelectConfig
from tracegrad.streams.credit.strategies.rated import as_group, as_rated
from tracegrad.streams.credit.write_group import credit_group
from tracegrad.streams.ratings import is_about, rated_anew

NUM = int(os.environ.get("FEEDBACK_ORDERS", "60"))
"""Random lives of the conversation, by each test."""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(120 + NUM)]
IDLE_S = 10.0
Lines = Sequence[Sequence[Item]]


def request(name: str, trace: str, began_s: int) -> CallRecord:
    """A user's question, in a trace of its own."""
    return captured(
        KEY,
        name,
        trace_id=trace,
        content=name,
        conversation_key=KEY,
        parent_span_id=f"{2:016x}",
        answers_user=True,
        started_at_ns=began_s * 10**9,
    )


FIRST, SECOND = request("one", TRACE, 1), request("two", OTHER, 50)
CALLS = ([*told_of(FIRST)], [*told_of(SECOND)])
SPANS = ([*trace_of("planner", FIRST, {})], [*trace_of("planner", SECOND, {})])


def of_conversation(value: float, by: str, at_ms: int, target: CallRecord | None = None) -> Reward:
    """What somebody said of an answer, or of all."""
    about = str(target.call_id) if target is not None else None
    return said(value, by, target=about, at_ms=at_ms, conversation_key=KEY)


FEEDBACKS: list[Item] = [
    of_conversation(1.0, "k1", 20_000, FIRST),
    of_conversation(0.0, "k1", 30_000, FIRST),
    of_conversation(0.5, "k2", 60_000),
    of_conversation(-1.0, "k3", 61_000, SECOND),
]
AFTERWARDS = of_conversation(1.0, "k4", 62_000)


class Life:
    """One order of all, by a seed; what may happen between two steps does, but so often at most."""

    def __init__(self, seed: int, *, wait_s: float, num_deaths: int = 8) -> None:
        select = SelectConfig(capture_all=True, train=True)
        rules = config(reward_sources=("feedback",), select=select, feedback_wait_s=wait_s, idle_s=IDLE_S)
        self.random = Random(seed)
        self.run = Shells(rules)
        self.num_deaths = num_deaths

    def disturb(self) -> None:
        """Maybe: a worker dies, or loses its partitions and does not know; maybe a commit."""
        drawn = self.random.random()
        if drawn < 0.03 and self.num_deaths:
            self.num_deaths -= 1
            self.run.replace(self.random.choice(STAGES), is_alive=self.random.random() < 0.4)
        elif drawn < 0.08:
            self.run.commit(self.random.choice(STAGES))

    def live(self, lines: Lines, *, ticks: Sequence[float], most_s: float, often: float = 0.05) -> None:
        """Each line in its order, as a topic's partition keeps it, some spans and feedback twice, as by who posts them
        again; the clock goes on by some of the ticks, `most_s` in all."""
        rest = [list(line) for line in lines if line]
        end_s = self.run.now_s + most_s
        while rest:
            self.disturb()
            drawn = self.random.random()
            if drawn < often:
                self.run.tick(min(self.random.choice(ticks), end_s - self.run.now_s))
            elif drawn < 0.4:
                line = self.random.choice(rest)
                is_posted = isinstance(line[0], bytes | Reward)
                for _ in range(1 + (is_posted and self.random.random() < 0.05)):
                    self.run.feed(line[0])
                del line[0]
                rest = [line for line in rest if line]
            else:
                self.run.step(self.random)

    def settle(self) -> None:
        """Until nothing is left but to wait."""
        self.disturb()
        while self.run.step(self.random):
            self.disturb()

    def wait(self, is_over: Topic | None = None) -> None:
        """Until a record lies on a topic, or nothing waits."""
        for _ in range(1_500):
            self.settle()
            if self.run.log[is_over] if is_over is not None else not self.run.undone():
                return
            self.run.tick(12.0)
        pytest.fail(f"expected an end, got {self.run.undone()}")

    def groups(self) -> dict[str, bytes]:
        """Each by the bytes of which it was written, however often."""
        written = {(decode_group(value)[0].group_id, value) for value in self.run.values(Topic.TRANSITIONS)}
        assert len(written) == len(dict(written)), "a group was written twice, with other bytes"
        return dict(written)

    def heard(self) -> Iterator[tuple[str, str, bool]]:
        """(piece, by what, whether it was late)."""
        for marker in map(CLOSED.decode, self.run.values(Topic.CLOSED_GROUPS)):
            yield from ((piece, marker.id, marker.disposition == LATE) for piece in marker.heard)

    def joined(self) -> set[tuple[str, str]]:
        """(piece, group) of what counted."""
        return {(piece, group) for piece, group, is_late in self.heard() if not is_late}


def in_time(seed: int, *, is_parted: bool, num_deaths: int = 8) -> Life:
    """All is said before anybody's time is over; `is_parted`: the first request's episode closed before the second."""
    life = Life(seed, wait_s=3_000.0, num_deaths=num_deaths)
    ticks = {"ticks": [0.5, 1.0], "most_s": 8.0}
    num_before = life.random.choice([0, 1, 2]) if is_parted else 0
    before, rest = FEEDBACKS[:num_before], life.random.sample(FEEDBACKS[num_before:], len(FEEDBACKS) - num_before)
    if is_parted:
        life.live([CALLS[0], SPANS[0], before], **ticks)  # type: ignore[arg-type]
        life.wait(Topic.EPISODES)
        life.live([CALLS[1], SPANS[1], rest], **ticks)  # type: ignore[arg-type]
    else:
        life.live([[*CALLS[0], *CALLS[1]], *SPANS, rest], **ticks)  # type: ignore[arg-type]
    life.wait()
    return life


@pytest.mark.parametrize("is_parted", [True, False])
def test_whatever_comes_in_time_gives_the_same_bytes(is_parted: bool) -> None:
    """In any order, with deaths and rebalances anywhere: the same groups, and the same pieces in each."""
    undisturbed = in_time(0, is_parted=is_parted, num_deaths=0)
    expected = {stretch_id(KEY, SECOND.call_id)} if is_parted else {KEY}
    assert {*undisturbed.groups()} >= expected
    for seed in range(NUM):
        life = in_time(seed, is_parted=is_parted)
        assert life.groups() == undisturbed.groups(), seed
        assert life.joined() == undisturbed.joined(), seed
        # A copy that came behind all is late; none is late that did not count.
        assert {piece for piece, *_ in life.heard()} == {piece for piece, _ in life.joined()}, seed


def across(seed: int, *, num_deaths: int = 8) -> Life:
    """What is said of the conversation while its second answer is in flight, and the first episode's time ends before
    the second comes, at once with it, or behind it."""
    life = Life(seed, wait_s=300.0, num_deaths=num_deaths)
    life.live([CALLS[0], SPANS[0]], ticks=[0.5, 1.0], most_s=8.0)
    life.wait(Topic.EPISODES)
    life.run.tick(270.0)
    life.live([FEEDBACKS[1:3]], ticks=[0.5], most_s=4.0)
    life.settle()
    life.live([CALLS[1], SPANS[1]], ticks=[0.5], most_s=4.0)
    life.settle()
    for seconds in (12.0, 30.0):
        life.run.tick(seconds)
        for _ in range(life.random.randrange(40)):
            life.disturb()
            life.run.step(life.random)
    life.wait()
    return life


def test_what_is_said_while_an_answer_is_in_flight_is_about_both_whichever_topic_is_read_first() -> None:
    """The close of the first, and the second's record, lie on two topics, and a worker that takes over reads them in
    another order than the one before."""
    undisturbed = across(0, num_deaths=0)
    second = stretch_id(KEY, SECOND.call_id)
    of_both = piece_id(FEEDBACKS[2])  # type: ignore[arg-type]
    assert undisturbed.joined() >= {(of_both, KEY), (of_both, second)}
    for seed in range(NUM):
        life = across(seed)
        assert life.groups() == undisturbed.groups(), seed
        assert life.joined() == undisturbed.joined(), seed


def test_whatever_is_too_late_each_piece_is_joined_or_late_and_each_group_is_written_alike() -> None:
    """Closes come at any time, of the first episode before the second request or behind it, and so does feedback."""
    fates = set()
    for seed in range(NUM):
        life = Life(seed, wait_s=60.0)
        feedbacks = life.random.sample(FEEDBACKS, len(FEEDBACKS))
        life.live(
            [[*CALLS[0], *CALLS[1]], *SPANS, feedbacks],
            ticks=[0.5, 3.0, 12.0, 12.0, 30.0, 70.0],
            most_s=1e6,
            often=life.random.choice([0.03, 0.1, 0.2]),
        )
        life.wait()
        life.run.feed(AFTERWARDS)
        life.wait()
        groups, heard = life.groups(), [*life.heard()]
        assert {piece for piece, *_ in heard} == {piece_id(one) for one in posted(life)}, seed
        assert {group for _, group in life.joined()} <= {*groups}, seed
        for episode in map(EPISODES.decode, life.run.values(Topic.EPISODES)):
            assert groups.get(episode.episode_id) == recomputed(life, as_group(episode)), seed
        fates |= {(piece, is_late) for piece, _, is_late in heard}
    assert len(fates) >= (7 if NUM >= 200 else 1)  # each in time and late, the last always late


def posted(life: Life) -> list[Reward]:
    """All feedback."""
    return [REWARDS.decode(value) for value in life.run.values(Topic.REWARDS)]


def recomputed(life: Life, episode: Episode) -> bytes | None:
    """The group by the log alone, None: nobody rated it. It has what is about it, lies before its close, and was not
    let go before the topic first told of it."""
    scores = [EPISODE_SCORES.decode(value) for value in life.run.values(Topic.EPISODE_SCORES)]
    let_go = [(at, one) for at, one in enumerate(scores) if isinstance(one, Close) and one.reason == UNCLAIMED]
    of_itself = [
        at
        for at, one in enumerate(scores)
        if not isinstance(one, Score) and one.episode_id == episode.episode_id and (at, one) not in let_go
    ]
    end = next(at for at in of_itself if isinstance(scores[at], Close))
    about = []
    for at, one in enumerate(scores[:end]):
        if isinstance(one, Score) and is_about(one.reward, episode):
            gone_at = min((later for later, by in let_go if at < min(by.before, later)), default=end)
            about += [one.reward] if of_itself[0] < gone_at else []
    rated = rated_anew(episode, about)
    return credit_group([as_rated(rated)], "policy", TOPICS, Metrics()) if rated.is_rated else None
