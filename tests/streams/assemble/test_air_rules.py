"""Each predicate of a rule by hand, what it pays, whom, and that it stops; and what no rule may be."""

from __future__ import annotations

import random
import time
from typing import Any

import msgspec
import pytest

from tests.streams.assemble.test_air import made_of, turn
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.records.calls import CallOutcome, ToolCall
from tracegrad.schemas.records.episodes import EPISODES, AppliedReward, Episode, EpisodeCall, ToolExecution
from tracegrad.schemas.records.facts import ToolStatus
from tracegrad.schemas.records.rollouts import Reward, RolloutState
from tracegrad.streams.assemble.air.apply import apply_air
from tracegrad.streams.assemble.air.rules import AirConfig, AirRule, matching


def tool(**fields: Any) -> EpisodeCall:
    """A call with one execution."""
    made: dict[str, Any] = {"span_id": "1", "name": "calc", "status": ToolStatus.UNKNOWN, "status_from": ""}
    return msgspec.structs.replace(turn(), tools=(ToolExecution(**(made | fields)),))


def answer(**fields: Any) -> EpisodeCall:
    """A call without tools."""
    return msgspec.structs.replace(turn(), **fields)


def said(name: str, value: float | None, target: str | None = None) -> Reward:
    """A reward that counts."""
    return Reward(
        rollout_id="", attempt_id="", name=name, value=value, target=target, source="grader:g", idempotency_key=name
    )


def pays(episode: Episode, **keys: Any) -> list[list[float]]:
    """What each call earns by one rule that pays 1."""
    rule = AirRule(**{"name": "x", "value": 1.0, **keys})
    paid = apply_air(AirConfig(rules=(rule,)), episode)
    return [[reward.value for reward in call.rewards] for call in paid.calls]


S = 1_000_000_000
TOKENS = b"\0\0\0\1"


@pytest.mark.parametrize(
    ("keys", "true", "false"),
    [
        ({"status": "succeeded"}, tool(status=ToolStatus.SUCCEEDED), tool()),
        ({"status": "failed"}, tool(status=ToolStatus.FAILED), tool()),
        ({"status": "failed", "tool": "c*"}, tool(status=ToolStatus.FAILED), tool(status=ToolStatus.FAILED, name="x")),
        ({"regex": r"\b42\b"}, tool(result="it is 42."), tool(result="it is 421")),
        ({"regex": "."}, tool(result="x"), tool(result=None)),
        ({"http_status": "5*"}, tool(http_status=503), tool(http_status=404)),
        ({"http_status": "*"}, tool(http_status=200), tool()),
        ({"over_seconds": 2.0}, tool(duration_s=2.5), tool(duration_s=2.0)),
        ({"over_seconds": 2.0}, tool(duration_s=9.0), tool(duration_s=None)),
        ({"on": "call", "unparsable": True}, answer(unparsable=("call_1",)), answer()),
        ({"on": "call", "unparsable": False}, answer(), answer(unparsable=("call_1",))),
        ({"on": "call", "repeated": True}, answer(repeated=("call_1",)), answer()),
        ({"on": "call", "finish_reason": "length"}, answer(finish_reason="length"), answer()),
        ({"on": "call", "regex": r"^Answer: \d+$"}, answer(content="Answer: 7"), answer(content="Answer: seven")),
        ({"on": "call", "regex": ""}, answer(content=""), answer(content=None)),
        ({"on": "call", "over_tokens": 2}, answer(sampled_ids=TOKENS * 3), answer(sampled_ids=TOKENS * 2)),
        ({"on": "call", "over_seconds": 1.0}, answer(started_at_ns=S, ended_at_ns=3 * S), answer(ended_at_ns=3 * S)),
        ({"on": "call", "finish_reason": "*", "agent": "plan*"}, answer(agent="planner"), answer(agent=None)),
        ({"on": "call", "finish_reason": "*", "agent": "a"}, answer(agent="a"), answer(agent="b")),
    ],
)
def test_a_predicate_of_a_tool_or_a_call(keys: dict[str, Any], true: EpisodeCall, false: EpisodeCall) -> None:
    """The first call fulfils it, the second does not, or does not tell."""
    assert pays(made_of(true, false), **keys) == [[1.0], []]


