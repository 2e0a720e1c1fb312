"""What a call is worth by each strategy, worked by hand; and that the default is what it was."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.streams.credit.test_credit import close, member, turns
from tests.streams.credit.test_segments import call, child
from tests.streams.make import config
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.records.episodes import AppliedReward, Episode, EpisodeCall
from tracegrad.schemas.records.rollouts import PeersRule, RolloutState, is_usable
from tracegrad.schemas.records.transitions import GroupSummary, decode_group
from tracegrad.streams.credit.config import CreditConfig
from tracegrad.streams.credit.strategies.strategy import CallCredit


def credited(*members: Episode, **keys: Any) -> list[list[tuple[float, str]]]:
    """(return, peers) of each call of each member; `keys` are those of `[credit]`."""
    strategy, terms = CreditConfig(**keys).resolve()
    return [[(one.return_, one.peers) for one in of_calls] for of_calls in strategy(members, terms)]


def of(agent: str, turn: int, *earned: float, **fields: Any) -> EpisodeCall:
    """A call of an agent that earned so much."""
    rewards = tuple(AppliedReward(rule="air:ok", value=value) for value in earned)
    return call(f"{agent}{turn}", [1], [2], agent=agent, turn=turn, rewards=rewards, **fields)


TEAM = (of("planner", 0, 0.5), of("coder", 0, -0.25), of("planner", 1))
"""Two agents; R = 1 unless a test says otherwise."""


def test_return_to_go_counts_what_came_from_a_call_on() -> None:
    """1 - .25 + .5 = 1.25; 1 - .25 = .75; 1."""
    (got,) = credited(member(0, calls=TEAM))
    assert got == [(1.25, "planner:0"), (0.75, "coder:0"), (1.0, "planner:1")]


def test_return_to_go_discounts_by_gamma() -> None:
    """gamma = .5: the last call has R = 1; before it .5 * 1 - .25 = .25; before that .5 * .25 + .5 = .625."""
    (got,) = credited(member(0, calls=TEAM), gamma=0.5)
    assert [value for value, _ in got] == [0.625, 0.25, 1.0]


def test_broadcast_gives_every_call_the_final_reward() -> None:
    """What calls earned does not count; each is compared with the same turn, and with rollouts that ended."""
    got = credited(member(0, calls=TEAM), member(1, reward=0.0, calls=TEAM[:1]), strategy="broadcast")
    assert got == [[(1.0, "planner:0"), (1.0, "coder:0"), (1.0, "planner:1")], [(0.0, "planner:0")]]
    assert CreditConfig(strategy="broadcast").rule == "turn_or_end"


def test_turn_gives_a_call_what_it_earned_itself() -> None:
    """R is no part of it: the trainer compares that by itself."""
    (got,) = credited(member(0, calls=(of("a", 0, 0.5, 0.25), of("a", 1), of("a", 2, -1.0))), strategy="turn")
    assert got == [(0.75, "a:0"), (0.0, "a:1"), (-1.0, "a:2")]


def test_agent_gives_every_call_what_the_rollout_was_worth_to_its_agent() -> None:
    """planner: 1 + .5; coder: 1 - .25. Each is compared with calls of that agent alone."""
    (got,) = credited(member(0, calls=TEAM), strategy="agent")
    assert got == [(1.5, "planner"), (0.75, "coder"), (1.5, "planner")]


def walk(*observations: int) -> tuple[EpisodeCall, ...]:
    """A chain of calls, each told one token after what the one before answered; answers differ by rollout."""
    calls = [call("c0", [observations[0]], [100 + len(observations)], agent="a")]
    for n, seen in enumerate(observations[1:], 1):
        calls.append(child(f"c{n}", f"c{n - 1}", 2 * n, [seen], [100 + n], agent="a", turn=n))
    return tuple(calls)


def test_anchor_compares_calls_that_began_in_the_same_state() -> None:
    """Two rollouts see 1, then 7 and 8, then 9 both, at different turns; gamma .5 halves R a call."""
    first, second = credited(
        member(0, calls=walk(1, 7, 9)), member(1, reward=0.0, calls=walk(1, 8, 8, 9)), strategy="anchor", gamma=0.5
    )
    assert [value for value, _ in first] == [0.25, 0.5, 1.0]
    (one, seven, nine), (same_one, eight, again, same_nine) = ([peers for _, peers in got] for got in (first, second))
    assert one == same_one and nine == same_nine and eight == again
    assert len({one, seven, eight, nine}) == 4
    assert all(peers.startswith("a@") for peers in (one, seven, eight, nine))


def test_a_state_is_an_agents_own() -> None:
    """Two agents that are told the same are not compared."""
    (got,) = credited(member(0, calls=(of("a", 0), of("b", 0))), strategy="anchor")
    assert got[0][1] != got[1][1]


def test_a_prompt_that_leaves_its_parent_bears_where() -> None:
    """Told the same after two shared tokens and after one, calls are in two states; equal rollouts in equal ones."""
    made = (
        call("c0", [1, 2], [3]),
        child("c1", "c0", 3, [9], [4]),
        child("c2", "c0", 2, [9], [4]),
        child("c3", "c0", 1, [9], [4]),
    )
    first, second = credited(member(0, calls=made), member(1, calls=made), strategy="anchor")
    assert len({peers for _, peers in first}) == 4
    assert first == second


@pytest.mark.parametrize(
    ("keys", "match"),
    [
        ({"strategy": "brodcast"}, "strategy: no strategy 'brodcast'; did you mean 'broadcast'?"),
        ({"strategy": "turn", "peers": "turn_or_end"}, "peers: strategy 'turn' names its own"),
        ({"strategy": "anchor", "peers": "rollout"}, "peers: strategy 'anchor' names its own"),
        ({"strategy": "agent", "gamma": 0.9}, "gamma: strategy 'agent' does not discount, got 0.9; leave gamma out"),
        ({"gamma": 0.0}, "gamma: expected more than 0"),
        ({"gamma": 1.5}, "gamma: expected at most 1"),
    ],
)
def test_keys_that_a_strategy_cannot_obey_are_refused(keys: dict[str, Any], match: str) -> None:
    """At load, with the remedy."""
    with pytest.raises(ConfigurationError) as caught:
        CreditConfig(**keys)
    assert str(caught.value).startswith(match)


OWN = """
def shares(members, terms):
    return [[(one.reward / len(one.calls), call.agent, 2) for call in one.calls] for one in members]

