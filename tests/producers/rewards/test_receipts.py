"""Receipts: what they say at each moment of a piece's life, and that they agree with what was credited."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from tests.memory_log import MemoryLog
from tests.producers.keys import KEY as RUN_KEY
from tests.producers.keys import RUN_HASH
from tests.producers.rewards.test_rewards_gateway import TOKEN, TOPICS, Door
from tests.seeds import any_seed
from tests.streams.assemble.test_feedback import KEY, said
from tests.streams.credit.strategies.test_conversations import TURNS, conversation
from tests.streams.credit.test_feedback_window import Run, second_request
from tests.streams.make import Item, call_id, rollout
from tracegrad.producers.rewards.config import FeedbackHandles
from tracegrad.producers.rewards.receipt_reader import ReceiptReader, refused_in
from tracegrad.producers.rewards.receipts import Receipts
from tracegrad.schemas.ids import stretch_id
from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.metrics import Metrics
from tracegrad.schemas.reasons import row_of
from tracegrad.schemas.records.dead_letters import dead_letter_headers
from tracegrad.schemas.records.episodes import CLOSED, EPISODE_SCORES, EPISODES, LATE, ClosedMarker, Score
from tracegrad.schemas.records.facts import Close
from tracegrad.schemas.records.rollouts import REWARDS, Reward
from tracegrad.schemas.topics import Topic
from tracegrad.streams.ratings import is_about

NOW_MS = 1_000_000


def read(records: Iterable[tuple[Topic, Record]], *, trains: bool = True) -> Receipts:
    """The receipts of these records, each read at one time."""
    receipts = Receipts(trains=trains, wait_s=60.0)
    for topic, given in records:
        record = Record(
            topic=given.topic,
            partition=0,
            offset=given.offset,
            key=given.key,
            value=given.value,
            timestamp_ms=NOW_MS,
        )
        if topic is Topic.REWARDS:
            receipts.accept(REWARDS.decode(record.value))
        elif topic is Topic.EPISODE_SCORES:
            if isinstance(score := EPISODE_SCORES.decode(record.value), Score):
                receipts.come_behind(score, record)
        elif topic is Topic.CLOSED_EPISODES:
            receipts.close_episode(CLOSED.decode(record.value), record)
        elif topic is Topic.CLOSED_GROUPS:
            receipts.close_group(CLOSED.decode(record.value))
        elif topic is Topic.DEAD_LETTERS:
            receipts.refuse(*refused_in(given))
    return receipts


def receipts_of(run: Run, *, shuffled: int | None = None) -> Receipts:
    """Those that a gateway has that reads all of the run's topics, in some order among them."""
    lines = [[(topic, record) for record in records] for topic, records in run.streams.log.items()]
    order = [line for line in lines for _ in line]
    if shuffled is not None:
        random.Random(shuffled).shuffle(order)
    return read(line.pop(0) for line in order)


def state(run: Run, key: str) -> str:
    """Of the one piece under a key."""
    (piece,) = receipts_of(run).of(key)
    return str(piece["state"])


def test_a_piece_is_accepted_then_waits_then_counts() -> None:
    """Of a conversation that was rated before its close."""
    run = Run()
    run.feed(*conversation(*TURNS), said(1.0, "k1"))
    assert state(run, "k1") == "accepted"
    run.wait(20)
    (piece,) = receipts_of(run).of("k1")
    assert (piece["state"], piece["open_until_ms"]) == ("waiting", NOW_MS + 60_000)
    run.wait(60)
    (piece,) = receipts_of(run).of("k1")
    assert (piece["state"], piece["episodes"], piece["value"]) == ("joined", [KEY], 1.0)


def test_the_wait_begins_at_the_episode_s_close_and_not_at_the_rating() -> None:
    """Who rates at its end has no more time to revise than who rates at its beginning; whatever is read first."""
    marker = ClosedMarker(id=KEY, disposition="emitted", key=KEY)
    late = Score(key=KEY, reward=said(1.0, "k1"))
    for order in (0, 1):
        receipts = Receipts(trains=True, wait_s=60.0)
        receipts.accept(late.reward)
        for step in (0, 1):
            if step == order:
                receipts.close_episode(marker, stamped(100_000))
            else:
                receipts.come_behind(late, stamped(150_000))
        assert [(piece["state"], piece["open_until_ms"]) for piece in receipts.of("k1")] == [("waiting", 160_000)]
        receipts.close_episode(msgspec.structs.replace(marker, id="next"), stamped(170_000))
        assert receipts.of("k1")[0]["open_until_ms"] == 160_000


