"""The receipts agree with the audit on each piece of feedback, at any moment of many conversations, whatever dies."""

from __future__ import annotations

import os
from collections import Counter
from random import Random
from typing import Any

import pytest

from tests.consumers.audit.small_run import RING
from tests.memory_log import MemoryLog
from tests.streams.assemble.test_feedback import said
from tests.streams.make import RUN_HASH, TOPICS, Item, call, call_id, config, rollout, tool_call
from tests.streams.shells import STAGES, Shells
from tracegrad.consumers.audit.account import audit, feedback_terms
from tracegrad.consumers.audit.read import gather
from tracegrad.producers.rewards.receipt_reader import refused_in
from tracegrad.producers.rewards.receipts import Receipts
from tracegrad.schemas.ids import RunHash
from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.records.calls import Purpose
from tracegrad.schemas.records.episodes import CLOSED, EPISODE_SCORES, Score
from tracegrad.schemas.records.rollouts import REWARDS, Reward, piece_id
from tracegrad.schemas.topics import REGISTRY, Topic
from tracegrad.streams.config import SelectConfig

NUM = int(os.environ.get("RECEIPT_CASES", "120"))
"""Conversations, each with what was said of it."""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(120 + NUM)]
_AT_ONCE = 12
WAIT_S = 60.0
TERMS = {
    "refused": "dead-lettered",
    "accepted": "open",
    "waiting": "open",
    "joined": "joined",
    "late": "late",
    "not_counted": "not counted",
}
READ = (Topic.REWARDS, Topic.CLOSED_EPISODES, Topic.EPISODE_SCORES, Topic.CLOSED_GROUPS, Topic.DEAD_LETTERS)


