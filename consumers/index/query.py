"""Questions to the index: which episodes, how many, and what is known of them.

In: an index, a question. Out: one dictionary an episode, by the names of FIELDS. Invariant: nothing that a user writes
becomes SQL: a question holds terms that were parsed against FIELDS, whose names stand here, and all values are bound.
`!=` holds where `=` does not, a comparison only of what is known, as schemas/log/where.py says. Failure:
ConfigurationError for an order that names no field.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.log.where import Kind, Term

from ..episode_facts import FIELDS
from .file import rows_of
from .schema import INDEXED

_FEW = 5_000
"""So many rows are looked at, and put in order, in some milliseconds."""
_NO_INDEX = "+e."
"""A column behind a plus is looked at, and no index of it."""
_COLUMNS = {"episode": "id", "group": '"group"'}
_WORDS = [name for name, field in FIELDS.items() if field.kind is Kind.TEXT and name not in _COLUMNS]


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """Which episodes are meant, and in which order."""

    terms: tuple[Term, ...] = ()
    """All of them hold."""
    begin_ms: int | None = None
    """Written at this time or later."""
    end_ms: int | None = None
    """And before this time."""
    order_by: str = "-at"
    """A field, or `at`, the time of the record; `-` before it: from the greatest to the least."""
    limit: int | None = None


def count(connection: sqlite3.Connection, question: Question) -> int:
    """How many there are."""
    condition, values, _ = condition_of(connection, question, is_count=True)
    (found,) = connection.execute(f"SELECT COUNT(*) FROM episodes e WHERE {condition}", values).fetchone()
    return int(found)


def find(connection: sqlite3.Connection, question: Question) -> Iterator[dict[str, Any]]:
    """The facts of each, in order; `at_ms`, `partition` and `offset` are those of its record on `episodes`. Raises
    ConfigurationError."""
    condition, values, is_rare = condition_of(connection, question)
    order = _order(question.order_by, _NO_INDEX if is_rare else "e.")
    limit = -1 if question.limit is None else question.limit
    # In two steps: words are looked up for what is told, not for all that is put in order.
    numbers = connection.execute(
        f"SELECT e.n FROM episodes e WHERE {condition} ORDER BY {order} LIMIT ?", (*values, limit)
    )
    return (_facts(connection.execute(_SHOW, number)) for number in numbers)


def unread(connection: sqlite3.Connection) -> dict[str, int]:
    """Records that could not be read: `topic: reason` -> how many."""
    rows = connection.execute("SELECT topic, reason, num FROM unread ORDER BY topic, reason")
    return {f"{topic}: {reason}": num for topic, reason, num in rows}


def _shown(name: str) -> str:
    if name in _COLUMNS:
        return "e.id" if name == "episode" else "g.id"
    return f"(SELECT word FROM words WHERE n = e.{name})" if name in _WORDS else f"e.{name}"


_SHOW = (
    f"SELECT {', '.join(f'{_shown(name)} AS {chr(34)}{name}{chr(34)}' for name in FIELDS)}, "
    'e.at_ms AS at_ms, e.partition AS partition, e."offset" AS "offset" '
    'FROM episodes e JOIN groups g ON g.n = e."group" WHERE e.n = ?'
)


def _facts(found: sqlite3.Cursor) -> dict[str, Any]:
    told = next(rows_of(found))
    for name, field in FIELDS.items():
        if field.is_many:
            told[name] = json.loads(told[name] or "[]")
        elif field.kind is Kind.FLAG:
            told[name] = bool(told[name])
    return told


def _order(text: str, of: str) -> str:
    """An order in SQL; `of` stands before the columns of the episode."""
    name, way = (text[1:], "DESC") if text.startswith("-") else (text, "ASC")
    if name not in ("at", *FIELDS):
        known = ", ".join(FIELDS)
        raise ConfigurationError(f"expected at or one of {known} to order by, perhaps with - before it, got {text!r}")
    column = f"{of}{_COLUMNS.get(name, name)}"
    if name == "group":
        column = f"(SELECT id FROM groups WHERE n = {column})"
    elif name in _WORDS:
        column = f"(SELECT word FROM words WHERE n = {column})"
    last = " NULLS LAST" if way == "ASC" else ""
    times = f"{of}at_ms {way}, e.n {way}"
    return times if name == "at" else f"{column} {way}{last}, {times}"


def condition_of(
    connection: sqlite3.Connection, question: Question, *, is_count: bool = False
) -> tuple[str, list[Any], bool]:
    """(a condition, its values, whether it has a rare term). It uses the index of its rarest term, if one is rare, else
    none, and leaves that to the order.

    SQLite knows no more of a term than how many values its column has; the one that it would choose may hold of all.
    """
    sizes = [_size(connection, term) for term in question.terms]
    rarest = sizes.index(min(sizes)) if sizes and min(sizes) < _FEW else None
    if is_count and len(sizes) == 1:
        rarest = 0
    conditions, values = ["TRUE"], list[Any]()
    for number, term in enumerate(question.terms):
        condition, bound_to = _condition(term, "e." if number == rarest else _NO_INDEX)
        conditions.append(condition)
        values += bound_to
    for op, bound in ((">=", question.begin_ms), ("<", question.end_ms)):
        if bound is not None:
            conditions.append(f"{_NO_INDEX if rarest is not None else 'e.'}at_ms {op} ?")
            values.append(bound)
    return " AND ".join(conditions), values, rarest is not None


def _size(connection: sqlite3.Connection, term: Term) -> int:
    """How many episodes it holds of; _FEW and more are one, and so is what no index tells."""
    is_any_but = term.op == "!=" and term.value is not None
    if term.field not in (*_COLUMNS, *INDEXED) or is_any_but:
        return _FEW
    condition, values = _condition(term, "e.")
    rows = f"SELECT 1 FROM episodes e WHERE {condition} LIMIT {_FEW}"
    (found,) = connection.execute(f"SELECT COUNT(*) FROM ({rows})", values).fetchone()
    return int(found)


def _condition(term: Term, of: str) -> tuple[str, Sequence[Any]]:
    """A term in SQL; `of` stands before the columns of the episode."""
    column = of + _COLUMNS.get(term.field, term.field)
    if term.value is None:
        # Not "IS NOT NULL", for which no index is used.
        return (f"{column} > -9e999" if term.op == "!=" else f"{column} IS NULL"), ()
    if not isinstance(term.value, str):
        return f"{column} {'IS NOT' if term.op == '!=' else term.op} ?", (term.value,)
    op, value = ("GLOB", _glob(term.value)) if "*" in term.value else ("=", term.value)
    values: tuple[str, ...] = (value,)
    if term.field == "episode":
        is_like = f"{column} {op} ?"
    elif term.field == "group":
        is_like = f"{column} IN (SELECT n FROM groups WHERE id {op} ?)"
    else:
        of_word = f"EXISTS(SELECT 1 FROM json_each(word) WHERE value {op} ?)"
        found = of_word if FIELDS[term.field].is_many else f"word {op} ?"
        is_like, values = f"{column} IN (SELECT n FROM words WHERE field = ? AND {found})", (term.field, value)
    return (is_like if term.op == "=" else f"({column} IS NULL OR NOT {is_like})"), values


def _glob(text: str) -> str:
    """SQLite's, in which other characters are special too."""
    return re.sub(r"[\[?]", lambda found: f"[{found[0]}]", text)
