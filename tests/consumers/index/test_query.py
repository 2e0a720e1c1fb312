"""Questions mean what the grammar of terms says they mean."""

from __future__ import annotations

import sqlite3
from random import Random
from typing import Any

import pytest

from tests.consumers.audit.small_run import long_run, memory_log
from tests.consumers.index.indexing import index_of
from tests.house import ROOT
from tracegrad.consumers.episode_facts import FIELDS, KINDS
from tracegrad.consumers.index import query
from tracegrad.consumers.index.query import Question, count, find
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.log.where import Kind, Term, matches, parse

OPS = ("=", "!=", "<", "<=", ">", ">=")


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> sqlite3.Connection:
    """Of a run with a retry, a rollback, a deadline, a second epoch."""
    return index_of(memory_log(long_run(tmp_path_factory.mktemp("weights"))), tmp_path_factory.mktemp("index"))


def holds(term: Term, facts: dict[str, Any]) -> bool:
    """As the grammar says, of one episode."""
    fact = facts[term.field]
    return matches(term, *fact) if FIELDS[term.field].is_many else matches(term, fact)


def some_term(random: Random, rows: list[dict[str, Any]]) -> Term:
    """About a value that occurs, a part of it, or none."""
    name = random.choice([*FIELDS])
    fact = random.choice(rows)[name]
    value = random.choice(fact) if isinstance(fact, list) and fact else fact if not isinstance(fact, list) else None
    if isinstance(value, str) and random.random() < 0.6:
        at = random.randint(0, len(value))
        value = random.choice(
            [value[:at] + "*", "*" + value[at:], value[:at] + "*" + value[at:], "[a-z]*", "?" * len(value)]
        )
    is_compared = FIELDS[name].kind is Kind.NUMBER and value is not None
    return Term(name, random.choice(OPS if is_compared else OPS[:2]), value)


@pytest.mark.parametrize("few", [1, 3, 5_000], ids=lambda few: f"few={few}")
@pytest.mark.parametrize("seed", range(6))
def test_what_is_found_is_what_fits(
    connection: sqlite3.Connection, seed: int, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All terms of it, whichever index is used, in the order asked for; and so many are counted."""
    monkeypatch.setattr(query, "_FEW", few)
    random = Random(seed)
    rows = list(find(connection, Question(order_by="at")))
    assert len(rows) > 8
    for _ in range(150):
        terms = tuple(some_term(random, rows) for _ in range(random.randint(1, 3)))
        expected = [one for one in rows if all(holds(term, one) for term in terms)]
        question = Question(terms=terms, order_by="at")
        assert list(find(connection, question)) == expected, terms
        assert count(connection, question) == len(expected)


@pytest.mark.parametrize("name", ["at", *FIELDS])
def test_an_order_goes_both_ways_and_what_is_not_known_comes_last(connection: sqlite3.Connection, name: str) -> None:
    """Every fact is an order."""
    column = "at_ms" if name == "at" else name
    for sign in ("", "-"):
        told = [one[column] for one in find(connection, Question(order_by=sign + name))]
        known = [one for one in told if one not in (None, [])]
        assert known == sorted(known, reverse=bool(sign))
        assert told[: len(known)] == known


def test_times_and_a_limit_bound_what_is_found(connection: sqlite3.Connection) -> None:
    """From a time, to before another."""
    times = [one["at_ms"] for one in find(connection, Question(order_by="at"))]
    begin, end = times[1], times[-1]
    found = [one["at_ms"] for one in find(connection, Question(begin_ms=begin, end_ms=end, order_by="at"))]
    assert found == [at for at in times if begin <= at < end]
    assert len(list(find(connection, Question(limit=2)))) == 2
    rare = Question(terms=parse("excluded=superseded", KINDS), begin_ms=times[0])
    assert count(connection, rare) == 1


def test_an_order_that_is_none_is_named(connection: sqlite3.Connection) -> None:
    """With those that there are."""
    with pytest.raises(ConfigurationError, match=r"at or one of episode, group, .* got '-reward; drop table episodes'"):
        find(connection, Question(order_by="-reward; drop table episodes"))


def test_the_page_tells_every_fact() -> None:
    """In their order, a row each."""
    told = [f"| `{name}` | {one.kind}{', several' * one.is_many} | {one.meaning} |" for name, one in FIELDS.items()]
    page = (ROOT / "docs" / "finding.md").read_text().splitlines()
    begin = page.index(told[0])
    assert page[begin : begin + len(told)] == told


@pytest.mark.parametrize("value", ["' OR 1=1 --", '"; DROP TABLE episodes; --', "%", "_", "[", "]", "?", "*"])
@pytest.mark.parametrize("field", [name for name, kind in KINDS.items() if kind is Kind.TEXT])
def test_what_a_user_writes_is_a_value_and_never_sql(connection: sqlite3.Connection, field: str, value: str) -> None:
    """Nor a pattern, but for `*`."""
    rows = list(find(connection, Question(order_by="at")))
    term = Term(field, "=", value)
    assert list(find(connection, Question(terms=(term,), order_by="at"))) == [one for one in rows if holds(term, one)]
