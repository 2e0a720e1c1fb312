"""The list of groups, to filter and to search. In: the run's index, a question in the URL. Out: a page of rows.

    /groups?where=reward<1 tools_failed>0     terms, as `tracegrad episodes --where` has them
    /groups?q=eval-20                         a task, an agent, a tool, why it was left out, or how an id begins
    /groups?before=AT.PLACE                   the next page

Invariant: a filter is the URL's, so a link shows the same. Failure: terms that are not understood are told, with none
found.
"""

from __future__ import annotations

import re
import sqlite3
from typing import Any, NamedTuple
from urllib.parse import urlencode

from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.log.where import Term, parse

from ...episode_facts import FIELDS, KINDS
from ...index.group_facts import GroupFacts, groups_where
from ...index.query import Question
from ..board import Board, ViewQuery
from ..view import View

_ROWS = 50
_MAX_SEARCHED = 200
_BEFORE = re.compile(r"([0-9]{1,16})\.([0-9]{1,16})")
_SEARCHED = ("task", "agents", "tool", "excluded")
_ID = re.compile(r"[0-9a-fA-F]{6,32}")
_USUAL = (
    ("all", ""),
    ("held out", "purpose=validation"),
    ("training", "purpose=train"),
    ("captured", "captured=yes"),
    ("a tool failed", "tools_failed>0"),
    ("left out", "excluded!=none"),
    ("rated", "rated>0"),
    ("without a reward", "reward=none"),
)


class GroupsPage(NamedTuple):
    """A page of the list."""

    rows: list[GroupFacts]
    after: str
    """The query of the next page; empty: there is none."""
    error: str


def find_groups(connection: sqlite3.Connection, query: dict[str, str]) -> GroupsPage:
    """By what the URL's query asks."""
    where, searched = query.get("where", ""), query.get("q", "").strip()
    try:
        terms = parse(where, KINDS, by="Where")
    except ConfigurationError as error:
        return GroupsPage([], "", str(error))
    place = _BEFORE.fullmatch(query.get("before", ""))
    before = (int(place[1]), int(place[2])) if place else None
    found: list[GroupFacts] = []
    for term in _searches(searched) if searched else [None]:
        more = terms if term is None else (*terms, term)
        found += groups_where(connection, Question(terms=more), before=before, limit=_ROWS + 1)
    rows = sorted({one.group: one for one in found}.values(), key=lambda one: (one.at_ms, one.place), reverse=True)
    after = ""
    if len(rows) > _ROWS:
        last = rows[_ROWS - 1]
        asked = {"where": where, "q": searched, "before": f"{last.at_ms}.{last.place}"}
        after = urlencode({name: value for name, value in asked.items() if value})
    return GroupsPage(rows[:_ROWS], after, "")


def _searches(text: str) -> list[Term]:
    """Facts in which the text may occur, as it is or in small letters; a term each, any of which may hold. Of an id its
    beginning, and of a group's its end, which is what lists show."""
    terms = [Term(field, "=", f"*{form}*") for field in _SEARCHED for form in dict.fromkeys((text, text.lower()))]
    if _ID.fullmatch(text):
        id_ = text.lower()
        terms += [Term("episode", "=", f"{id_}*"), Term("group", "=", f"{id_}*"), Term("group", "=", f"*{id_}")]
    return terms


def _model(board: Board, ask: ViewQuery) -> dict[str, Any]:
    searched = ask.query.get("q", "").strip()[:_MAX_SEARCHED]
    with board.index() as connection:
        found = find_groups(connection, {**ask.query, "q": searched})
    return {
        "found": found,
        "where": ask.query.get("where", ""),
        "searched": searched,
        "is_first": "before" not in ask.query,
        "usual": _USUAL,
        "fields": FIELDS,
        "progress": board.index_progress,
        "is_filling": board.lacks_episodes,
        "of": f"/groups?{urlencode(ask.query)}",
    }


VIEW = View("groups", "Groups", "episodes/groups.html", _model, is_live=False)
