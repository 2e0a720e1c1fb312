"""What came of a crowd's thumbs: how good the policy is, and where each thumb went. For benchmarks/feedback.py."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections import Counter, defaultdict
from typing import Any

from tracegrad.compose.run.wiring import Wiring
from tracegrad.schemas.log.follow import read_to_end
from tracegrad.schemas.log.protocol import Log
from tracegrad.schemas.records.held_out import HeldOutPass, HeldOutPasses, HeldOutScore
from tracegrad.schemas.records.rollouts import FEEDBACK_SOURCE, REWARDS
from tracegrad.schemas.records.training import TRAINING_STEPS, TrainingStep
from tracegrad.schemas.records.transitions import decode_group
from tracegrad.schemas.records.weights import WEIGHT_ACKS, WEIGHTS
from tracegrad.schemas.topics import Topic

LAST = 640
READ_S = 30.0
"""How far the rewards gateway, a reader of the topics, may be behind them."""


def log_of(wiring: Wiring) -> Log:
    return wiring.log()


def steps_of(wiring: Wiring) -> list[TrainingStep]:
    """What the trainer did, in order: of a step that was taken anew what it did last."""
    records = read_to_end(log_of(wiring), wiring.topics.name(Topic.TRAINING_STEPS))
    found = (TRAINING_STEPS.decode(record.value) for record in records)
    by_number = {step.step: step for step in found if isinstance(step, TrainingStep)}
    return [by_number[number] for number in sorted(by_number)]


def served_by(wiring: Wiring) -> list[int]:
    """Versions that engines said they serve."""
    topic = wiring.topics.name(Topic.WEIGHT_ACKS)
    return [WEIGHT_ACKS.decode(one.value).version for one in read_to_end(log_of(wiring), topic)]


def mean_of_last(answers: list[dict[str, Any]]) -> dict[str, float]:
    """Of the last conversations: the mean outcome of all their answers, and of the first and the second questions."""
    ended = sorted(answers, key=lambda answer: answer["at"])
    kept = {one["conversation"] for one in [one for one in ended if one["turn"] == 0][-LAST:]}
    last = [answer for answer in answers if answer["conversation"] in kept]

    def mean(of: list[dict[str, Any]]) -> float:
        return round(sum(answer["right"] for answer in of) / max(1, len(of)), 4)

    return {
        "mean": mean(last),
        "first": mean([one for one in last if one["turn"] == 0]),
        "second": mean([one for one in last if one["turn"] == 1]),
    }


def curve(answers: list[dict[str, Any]], points: int = 20) -> list[float]:
    """Mean outcome of all answers in the order of their time, in equal parts."""
    right = [answer["right"] for answer in sorted(answers, key=lambda answer: answer["at"])]
    size = max(1, len(right) // points)
    parts = (right[at : at + size] for at in range(0, size * points, size))
    return [round(sum(part) / len(part), 3) for part in parts if part]


def held_out_score(wiring: Wiring) -> HeldOutScore | None:
    """Of the pass after the last step; None: it is not there."""
    passes = HeldOutPasses()
    for record in read_to_end(log_of(wiring), wiring.topics.name(Topic.WEIGHTS)):
        if isinstance(word := WEIGHTS.decode(record.value), HeldOutPass):
            passes.fold(word)
    newest, last = passes.newest, wiring.settings.trainer.steps
    return newest.score if newest is not None and newest.step == last else None


def traced(lines: list[dict[str, Any]], wiring: Wiring, raters: dict[str, str]) -> dict[str, Any]:
    """Each accepted thumb by the crowd's file, against the topic, the receipts and the turns that were trained on."""
    said: dict[str, list[float]] = defaultdict(list)
    for line in sorted((one for one in lines if "key" in one), key=lambda one: one["at"]):
        said[line["key"]].append(line["value"])
    found: dict[str, set[float]] = defaultdict(set)
    for record in read_to_end(log_of(wiring), wiring.topics.name(Topic.REWARDS)):
        reward = REWARDS.decode(record.value)
        if reward.source == FEEDBACK_SOURCE and reward.value is not None:
            found[reward.idempotency_key].add(reward.value)
    states = {key: _receipt(key, raters) for key in said}
    parts: dict[str, float] = {}
    for record in read_to_end(log_of(wiring), wiring.topics.name(Topic.TRANSITIONS)):
        for row in decode_group(record.value)[1]:
            for turn in row.turns:
                thumbs = [part.value for part in turn.reward_parts if part.rule == "thumb"]
                parts[turn.call_id] = sum(thumbs) if thumbs else parts.get(turn.call_id, -1.0)
    by_answer: dict[str, list[float]] = defaultdict(list)
    for key, values in said.items():
        answer = key.partition(":")[2]
        if answer.startswith("chatcmpl-") and states[key] == "joined":
            by_answer[answer].append(values[-1])
    trained = {answer: values for answer, values in by_answer.items() if answer in parts}
    wrong = [one for one, values in trained.items() if abs(parts[one] - sum(values) / len(values)) > 1e-6]
    return {
        "accepted": len(said),
        "lost": sum(not set(values) <= found[key] for key, values in said.items()),
        "states": Counter(states.values()),
        "refused": sum("error" in line for line in lines if line.get("forged") or "rated" in line),
        "unauthorised": sum(line.get("status") == 401 for line in lines),
        "answers_joined": len(by_answer),
        "answers_in_transitions": len(trained),
        "answers_with_another_mean": len(wrong),
    }


def _receipt(key: str, raters: dict[str, str]) -> str:
    url = f"{raters['TRACEGRAD_REWARDS_URL']}/v1/rewards/{key}"
    headers = {"authorization": f"Bearer {raters['TRACEGRAD_REWARD_TOKEN']}"}
    deadline = time.monotonic() + READ_S
    try:
        while True:
            with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as response:
                states = {piece["state"] for piece in json.load(response)["pieces"]}
            if not states & {"accepted", "waiting"} or time.monotonic() > deadline:
                return "+".join(sorted(states))
            time.sleep(0.5)
    except urllib.error.HTTPError as error:
        return f"status {error.code}"