def short(members, terms):
    return [[] for _ in members]

def raises(members, terms):
    raise KeyError("nothing")

def odd(members, terms):
    return [[(float("nan"), "x") for _ in one.calls] for one in members]

def heavy(members, terms):
    return [[(1.0, "x", 1e9) for _ in one.calls] for one in members]

number = 7
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    """A user's file."""
    file = tmp_path / "mine.py"
    file.write_text(OWN)
    return str(file)


def written(strategy: str, *members: Episode) -> tuple[GroupSummary, list[tuple[float, str, float]]]:
    """The record of a group: its summary, and (return, peers, weight) of each turn."""
    rules = config(credit=CreditConfig(strategy=strategy))
    summary, rows = decode_group(close(*members, settings_=rules).outputs[0].value)
    return summary, [(turn.return_, turn.peers, turn.weight) for row in rows for turn in row.turns]


def test_a_strategy_of_a_users_file_needs_no_fork(own: str) -> None:
    """Plain tuples will do; the weight is the turn's."""
    summary, got = written(f"{own}:shares", member(0, size=1, calls=turns(0.0, 0.0)))
    assert got == [(0.5, "calculator", 2.0)] * 2
    assert (summary.peers, summary.excluded) == ("turn", "")


@pytest.mark.parametrize(
    ("name", "detail"),
    [
        ("short", "strategy short: expected credit of [2, 2] calls of the members, got [0, 0]"),
        ("raises", "strategy raises: KeyError: 'nothing'"),
    ],
)
def test_a_strategy_that_fails_costs_its_group_and_says_why(own: str, name: str, detail: str) -> None:
    """The worker goes on."""
    summary, got = written(f"{own}:{name}", member(0), member(1))
    assert (got, summary.excluded, summary.detail) == ([], "all_members_excluded", detail)
    assert [one.excluded for one in summary.members] == ["strategy_failed"] * 2


@pytest.mark.parametrize(("name", "reason"), [("odd", "bad_return"), ("heavy", "bad_weight")])
def test_numbers_that_nothing_can_be_computed_with_exclude_the_member(own: str, name: str, reason: str) -> None:
    """By name."""
    summary, got = written(f"{own}:{name}", member(0, size=1))
    assert (got, summary.members[0].excluded) == ([], reason)


@pytest.mark.parametrize(
    ("source", "name", "match"),
    [
        (OWN, "shars", r"strategy: expected a function 'shars' in .*; did you mean 'shares'\?"),
        (OWN, "number", "strategy: expected a function 'number'"),
        ("import nothing_of_that_name", "f", r"strategy: .* cannot be run: line 1: ModuleNotFoundError"),
        ("def f(:", "f", r"strategy: .* cannot be run: line 1: SyntaxError"),
    ],
)
def test_a_users_file_that_cannot_be_used_is_refused(tmp_path: Path, source: str, name: str, match: str) -> None:
    """When the worker starts, with the line."""
    file = tmp_path / "mine.py"
    file.write_text(source)
    with pytest.raises(ConfigurationError, match=match):
        CreditConfig(strategy=f"{file}:{name}").resolve()


