"""A replay of the topics without what forgers wrote, or a gateway refused, gives `transitions` of equal bytes."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.consumers.audit.small_run import RING
from tests.producers.rewards.test_rewards_gateway import NAMES
from tests.seeds import any_seed
from tests.streams.assemble.test_feedback import said
from tests.streams.make import Item, call, call_id, config
from tests.streams.shells import STAGES, Shells
from tracegrad.producers.read_feedback import read_feedback
from tracegrad.schemas.errors import RequestError
from tracegrad.schemas.ids import RunHash
from tracegrad.schemas.log.mac import MAC_HEADER, KeyRing
from tracegrad.schemas.log.protocol import Headers, Record
from tracegrad.schemas.records.calls import Purpose
from tracegrad.schemas.records.rollouts import REWARDS, Reward
from tracegrad.schemas.topics import Topic
from tracegrad.streams.config import SelectConfig

STRANGER = RunHash("99999999")


def live(seed: int) -> Shells:
    """Conversations that users and forgers rate, as they come, by workers of whom some die."""
    random = Random(seed)
    select = SelectConfig(capture_all=True, train=True)
    run = Shells(config(reward_sources=("feedback",), select=select, feedback_wait_s=60.0, idle_s=10.0), RING)
    items: list[tuple[Item, bool]] = []
    for number in range(1, 7):
        key = f"{number:032x}"
        given: dict[str, Any] = {"conversation_key": key, "purpose": Purpose.UNKNOWN, "answers_user": True}
        items.append((call(f"c{number}", None, [1], [2], trace_id=f"{number + 64:032x}", **given), False))
        for piece in range(random.choice([0, 1, 2])):
            items.append((said(random.random(), f"k{piece}", conversation_key=key, at_ms=piece), False))
        # Under a user's own key too, on an answer, and later than all.
        for by, target in (("k0", None), ("forged", call_id(f"c{number}"))):
            items.append((said(-1.0, by, conversation_key=key, target=target, at_ms=10**6), True))
    random.shuffle(items)
    for item, is_forged in items:
        if is_forged:
            assert isinstance(item, Reward)
            run.append(Topic.REWARDS, REWARDS.encode(item), headers=random.choice(forgeries(run, item)))
        else:
            run.feed(item)
        for _ in range(random.choice([0, 5, 40])):
            run.step(random)
        if random.random() < 0.1:
            run.replace(random.choice(STAGES), is_alive=False)
    finish(run, random)
    return run


def forgeries(run: Shells, reward: Reward) -> list[Headers]:
    """By nobody, by another run, by a MAC of another record, by two."""
    value = REWARDS.encode(reward)
    other = KeyRing(STRANGER, {STRANGER: b"s" * 32}).sign(Topic.REWARDS, None, value)
    moved = RING.sign(Topic.REWARDS, None, value + b" ")
    return [(), (other,), (moved,), (moved, moved), ((MAC_HEADER, b"nonsense"),)]


def finish(run: Shells, random: Random) -> None:
    """Until nothing waits."""
    for _ in range(200):
        run.settle(random)
        if not run.undone():
            return
        run.tick(20.0)
    pytest.fail(f"expected an end, got {run.undone()}")


def replayed(
    source: Shells, records: list[tuple[Topic, Record]], seed: int, ring: KeyRing | None = RING
) -> list[bytes]:
    """The transitions that these raw records give, read before anybody's time is over; in the order of their bytes, for
    of conversations none is before the other."""
    run, random = Shells(source.rules, ring), Random(seed)
    for topic, record in records:
        run.append(topic, record.value or b"", record.key, record.headers)
    run.settle(random)
    finish(run, random)
    return sorted(set(run.values(Topic.TRANSITIONS)))


def raw_of(run: Shells, *, is_cleaned: bool) -> list[tuple[Topic, Record]]:
    """What lies on the raw topics; `is_cleaned`: without what no key vouches for."""
    return [
        (topic, record)
        for topic in (Topic.LLM_CALLS, Topic.REWARDS)
        for record in run.log[topic]
        if not (is_cleaned and RING.refusal(topic, record) is not None)
    ]


@pytest.mark.slow
@any_seed
def test_without_the_forged_records_a_replay_gives_equal_transitions(seed: int) -> None:
    """Byte for byte, each record of the run's own: forgers change nothing."""
    run = live(seed)
    as_it_is, cleaned = raw_of(run, is_cleaned=False), raw_of(run, is_cleaned=True)
    assert len(as_it_is) - len(cleaned) == 12
    expected = replayed(run, as_it_is, seed)
    assert expected and replayed(run, cleaned, seed) == expected
    assert replayed(run, cleaned, seed + 1) == expected
    assert replayed(run, as_it_is, seed, ring=None) != expected, "forgers would change it, did their word count"


@pytest.mark.slow
@any_seed
def test_credit_s_topics_give_again_what_the_run_wrote(seed: int) -> None:
    """The closes lie there, so that what was in time is so again."""
    run = live(seed)
    credit = Shells(run.rules, RING)
    for topic in (Topic.EPISODES, Topic.EPISODE_SCORES):
        for record in run.log[topic]:
            credit.append(topic, record.value or b"", record.key, record.headers)
    finish(credit, Random(seed))
    assert {*credit.values(Topic.TRANSITIONS)} == {*run.values(Topic.TRANSITIONS)}


def test_what_the_gateway_refuses_is_no_record() -> None:
    """So that no replay can tell whether it was ever posted."""
    for value in (float("nan"), float("inf"), -float("inf"), 1.0001, -2, 10**400, "1", None, [1]):
        with pytest.raises(RequestError) as caught:
            read_feedback({"conversation_id": "x", "value": value}, NAMES, RunHash("0123abcd"), at_ms=1)
        assert (caught.value.status, caught.value.param) == (400, "value")