def stamped(at_ms: int) -> Record:
    """A record of that time."""
    return Record(topic="any", partition=0, offset=0, key=None, value=b"", timestamp_ms=at_ms)


def test_a_revision_is_the_same_piece() -> None:
    """And the last value is told, whichever was read first."""
    first, last = said(1.0, "k1", at_ms=1), said(-1.0, "k1", at_ms=2)
    for order in ((first, last), (last, first)):
        receipts = Receipts(trains=True, wait_s=1.0)
        for reward in order:
            receipts.accept(reward)
        assert [(piece["value"], piece["state"]) for piece in receipts.of("k1")] == [(-1.0, "accepted")]
    receipts.accept(said(0.5, "k1", target=call_id("a")))
    receipts.accept(said(0.5, "k1", conversation_key="99" * 16))
    assert len(receipts.of("k1")) == 3  # of other things


def test_what_comes_too_late_or_is_about_nothing_is_late() -> None:
    """Once that is known."""
    run = Run()
    run.feed(*conversation(*TURNS))
    run.wait(80)
    run.feed(said(1.0, "late"), said(1.0, "nowhere", conversation_key="99" * 16))
    assert (state(run, "late"), state(run, "nowhere")) == ("waiting", "accepted")
    run.wait(120)
    assert (state(run, "late"), state(run, "nowhere")) == ("late", "late")


def test_feedback_on_a_runners_attempt_is_not_counted() -> None:
    """Its reward is its grader's."""
    receipts = Receipts(trains=False, wait_s=0.0)
    receipts.accept(said(1.0, "k1", rollout_id=rollout(1), attempt_id="a001", conversation_key=None))
    (piece,) = receipts.of("k1")
    assert (piece["state"], piece["conversation"]) == ("not_counted", rollout(1))


def test_unknown_keys_and_other_rewards_have_no_receipt() -> None:
    """A grader's reward is no feedback."""
    receipts = Receipts(trains=True, wait_s=1.0)
    receipts.accept(said(1.0, "k1", source="grader:score"))
    assert (receipts.of("k1"), receipts.of("k2")) == ([], [])


def test_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """With all that was kept of them."""
    monkeypatch.setattr("tracegrad.producers.rewards.receipts._MAX_PIECES", 10)
    receipts = Receipts(trains=True, wait_s=1.0)
    for number in range(100):
        receipts.accept(said(1.0, f"k{number}"))
    assert (receipts.of("k0"), len(receipts.of("k99"))) == ([], 1)
    assert (len(receipts._pieces), len(receipts._by_key)) == (10, 10)


@pytest.mark.slow
@any_seed
def test_receipts_agree_with_what_was_credited(seed: int) -> None:
    """Random lives of two episodes of a conversation and their ratings; read in any order among the topics."""
    draw = random.Random(seed)
    run = Run()
    run.feed(*conversation(*TURNS))
    pieces: list[Reward] = []
    ended: dict[str, str] = {}
    second: Item | None = second_request()
    for number in range(12):
        run.wait(draw.choice([0.5, 5, 15, 40]))
        receipts = receipts_of(run)
        for reward in pieces:
            key = reward.idempotency_key
            now = receipts.of(key)[0]["state"]
            assert ended.get(key, now) == now
            ended |= {key: now} if now in ("joined", "late") else {}
        if second is not None and draw.random() < 0.3:
            run.feed(second)
            second = None
        target = draw.choice([None, call_id("b"), call_id("d"), call_id("z")])
        pieces.append(said(draw.choice([-1.0, 1.0]), f"k{number}", target=target, at_ms=60_000))
        run.feed(pieces[-1])
    run.wait(300)
    credited: dict[str, set[str]] = {}
    late: set[str] = set()
    for value in run.streams.values(Topic.CLOSED_GROUPS):
        marker = CLOSED.decode(value)
        late |= {*marker.heard} if marker.disposition == LATE else set()
        for heard in marker.heard if marker.disposition != LATE else ():
            credited.setdefault(heard, set()).add(marker.id)
    receipts = receipts_of(run, shuffled=seed)
    for reward in pieces:
        (piece,) = receipts.of(reward.idempotency_key)
        assert piece["state"] in ("joined", "late")
        if piece["state"] == "joined":
            about = {
                episode.episode_id
                for episode in map(EPISODES.decode, run.streams.values(Topic.EPISODES))
                if is_about(reward, episode)
            }
            assert set(piece["episodes"]) <= about
    num_joined = sum(receipts.of(reward.idempotency_key)[0]["state"] == "joined" for reward in pieces)
    assert (num_joined, len(pieces) - num_joined) == (len(credited), len(late - credited.keys()))
    assert {KEY, stretch_id(KEY, call_id("z"))} >= set().union(*credited.values())