class Crowd:
    """Some conversations at a time, by a seed."""

    def __init__(self, seed: int, *, trains: bool) -> None:
        self.trains = trains
        self.random = Random(seed)
        select = SelectConfig(capture_all=True, train=trains)
        rules = config(reward_sources=("feedback",), select=select, feedback_wait_s=WAIT_S, idle_s=10.0, orphan_s=30.0)
        self.run = Shells(rules, RING)
        self.num_deaths = 6 * (seed % 2)
        self.is_undisturbed = not self.num_deaths
        self.num_forged = 0
        self.ended: dict[str, str] = {}
        """What was said for good of pieces that come once: a worker's death may deliver a late one again, to a later
        episode."""

    def conversation(self, number: int) -> list[tuple[Item, bool]]:
        """(what comes of it, whether it is forged), in some order but that of its calls."""
        draw, key = self.random, f"{number + 1:032x}"
        given: dict[str, Any] = {"conversation_key": key, "purpose": Purpose.UNKNOWN, "answers_user": True}
        names = [f"{number}-{turn}" for turn in range(draw.choice([0, 1, 1, 2, 2, 3]))]
        calls: list[Item] = [
            call(
                name,
                None,
                [1],
                [2],
                trace_id=f"{number + 1:016x}{turn:016x}",
                started_at_ns=turn * 50 * 10**9,
                tool_calls=(tool_call(name),),
                **given,
            )
            for turn, name in enumerate(names)
        ]
        said_of = [(self.piece(key, names), draw.random() < 0.15) for _ in range(draw.choice([0, 1, 2, 3, 5]))]
        line: list[tuple[Item, bool]] = [(one, False) for one in calls]
        for one in said_of:
            line.insert(draw.randrange(len(line) + 1) if draw.random() < 0.7 else len(line), one)
        self.num_forged += sum(is_forged for _, is_forged in said_of)
        return line

    def piece(self, key: str, names: list[str]) -> Reward:
        """On an answer, a tool call, all of it, nothing, or a runner's attempt; some revise each other."""
        draw = self.random
        value, by = draw.choice([-1.0, 0.0, 1.0]), f"k{draw.randrange(4)}-{key}"
        if draw.random() < 0.1:
            return said(value, by, rollout_id=rollout(int(key, 16)), attempt_id="a001", conversation_key=None)
        answers = [*map(call_id, names), *(f"call_{name}" for name in names), call_id("nowhere")]
        target = draw.choice([None, None, *answers])
        return said(value, by, target=target, at_ms=draw.randrange(160_000), conversation_key=key)

    def go_on(self, num_steps: int) -> None:
        """Some steps of the workers; some die."""
        for _ in range(num_steps):
            drawn = self.random.random()
            if drawn < 0.01 and self.num_deaths:
                self.num_deaths -= 1
                self.run.replace(self.random.choice(STAGES), is_alive=self.random.random() < 0.4)
            elif drawn < 0.05:
                self.run.commit(self.random.choice(STAGES))
            if not self.run.step(self.random):
                return

    def finish(self) -> None:
        """Until nothing waits."""
        for _ in range(1_000):
            self.go_on(100_000)
            if not self.run.undone():
                break
            self.run.tick(20.0)
        assert self.run.undone() == []
        for stage in STAGES:
            self.run.commit(stage)

    def check(self) -> Counter[str]:
        """The terms of all pieces, of which the receipts say the same."""
        log = MemoryLog()
        for spec in REGISTRY:
            log.create_topic(TOPICS.name(spec.topic))
            for record in self.run.log[spec.topic]:
                log.append(record.topic, record.key, record.value, record.headers, 0)
        for stage in STAGES:
            log.groups[TOPICS.group(stage)] = self.run.committed(stage)
        seen = gather(log, TOPICS, RunHash(RUN_HASH), "policy", ring=RING, starts=None)
        terms = feedback_terms(seen, trains=self.trains)
        receipts, genuine = self.receipts(), self.posted()
        assert terms.keys() == genuine.keys()
        for id_, reward in genuine.items():
            (told,) = (one for one in receipts.of(reward.idempotency_key) if self.is_it(one, reward))
            assert TERMS[told["state"]] == terms[id_], (reward, told)
            if self.is_undisturbed and len(seen.feedback.pieces[id_].inputs) <= 3:
                assert self.ended.get(id_, terms[id_]) == terms[id_], (reward, told)
                self.ended |= {id_: terms[id_]} if terms[id_] in ("joined", "late") else {}
        report = audit(log, TOPICS, RunHash(RUN_HASH), "policy", ring=RING, trains_captured=self.trains)
        assert report.feedback.terms == dict(Counter(terms.values()))
        assert [line for line in report.missing if "feedback" in line] == []
        forged = sum(RING.refusal(Topic.REWARDS, record) is not None for record in self.run.log[Topic.REWARDS])
        assert sum(TOPICS.name(Topic.REWARDS) in line for line in report.unverified) == forged
        return Counter(terms.values())

    @staticmethod
    def is_it(told: dict[str, Any], reward: Reward) -> bool:
        """Whether a receipt is of this piece."""
        about = reward.conversation_key or reward.rollout_id
        return (told["target"], told["conversation"]) == (reward.target, about)

    def posted(self) -> dict[str, Reward]:
        """The pieces that the gateway wrote, by their ids."""
        records = [one for one in self.run.log[Topic.REWARDS] if RING.refusal(Topic.REWARDS, one) is None]
        return {piece_id(reward): reward for reward in (REWARDS.decode(record.value) for record in records)}

    def receipts(self) -> Receipts:
        """Of a gateway that reads all that is there, in some order among the topics."""
        receipts = Receipts(trains=self.trains, wait_s=WAIT_S)
        lines: dict[Topic, list[Record]] = {topic: [*self.run.log[topic]] for topic in READ}
        order = [topic for topic, line in lines.items() for _ in line]
        self.random.shuffle(order)
        for topic in order:
            record = lines[topic].pop(0)
            if RING.refusal(topic, record) is not None:
                continue
            if topic is Topic.REWARDS:
                receipts.accept(REWARDS.decode(record.value))
            elif topic is Topic.CLOSED_EPISODES:
                receipts.close_episode(CLOSED.decode(record.value), record)
            elif topic is Topic.CLOSED_GROUPS:
                receipts.close_group(CLOSED.decode(record.value))
            elif topic is Topic.DEAD_LETTERS:
                receipts.refuse(*refused_in(record))
            elif isinstance(score := EPISODE_SCORES.decode(record.value), Score):
                receipts.come_behind(score, record)
        return receipts


@pytest.mark.parametrize("trains", [True, False])
def test_receipts_and_audit_say_the_same_of_each_piece_at_any_moment(
    trains: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Conversations that nobody, or many, rate; revised, late, forged, on nothing, of a runner's, without room."""
    found: Counter[str] = Counter()
    num_forged = 0
    for seed in range(max(NUM // _AT_ONCE // 2, 1)):
        monkeypatch.setattr("tracegrad.streams.credit.feedback_window._MAX_SAID", 4 if seed % 3 == 1 else 1_000)
        crowd = Crowd(seed, trains=trains)
        lines = [line for number in range(_AT_ONCE) if (line := crowd.conversation(number))]
        looks = {*crowd.random.sample(range(3 * _AT_ONCE), 4)}
        step = 0
        while lines:
            line = crowd.random.choice(lines)
            item, is_forged = line.pop(0)
            crowd.run.feed(item, is_forged=is_forged)
            lines = [line for line in lines if line]
            crowd.go_on(crowd.random.choice([0, 3, 30]))
            if crowd.random.random() < 0.3:
                crowd.run.tick(crowd.random.choice([0.5, 6.0, 12.0, 40.0]))
            found += crowd.check() if step in looks else Counter()
            step += 1
        crowd.finish()
        at_the_end = crowd.check()
        assert at_the_end["open"] == 0, seed
        found += at_the_end
        num_forged += crowd.num_forged
    terms = {"joined", "late", "not counted", "open"} | ({"dead-lettered"} if trains else set())
    assert num_forged and {*found} == terms
