"""Give an episode a score: a form on its view, whose answer goes the way of all feedback.

    POST /rate/EPISODE    what=answer|conversation, name, value, reason, key    ->  303 /episode/EPISODE?rated=KEY

In: the run's ranges, what hands a piece to the run's rewards gateway, an episode, a form. Out: whether a score can
still count, in words; the piece. Invariants: the gateway judges and signs it, as it does everybody's, so that it is
the same record on the same topic; a second click counts once; a form that changes a score is about what that is
about, by the gateway's receipt. Failure: RequestError with the field at fault; UnavailableError.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tracegrad.schemas.errors import RequestError, UnavailableError
from tracegrad.schemas.records.episodes import Episode

from ...index.show import time_text
from ..board import Board, Rater, Rating
from .records import facts_of, read_episodes

_KEY = re.compile(r"[0-9a-f]{32}")
_WHAT = {"answer": "its last answer", "conversation": "the whole conversation"}
_STATES = {
    "accepted": "it is on Kafka; what it is about has not closed",
    "waiting": "it waits for the end of the time in which more may be said, and counts then",
    "joined": "it counted",
    "late": "it came too late, and counts nowhere",
    "not_counted": "it is about a runner's attempt, whose reward is its grader's: it counts nowhere",
    "refused": "a stage could not use it",
}
"""Of a receipt, in words."""


class Form(NamedTuple):
    """The form, or why there is none."""

    why_not: str
    names: Mapping[str, tuple[float, float]]
    can_count: bool
    words: str
    """Whether a score can still count."""
    key: str = ""
    what: Mapping[str, str] = _WHAT
    """What it may be about, in words; of a score to be changed that alone."""
    name: str = ""
    """Chosen at first."""
    told: str = ""
    """What became of the score that was given last; empty: none was."""
    rated: str = ""
    """The key by which more may be told of it later."""


def form_of(board: Board, episode: Episode, closed_ms: int, rated: str = "", *, now_ms: int | None = None) -> Form:
    """For a view. Blocks for a receipt."""
    rater, why_not = board.rater, _why_not(board, episode)
    if rater is None or why_not:
        return Form(why_not, {}, False, "")
    now_ms = now_ms if now_ms is not None else time.time_ns() // 1_000_000
    until_ms = closed_ms + round(1000 * rater.wait_s)
    if not rater.is_trained_on:
        can_count, words = (
            False,
            "Too late: this run does not train on what is rated ([select] train), so its close was the end.",
        )
    elif now_ms <= until_ms:
        can_count, words = (
            True,
            f"A score counts until {time_text(until_ms)} UTC, {(until_ms - now_ms) / 1000:.0f} s from now.",
        )
    else:
        can_count, words = False, f"Too late: a score counted until {time_text(until_ms)} UTC ([feedback] wait_s)."
    if not can_count:
        words += " It is kept on the topic, and counts nowhere."
    form = Form("", rater.names, can_count, words, secrets.token_hex(16))
    return _again(form, rater, episode, rated) if _KEY.fullmatch(rated) else form


def _again(form: Form, rater: Rater, episode: Episode, key: str) -> Form:
    """The form once a score was given by this key."""
    try:
        pieces = [one for one in rater.receipts(key) if _what_of(one, episode)]
    except UnavailableError as error:
        told = f"Your score: what became of it is not known yet: {error}."
        return form._replace(why_not="It can be changed once that is known.", told=told, rated=key)
    if not pieces:
        return form._replace(told="No such score: the rewards gateway has none of this episode by this link.")
    what = _what_of(pieces[0], episode)
    return form._replace(
        key=key, what={what: _WHAT[what]}, name=str(pieces[0].get("name")), told=_told(pieces), rated=key
    )


def _what_of(piece: Mapping[str, Any], episode: Episode) -> str:
    """What a receipt is about; empty: nothing that the form offers here."""
    if piece.get("target") is not None:
        return "answer" if piece["target"] == episode.calls[-1].call_id else ""
    return "conversation" if piece.get("conversation") == episode.conversation else ""


def _why_not(board: Board, episode: Episode) -> str:
    if not board.about.is_live:
        return "The run has ended: nothing that is said of it now can count."
    if episode.rollout_id is not None:
        return "A runner's attempt has its reward from the run's grader; what people say of it does not count."
    if board.rater is None:
        return "This run takes no feedback; [feedback] in its file starts the gateway for it."
    return "" if episode.conversation and episode.calls else "Its record names no conversation, or holds no answer."


def _told(pieces: Sequence[Mapping[str, Any]]) -> str:
    words = []
    for one in pieces:
        state = str(one.get("state"))
        told = f"{one.get('name')} {one.get('value')}: {_STATES.get(state, state)}"
        if isinstance(until := one.get("open_until_ms"), int):
            told += f", at {time_text(until)} UTC"
        words.append(told + (f" ({one['reason']})" if one.get("reason") else ""))
    return f"Your score: {'; '.join(words)}."


def rate(board: Board, id_: str, fields: Mapping[str, str]) -> str:
    """Hands a score on; the idempotency key. Blocks. Raises RequestError, UnavailableError."""
    with board.index() as connection:
        facts = facts_of(connection, id_)
    read = read_episodes(board.needed_log(), board.topics, [facts]).get(id_)
    if read is None:
        raise RequestError(f"the record of episode {id_} is gone from the log, or cannot be read", status=404)
    why_not = _why_not(board, read.episode)
    if board.rater is None or why_not:
        raise RequestError(why_not, status=409)
    board.rater.send(_rating(read.episode, board.rater, fields))
    return fields["key"]


def _rating(episode: Episode, rater: Rater, fields: Mapping[str, str]) -> Rating:
    what, name, key = (fields.get(field, "") for field in ("what", "name", "key"))
    if what not in _WHAT or not _KEY.fullmatch(key):
        raise RequestError("expected the page's own form, got another; open the episode again", param="what")
    if name not in rater.names:
        raise RequestError(f"name: expected one of {', '.join(sorted(rater.names))}, got another", param="name")
    low, high = rater.names[name]
    try:
        value = float(fields.get("value", ""))
    except ValueError:
        value = float("nan")
    if not low <= value <= high:
        raise RequestError(f"value: expected a number in [{low:g}, {high:g}] of {name}, got another", param="value")
    target = (
        {"response_id": episode.calls[-1].call_id} if what == "answer" else {"trace_id": episode.conversation or ""}
    )
    return Rating(target, name, value, fields.get("reason", ""), key)
