"""Declared rules pay for tool signals, in turn order and up to their caps."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.streams.make import (
    Streams,
    call,
    closed,
    config,
    event,
    llm_span,
    otlp,
    reward,
    rollout,
    tool_call,
    tool_span,
)
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.metrics import TOOLS_WITHOUT_ID
from tracegrad.schemas.records.calls import Purpose, SpliceOutcome
from tracegrad.schemas.records.episodes import Episode, EpisodeCall, ToolExecution
from tracegrad.schemas.records.facts import ToolStatus
from tracegrad.schemas.records.rollouts import RolloutState
from tracegrad.schemas.topics import Topic
from tracegrad.streams.assemble.air.apply import apply_air
from tracegrad.streams.assemble.air.rules import AirConfig, AirRule

OK = AirRule(name="ok", status="succeeded", value=0.5, cap=2)
BAD = AirRule(name="bad", status="failed", value=-0.1)


def turn(*statuses: str, tool: str = "calc") -> EpisodeCall:
    """A call whose tools ended so."""
    tools = tuple(
        ToolExecution(span_id=str(n), name=tool, status=ToolStatus(status), status_from="")
        for n, status in enumerate(statuses)
    )
    return EpisodeCall(
        call_id="c", turn=0, agent=None, joined_by="none", policy="policy", parent_call_id=None, shared_tokens=0,
        suffix_ids=b"", sampled_ids=b"", logprobs=b"", versions=(), temperature=1.0, finish_reason="stop",
        content=None, splice=SpliceOutcome(kind="first"), tools=tools,
    )  # fmt: skip


def paid(rules: list[AirRule], *turns: EpisodeCall) -> list[list[tuple[str, float]]]:
    """(rule, value) by turn."""
    episode = apply_air(AirConfig(rules=tuple(rules)), made_of(*turns))
    return [[(reward.rule, reward.value) for reward in turn_.rewards] for turn_ in episode.calls]


def made_of(*turns: EpisodeCall, **changes: Any) -> Episode:
    """An episode of some calls."""
    fields: dict[str, Any] = {
        "episode_id": "e", "rollout_id": rollout(1), "attempt_id": "a001", "group": None, "task_id": None,
        "policy": "policy", "purpose": Purpose.TRAIN, "state": RolloutState.SUCCEEDED, "is_final": True,
        "closed_by": "complete", "reward": 1.0,
    }  # fmt: skip
    calls = [msgspec.structs.replace(turn_, call_id=f"c{number}") for number, turn_ in enumerate(turns)]
    return Episode(calls=tuple(calls), **{**fields, **changes})


def test_each_successful_call_is_paid_until_the_cap() -> None:
    """.5 for each success, at most two an episode: the third earns nothing."""
    turns = [turn("succeeded"), turn("failed"), turn("succeeded"), turn("succeeded")]
    assert paid([OK], *turns) == [[("air:ok", 0.5)], [], [("air:ok", 0.5)], []]


def test_the_cap_holds_within_one_turn() -> None:
    """Three parallel tools of one call."""
    assert paid([OK], turn("succeeded", "succeeded", "succeeded")) == [[("air:ok", 0.5), ("air:ok", 0.5)]]


def test_a_rule_that_names_no_cap_has_one() -> None:
    """Otherwise the cheapest reward is a tool that works, called for ever."""
    assert sum(len(turn_) for turn_ in paid([BAD], *[turn("failed")] * 50)) == BAD.cap == 10


def test_unknown_is_neither_success_nor_failure() -> None:
    """Tri-state."""
    assert paid([OK, BAD], turn("unknown")) == [[]]


def test_rules_have_caps_of_their_own() -> None:
    """A success and a failure pay by their own rules, in the order of the tools."""
    assert paid([OK, BAD], turn("failed", "succeeded")) == [[("air:bad", -0.1), ("air:ok", 0.5)]]


def test_a_rule_may_name_its_tool() -> None:
    """By glob."""
    rule = AirRule(name="search", status="succeeded", value=1.0, tool="search*")
    assert paid([rule], turn("succeeded", tool="search_web"), turn("succeeded")) == [[("air:search", 1.0)], []]


def test_without_air_no_rule_pays() -> None:
    """`--no-air` keeps the rules in the file."""
    episode = apply_air(AirConfig(enabled=False, rules=(OK,)), made_of(turn("succeeded")))
    assert (episode.calls[0].rewards, episode.air_rules) == ((), "")


def test_a_cap_of_zero_pays_nothing() -> None:
    """The way to switch a rule off without removing it."""
    assert paid([AirRule(name="x", status="succeeded", value=1.0, cap=0)], turn("succeeded")) == [[]]


@pytest.mark.parametrize("bad", [{"value": float("nan")}, {"value": float("inf")}, {"cap": -1}])
def test_rules_that_cannot_work_are_refused(bad: dict[str, float]) -> None:
    """At load, naming the key."""
    with pytest.raises(ConfigurationError, match=r"^(value|cap): expected"):
        AirRule(**{"name": "x", "status": "failed", "value": 1.0, **bad})  # type: ignore[arg-type]


def test_rules_come_from_plain_data() -> None:
    """As the composition root builds them from TOML; unknown keys and outcomes are refused."""
    rule = {"name": "tool_success", "status": "succeeded", "value": 0.5, "cap": 2}
    assert msgspec.convert(rule, AirRule) == AirRule(name="tool_success", status="succeeded", value=0.5, cap=2)
    for wrong in ({"status": "unknown"}, {"colour": "blue"}):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({**rule, **wrong}, AirRule)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"run_hash": "xyz"}, "run_hash"),
        ({"policies": ()}, "policies"),
        ({"policies": ("a", "a")}, "policies"),
        ({"air": (OK, OK)}, "distinct names"),
        ({"idle_s": 0.0}, "idle_s"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes: dict[str, Any], match: str) -> None:
    """The message names the key."""
    with pytest.raises(ConfigurationError, match=match):
        config(**changes)


R1 = rollout(1)
OWN = R1 + "a001"
ID = "gen_ai__tool__call__id"


RULES = (AirRule(name="ok", status="succeeded", value=0.5), BAD)


def earned(*tools: Any, pays_without_id: bool = False) -> list[list[float]]:
    """What the calls of an attempt earn whose two answers ask for `calc` and for `other`, there at 11 and 21."""
    calls = [
        call("a", R1, [1], [2], tool_calls=(tool_call("1"),)),
        call("b", R1, [3], [4], tool_calls=(tool_call("2", "other"),)),
    ]
    spans = [llm_span(OWN, 90, "a", at=10), llm_span(OWN, 91, "b", at=20), *tools]
    air = AirConfig(rules=RULES, pays_without_id=pays_without_id)
    streams = Streams(msgspec.structs.replace(config(), air=air))
    streams.feed(
        otlp(*spans), *calls, closed(R1, calls), reward(R1), event(R1, spans_exported=len({s.span_id for s in spans}))
    )
    return [[reward.value for reward in turn_.rewards] for turn_ in streams.episode.calls]


@pytest.mark.parametrize(
    "forged",
    [
        {"at": 30, ID: "call_9"},
        {"at": 30, "tool": "other", ID: "call_1"},
        {"at": 30, "tool": "never_asked"},
        {"at": 5},
    ],
    ids=["id-not-asked", "other-name", "name-not-asked", "before-the-answer-without-id"],
)
def test_what_no_answer_asked_for_earns_nothing(forged: dict[str, Any]) -> None:
    """However often it is exported; and a true execution beside it is paid, once."""
    spans = [tool_span(OWN, number, **forged) for number in range(3)]
    assert earned(*spans) == earned(*spans, pays_without_id=True) == [[], []]
    true = tool_span(OWN, 10, at=12, **{ID: "call_1"})
    assert earned(*spans, true, true, tool_span(OWN, 11, at=13, **{ID: "call_1"})) == [[0.5], []]


def test_executions_without_an_id_are_counted() -> None:
    """So that one sees why AIR pays nothing for them."""
    calls = [call("a", R1, [1], [2], tool_calls=(tool_call("1"),))]
    streams = Streams()
    streams.feed(
        otlp(llm_span(OWN, 90, "a", at=10), tool_span(OWN, 1, at=12)),
        *calls,
        closed(R1, calls),
        reward(R1),
        event(R1, spans_exported=2),
    )
    assert streams.values(Topic.EPISODES)
    assert streams.assemble.metrics.value(TOOLS_WITHOUT_ID) == 1


def test_an_execution_without_an_id_earns_nothing_unless_one_says_so() -> None:
    """Its name and its time fit a request; a penalty is due all the same, or leaving ids out would pay."""
    nameless, failed = tool_span(OWN, 1, at=12), tool_span(OWN, 2, "other", at=22, status=2)
    assert earned(nameless, failed) == [[], [-0.1]]
    assert earned(nameless, failed, pays_without_id=True) == [[0.5], [-0.1]]