@pytest.mark.parametrize(
    ("keys", "fields", "is_paid"),
    [
        ({"status": "failed"}, {"state": RolloutState.FAILED}, True),
        ({"status": "truncated"}, {"state": RolloutState.TRUNCATED}, True),
        ({"status": "failed"}, {"state": RolloutState.SUCCEEDED}, False),
        ({"over_turns": 2}, {}, True),
        ({"over_turns": 3}, {}, False),
        ({"over_seconds": 5.0}, {"duration_s": 6.0}, True),
        ({"over_seconds": 5.0}, {"duration_s": None}, False),
        ({"over_tokens": 5}, {}, True),
        ({"over_tokens": 6}, {}, False),
    ],
)
def test_a_predicate_of_the_end_pays_the_last_call(keys: dict[str, Any], fields: dict[str, Any], is_paid: bool) -> None:
    """Three calls of two tokens each."""
    calls = [answer(sampled_ids=TOKENS * 2)] * 3
    assert pays(made_of(*calls, **fields), on="episode", **keys) == [[], [], [1.0] if is_paid else []]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"evaluation": "style"}, [[1.0], [], []]),
        ({"evaluation": "*"}, [[1.0], [1.0], [1.0]]),
        ({"at_least": 0.5}, [[], [1.0], [1.0]]),
        ({"below": 0.5}, [[1.0], [], []]),
        ({"evaluation": "s*", "at_least": 0.5, "below": 0.7}, [[], [1.0], []]),
        ({"evaluation": "style", "target": "last"}, [[], [], [1.0]]),
        ({"per": "score", "at_most": 0.5, "evaluation": "*"}, [[0.25], [0.5], [0.5]]),
    ],
)
def test_an_evaluation_pays_the_call_that_it_names(keys: dict[str, Any], expected: list[list[float]]) -> None:
    """A call's id, a tool call's; else the last. What has no value, or names nothing here, is no signal."""
    asking = answer(tool_calls=(ToolCall(id="call_9", name="calc", arguments="{}"),))
    rewards = (
        said("style", 0.25, "c0"), said("sound", 0.6, "call_9"), said("reward", 1.0), said("style", None),
        said("style", 0.9, "elsewhere"),
    )  # fmt: skip
    assert pays(made_of(answer(), asking, answer(), rewards=rewards), on="evaluation", **keys) == expected


def test_a_rule_pays_by_a_number_up_to_its_bound() -> None:
    """-.5 a second beyond 2, of at most 3: 4 s cost 1, 30 s cost 1.5; what lasted 1 s costs nothing."""
    calls = [tool(duration_s=4.0), tool(duration_s=30.0), tool(duration_s=1.0), tool(duration_s=None)]
    got = pays(made_of(*calls), value=-0.5, per="second", over_seconds=2.0, at_most=3.0)
    assert got == [[-1.0], [-1.5], [], []]


def test_what_shaping_pays_is_taken_back_at_the_end() -> None:
    """Two successes of .5 are paid where they were, and cost 1 in the last call: 0 in all."""
    calls = [tool(status=ToolStatus.SUCCEEDED), tool(status=ToolStatus.SUCCEEDED), answer()]
    assert pays(made_of(*calls), status="succeeded", value=0.5, shaping=True) == [[0.5], [0.5], [-1.0]]
    assert pays(made_of(answer()), status="succeeded", shaping=True) == [[]]


def test_every_kind_of_rule_stops_at_its_cap() -> None:
    """The earliest turns first."""
    assert pays(made_of(*[answer()] * 4), on="call", finish_reason="*", cap=2) == [[1.0], [1.0], [], []]


def test_what_nobody_took_or_nobody_proved_pays_nothing() -> None:
    """Nor does it cost: it is not known to be the agent's."""
    calls = [tool(status=ToolStatus.FAILED, is_proved=False), answer(outcome=CallOutcome.SUPERSEDED)]
    episode = made_of(*calls)
    assert pays(episode, status="failed", value=-1.0) == pays(episode, on="call", finish_reason="x*") == [[], []]
    assert pays(episode, on="episode", over_turns=1) == [[], []]


def test_an_execution_without_an_id_is_fined_and_not_rewarded() -> None:
    """By whatever predicate."""
    episode = made_of(tool(result="x", has_id=False))
    assert (pays(episode, regex="x"), pays(episode, regex="x", value=-1.0)) == ([[]], [[-1.0]])