def test_an_installed_package_declares_strategies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By entry point; one whose import fails is refused with its name."""
    (tmp_path / "of_a_package.py").write_text("def flat(members, terms):\n    return [[(3.0, 'x')] for _ in members]\n")
    info = tmp_path / "some_package-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: some-package\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[tracegrad.credit]\nflat = of_a_package:flat\ngone = no_module:f\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    strategy, terms = CreditConfig(strategy="flat").resolve()
    assert [list(map(tuple, of_calls)) for of_calls in strategy([member(0)], terms)] == [[(3.0, "x")]]
    with pytest.raises(ConfigurationError, match="strategy: 'gone' of package no_module:f cannot be imported"):
        CreditConfig(strategy="gone").resolve()


def drawn(rng: random.Random, number: int, size: int) -> Episode:
    """Calls of some agents, chained or not, with rewards usable or not."""
    calls: list[EpisodeCall] = []
    for n in range(rng.randint(1, 5)):
        worth = [rng.choice([0.1, -0.3, 0.5, 1e13]) for _ in range(rng.randint(0, 2))]
        fields: dict[str, Any] = {
            "turn": rng.randint(0, 3), "agent": rng.choice([None, "a", "b"]),
            "rewards": tuple(AppliedReward(rule=rng.choice(["air:a", "said"]), value=value) for value in worth),
            "policy": rng.choice(["policy", "policy", "other"]), "masked": rng.choice(["", "", "truncated"]),
        }  # fmt: skip
        if n and rng.random() < 0.7:
            calls.append(child(f"c{n}", f"c{n - 1}", rng.randint(1, 2), [2], [10 + n], **fields))
        else:
            calls.append(call(f"c{n}", [1, rng.randint(1, 3)], [10 + n], **fields))
    state = rng.choice([RolloutState.SUCCEEDED, RolloutState.FAILED, RolloutState.TRUNCATED, RolloutState.ABORTED])
    reward = rng.choice([None, 0.0, 1.0, 0.3, 2e12])
    return member(number, size=size, calls=tuple(calls), reward=reward, state=state)


def literal(members: Sequence[Episode], rule: PeersRule) -> list[list[CallCredit]]:
    """The default as docs/streams.md says it, call by call."""
    every = {one.agent for episode in members for one in episode.calls if one.agent}
    found = []
    for episode in members:
        named = {one.agent for one in episode.calls if one.agent}
        sole = next(iter(named)) if len(named) == 1 else next(iter(every)) if len(every) == 1 else ""
        credits = []
        for at, one in enumerate(episode.calls):
            later = [reward.value for after in episode.calls[at:] for reward in after.rewards]
            peers = (one.agent or sole) + ("" if rule == "rollout" else f":{one.turn}")
            credits.append(CallCredit(math.fsum([episode.reward or 0.0, *filter(is_usable, later)]), peers))
        found.append(credits)
    return found


@pytest.mark.parametrize("rule", ["turn_or_end", "turn", "rollout"])
def test_the_default_is_the_formula_on_random_groups(rule: PeersRule) -> None:
    """300 of them, returns to the bit."""
    for seed in range(300):
        rng = random.Random(seed)
        size = rng.randint(1, 4)
        members = [drawn(rng, number, size) for number in range(size)]
        usable = [one if is_usable(one.reward) else msgspec.structs.replace(one, reward=0.0) for one in members]
        strategy, terms = CreditConfig(peers=rule).resolve()
        assert strategy(members, terms) == literal(usable, rule)


def test_records_of_the_default_are_what_they_were() -> None:
    """Byte by byte, by the sum over 100 groups of what their records say."""
    digest = hashlib.sha256()
    for seed in range(100):
        rng = random.Random(seed)
        size = rng.randint(1, 4)
        summary, rows = decode_group(close(*(drawn(rng, n, size) for n in range(size))).outputs[0].value)
        told = msgspec.to_builtins(summary)
        assert not told.pop("air_rules")
        digest.update(msgspec.json.encode(told, order="sorted"))
        for row in rows:
            digest.update(msgspec.json.encode(row.turns) + row.token_ids.tobytes() + row.loss_mask.tobytes())
    assert digest.hexdigest() == "25bc2be94f3da525769ce65757a691c1ce2b979eb05efa0210a054f42cdfdcb0"