@pytest.mark.parametrize(
    ("bound", "reason"),
    [("tracegrad.streams.credit.feedback_window._MAX_SAID", "too_many_scores"), ("max_open_episodes", "too_many_open")],
)
def test_what_a_stage_has_no_room_for_is_refused_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, bound: str, reason: str
) -> None:
    """It would else be `accepted`, or wait, for ever; what there was room for goes on."""
    run = Run() if "." in bound else Run(**{bound: 1})
    run.feed(*conversation(*TURNS))
    if "." in bound:
        monkeypatch.setattr(bound, 1)
        run.wait(20)
        run.feed(said(1.0, "k1"))
    else:
        run.feed(said(1.0, "k1"))
    run.feed(said(-1.0, "k2", conversation_key="7a" * 16))
    run.wait(200)
    assert state(run, "k1") == "joined"
    for shuffled in (None, 1):
        (piece,) = receipts_of(run, shuffled=shuffled).of("k2")
        assert (piece["state"], piece["reason"]) == ("refused", reason)
        assert piece["detail"] == f"{row_of(reason).sentence} {row_of(reason).remedy}"


@pytest.mark.parametrize(
    "value", [None, b"", b"{", b"\xff" * 9, EPISODE_SCORES.encode(Close(episode_id="", reason=""))]
)
@pytest.mark.parametrize("stage", ["normalize", "assemble", "credit", "trainer", ""])
def test_a_letter_of_anything_else_refuses_nothing(stage: str, value: bytes | None) -> None:
    """Most are of spans, and some of what nobody can read."""
    origin = Record(topic="t", partition=0, offset=0, key=None, value=value)
    letter = msgspec.structs.replace(origin, headers=dead_letter_headers(origin, stage=stage, reason="any"))
    assert refused_in(letter)[0] == []


async def test_the_gateway_tells_what_it_has_read(memory_log: MemoryLog) -> None:
    """By the token alone; of earlier lives too; a key that nobody used is 404."""
    memory_log.create_topics(TOPICS, policies=["policy"])
    writer = memory_log.writer()
    writer.append(TOPICS.name(Topic.REWARDS), key=KEY.encode(), value=REWARDS.encode(said(0.5, "a/b c")))
    handles = FeedbackHandles(port=0, run_hash=RUN_HASH, key=RUN_KEY)
    door = Door(memory_log)
    reading = ReceiptReader(door.receipts, handles, topics=TOPICS, log=memory_log, metrics=Metrics())
    async with door.http, reading.beside(None):

        async def get(**headers: str) -> Any:
            answer = await door.http.get("/v1/rewards/a%2Fb%20c", headers=headers)
            return answer.status_code, answer.json()

        async with asyncio.timeout(10):
            while (await get(**TOKEN))[0] != 200:
                await asyncio.sleep(0.01)
        status, told = await get(**TOKEN)
        assert (status, told["idempotency_key"], told["pieces"][0]["state"]) == (200, "a/b c", "accepted")
        assert (await get(x="nobody"))[0] == 401
        assert (await door.http.get("/v1/rewards/other", headers=TOKEN)).status_code == 404
        lost = Record(topic="any", partition=0, offset=0, key=None, value=REWARDS.encode(said(0.5, "a/b c")))
        letter = dead_letter_headers(lost, stage="normalize", reason="poison")
        writer.append(TOPICS.name(Topic.DEAD_LETTERS), key=None, value=lost.value or b"", headers=letter)
        async with asyncio.timeout(10):
            while (await get(**TOKEN))[1]["pieces"][0]["state"] != "refused":
                await asyncio.sleep(0.01)
        await door.post({"conversation_id": "x", "value": 1, "idempotency_key": "fresh"})
        assert (await door.http.get("/v1/rewards/fresh", headers=TOKEN)).status_code == 200