@pytest.mark.parametrize(
    ("keys", "match"),
    [
        ({}, "on = 'tool': expected what is paid for, got nothing; add one of"),
        ({"tool": "x"}, "on = 'tool': expected what is paid for"),
        ({"on": "call", "status": "failed"}, "status: expected on = 'tool' or 'episode', got on = 'call'; change one"),
        ({"unparsable": True}, "unparsable: expected on = 'call', got on = 'tool'"),
        ({"on": "episode", "tool": "x", "status": "failed"}, "tool: expected on = 'tool', got on = 'episode'"),
        ({"status": "truncated"}, "status: expected 'succeeded' or 'failed' of a tool"),
        ({"per": "token", "at_most": 1.0}, "per: expected on = 'call' or 'episode' with 'token', got 'tool'"),
        ({"per": "second"}, "at_most: expected with per"),
        ({"status": "failed", "at_most": 1.0}, "at_most: expected with per"),
        ({"regex": "(a"}, "regex: Invalid regular expression: missing ): (a; expected RE2's syntax"),
        ({"regex": r"(a)\1"}, "regex: Invalid regular expression: invalid escape sequence"),
        ({"regex": "(?=a)"}, "regex: Invalid regular expression: invalid perl operator"),
        ({"regex": "(((a{500}){500}){500})"}, "regex: Invalid regular expression"),
        ({"over_seconds": 0.0}, "over_seconds: expected more than 0"),
    ],
)
def test_rules_that_cannot_work_are_refused_with_the_remedy(keys: dict[str, Any], match: str) -> None:
    """At load."""
    with pytest.raises(ConfigurationError) as caught:
        AirRule(**{"name": "x", "value": 1.0, **keys})
    assert str(caught.value).startswith(match)


def test_a_hostile_text_does_not_hold_a_rule_up() -> None:
    """For Python's engine this pattern and text take longer than the universe; and odd characters are no error."""
    begin = time.monotonic()
    assert matching(r"(a|a)*(a|aa)+$", ["a" * 99_000 + "!", "b", "\ud800", ""]) == [False] * 4
    assert time.monotonic() - begin < 20.0


def drawn(rng: random.Random) -> Episode:
    """Calls and tools of any kind."""
    calls = []
    for number in range(rng.randint(0, 5)):
        tools = tuple(
            ToolExecution(
                span_id=str(at), name=rng.choice(["calc", "search"]), status=rng.choice(list(ToolStatus)),
                status_from="", is_proved=rng.random() < 0.8, has_id=rng.random() < 0.8,
                result=rng.choice([None, "error", "42"]), duration_s=rng.choice([None, 0.5, 5.0]),
                http_status=rng.choice([None, 200, 503]),
            )
            for at in range(rng.randint(0, 3))
        )  # fmt: skip
        rewards = (AppliedReward(rule="said", value=0.5),) if rng.random() < 0.3 else ()
        calls.append(
            answer(
                tools=tools, rewards=rewards, agent=rng.choice([None, "a", "b"]), sampled_ids=TOKENS * number,
                unparsable=rng.choice([(), ("c",)]), outcome=rng.choice(list(CallOutcome)),
            )
        )  # fmt: skip
    return made_of(*calls, rewards=(said("style", rng.random()),), state=rng.choice(list(RolloutState)))


RULES = (
    AirRule(name="ok", status="succeeded", value=0.5, cap=2),
    AirRule(name="slow", per="second", over_seconds=1.0, at_most=2.0, value=-0.25, cap=3),
    AirRule(name="broken", on="call", unparsable=True, value=-1.0, cap=1),
    AirRule(name="said", on="evaluation", evaluation="*", per="score", at_most=1.0, value=1.0),
    AirRule(name="early", status="succeeded", value=0.125, shaping=True),
    AirRule(name="gone", on="episode", status="failed", value=-1.0),
)


def test_history_can_be_asked_again() -> None:
    """300 random episodes: applied twice, or after other rules, or to the record as read back, rules pay the same; no
    rule exceeds its cap, shaping sums to 0, and what others said stays."""
    config, other = AirConfig(rules=RULES), AirConfig(rules=(AirRule(name="x", status="failed", value=9.0),))
    for seed in range(300):
        episode = drawn(random.Random(seed))
        paid = apply_air(config, episode)
        assert apply_air(config, apply_air(other, paid)) == paid
        assert apply_air(config, EPISODES.decode(EPISODES.encode(episode))) == paid
        every = [reward for call in paid.calls for reward in call.rewards]
        for rule in RULES:
            own = [reward.value for reward in every if reward.rule == f"air:{rule.name}"]
            assert len(own) <= rule.cap + rule.shaping
            assert not rule.shaping or sum(own) == 0.0
        assert [one.rule for one in every].count("said") == sum(bool(call.rewards) for call in episode.calls)
        assert paid.air_rules == config.digest


def test_the_digest_tells_rules_apart() -> None:
    """By every key; without rules, or switched off, there is none."""
    one = AirConfig(rules=RULES)
    changed = AirConfig(rules=(msgspec.structs.replace(RULES[0], cap=3), *RULES[1:]))
    assert len({one.digest, changed.digest, AirConfig(rules=RULES, pays_without_id=True).digest}) == 3
    assert AirConfig().digest == AirConfig(enabled=False, rules=RULES).digest == ""
    assert len(one.digest) == 16
