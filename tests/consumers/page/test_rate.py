"""Scores given on an episode's view: who may, what becomes of them, and when they come too late."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.consumers.audit.rated_run import rated_run
from tests.consumers.audit.small_run import long_run, memory_log
from tests.consumers.page.boards import PORT, browser
from tests.consumers.page.looking import board_over, draw, elements_of, episode_of
from tests.streams.assemble.test_feedback import said
from tests.streams.credit.strategies.test_conversations import TURNS, conversation
from tests.streams.credit.test_feedback_window import Run
from tests.streams.make import call_id
from tracegrad.consumers.page.board import Board, Rater, Rating
from tracegrad.consumers.page.episodes.rate import form_of, rate
from tracegrad.schemas.errors import RequestError, UnavailableError
from tracegrad.schemas.records.episodes import Episode

KEY = "0" * 32
FIELDS = {"what": "answer", "name": "thumb", "value": "1", "reason": "good", "key": KEY}
OWN = {"origin": f"http://127.0.0.1:{PORT}", "sec-fetch-site": "same-origin"}


class Gateway:
    """What the page hands on, and what it is told."""

    def __init__(self, error: Exception | None = None) -> None:
        self.taken: list[Rating] = []
        self.pieces: Sequence[Mapping[str, Any]] = ()
        self.untold: Exception | None = None
        """Why it tells nothing of a key."""
        self._error = error

    def send(self, rating: Rating) -> None:
        """Takes it, or does not."""
        if self._error is not None:
            raise self._error
        self.taken.append(rating)

    def rater(self, *, is_trained_on: bool = True) -> Rater:
        """Of a run."""
        return Rater({"thumb": (0.0, 1.0), "use": (0.0, 1.0)}, is_trained_on, 60.0, self.send, self.receipts)

    def receipts(self, key: str) -> Sequence[Mapping[str, Any]]:
        """What became of it."""
        if self.untold is not None:
            raise self.untold
        return self.pieces


def live(board: Board, gateway: Gateway | None) -> Board:
    """As if it ran."""
    board.about = msgspec.structs.replace(board.about, is_live=True)
    board.rater = gateway.rater() if gateway is not None else None
    return board


@pytest.fixture
def captured(tmp_path: Path) -> Board:
    """Of a run with one conversation of an agent that no runner started."""
    return board_over(memory_log(rated_run()), tmp_path)


@pytest.fixture
def gateway(captured: Board) -> Gateway:
    """Of that run, which goes on."""
    made = Gateway()
    live(captured, made)
    return made


@pytest.mark.parametrize("what", ["answer", "conversation"])
def test_a_score_is_a_piece_of_feedback_on_what_was_chosen(captured: Board, what: str, gateway: Gateway) -> None:
    """On the last answer by its id, on the conversation by its key."""
    episode, _ = episode_of(captured)
    assert rate(captured, episode.episode_id, {**FIELDS, "what": what}) == KEY
    field, id_ = ("response_id", episode.calls[-1].call_id) if what == "answer" else ("trace_id", episode.conversation)
    assert gateway.taken == [({field: id_}, "thumb", 1.0, "good", KEY)]


@pytest.mark.parametrize(
    "changed",
    [{"what": "x"}, {"name": "x"}, {"value": "2"}, {"value": "nan"}, {"value": ""}, {"value": "1e999"}, {"key": "k"}],
    ids=str,
)
def test_a_form_that_is_wrong_is_refused_with_what_is(
    captured: Board, changed: dict[str, str], gateway: Gateway
) -> None:
    """Nothing is sent."""
    episode, _ = episode_of(captured)
    with pytest.raises(RequestError, match="expected"):
        rate(captured, episode.episode_id, {**FIELDS, **changed})
    with pytest.raises(RequestError, match="expected"):
        rate(captured, episode.episode_id, {})
    assert gateway.taken == []


def test_the_form_says_until_when_a_score_counts(captured: Board, gateway: Gateway) -> None:
    """By the episode's close; in a run that trains on none it never does."""
    board = captured
    episode, closed_ms = episode_of(board)
    early, late = (form_of(board, episode, closed_ms, now_ms=closed_ms + wait) for wait in (10_000, 61_000))
    assert early.can_count and "50 s from now" in early.words
    assert not late.can_count and late.words.startswith("Too late") and "counts nowhere" in late.words
    board.rater = gateway.rater(is_trained_on=False)
    never = form_of(board, episode, closed_ms, now_ms=closed_ms)
    assert not never.can_count and "[select] train" in never.words


def test_there_is_no_form_where_nothing_can_count(captured: Board, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A run that has ended, one without feedback, a runner's attempt; whoever posts all the same is refused."""
    episode, closed_ms = episode_of(captured)
    assert "has ended" in form_of(captured, episode, closed_ms).why_not
    assert "takes no feedback" in form_of(live(captured, None), episode, closed_ms).why_not
    folder = tmp_path_factory.mktemp("graded")
    board = live(board_over(memory_log(long_run(folder)), folder), Gateway())
    attempt, closed_ms = episode_of(board)
    assert "grader" in form_of(board, attempt, closed_ms).why_not
    with pytest.raises(RequestError, match="grader") as told:
        rate(board, attempt.episode_id, FIELDS)
    assert told.value.status == 409
    html = draw(board, f"/episode/{attempt.episode_id}")
    assert "<form" not in html and "grader" in html


def piece(episode: Episode, what: str = "answer", **fields: Any) -> dict[str, Any]:
    """Of a receipt, as the gateway has it."""
    target = episode.calls[-1].call_id if what == "answer" else None
    told = {"name": "thumb", "value": 1.0, "state": "accepted", "target": target, "conversation": episode.conversation}
    return {**told, **fields}


@pytest.mark.parametrize("state", ["accepted", "waiting", "joined", "late", "refused", "not_counted", "new"])
def test_what_became_of_a_score_is_told(captured: Board, state: str, gateway: Gateway) -> None:
    """In words, with the time until which more may be said; and the form then changes that score."""
    episode, _ = episode_of(captured)
    gateway.pieces = [piece(episode, state=state, open_until_ms=1_000, reason="<b>full</b>")]
    html = draw(captured, f"/episode/{episode.episode_id}?rated={KEY}")
    _, text = elements_of(html)
    assert "Your score: thumb 1.0: " in text and "1970-01-01 00:00:01" in text and f'value="{KEY}"' in html
    assert "<b>" not in html and "Change it" in text


@pytest.mark.parametrize("what", ["answer", "conversation"])
def test_a_score_is_changed_where_it_was_given(captured: Board, what: str, gateway: Gateway) -> None:
    """A piece of feedback is a key and what it is about: of something else the form would add a second one."""
    episode, closed_ms = episode_of(captured)
    gateway.pieces = [piece(episode, what, name="use")]
    form = form_of(captured, episode, closed_ms, KEY)
    assert (form.key, list(form.what), form.name) == (KEY, [what], "use")
    html = draw(captured, f"/episode/{episode.episode_id}?rated={KEY}")
    assert html.count(f'<option value="{what}">') == 1 and '<option value="use" selected>' in html
    assert f'<option value="{"answer" if what == "conversation" else "conversation"}">' not in html


def test_a_key_without_a_score_of_the_episode_is_said_to_be_none(captured: Board, gateway: Gateway) -> None:
    """Whether nothing was given by it, or something elsewhere; the form gives a new one."""
    episode, closed_ms = episode_of(captured)
    link = f"/episode/{episode.episode_id}?rated={KEY}"
    for gateway.pieces in ([], [piece(episode, target="call", conversation="another")]):
        form = form_of(captured, episode, closed_ms, KEY)
        assert form.told.startswith("No such score") and form.key != KEY and len(form.what) == 2
        _, text = elements_of(draw(captured, link))
        assert "taken" not in text and "Give it" in text and "Look again" not in text


def test_what_the_gateway_does_not_tell_yet_is_not_changed(captured: Board, gateway: Gateway) -> None:
    """What it is about is not known then; to look again is offered."""
    episode, _ = episode_of(captured)
    gateway.untold = UnavailableError("away")
    html = draw(captured, f"/episode/{episode.episode_id}?rated={KEY}")
    assert "is not known yet: away" in html and f"?rated={KEY}" in html and "<form" not in html


async def test_the_form_is_answered_with_the_episode(captured: Board, gateway: Gateway) -> None:
    """By a redirect, so that to look again sends nothing again."""
    episode, _ = episode_of(captured)
    async with browser(captured) as client:
        answer = await client.post(f"/rate/{episode.episode_id}", data=FIELDS, headers=OWN)
        assert answer.status_code == 303
        assert answer.headers["location"] == f"/episode/{episode.episode_id}?rated={KEY}"
        assert len(gateway.taken) == 1
        wrong = await client.post(f"/rate/{episode.episode_id}", data={**FIELDS, "value": "7"}, headers=OWN)
        assert wrong.status_code == 400 and "expected a number in [0, 1]" in wrong.text
        assert (await client.post("/rate/none", data=FIELDS, headers=OWN)).status_code == 404
        large = await client.post(f"/rate/{episode.episode_id}", data={"reason": "a" * 20_000}, headers=OWN)
        assert large.status_code == 413
        odd = await client.post(f"/rate/{episode.episode_id}", content=b"\xff\xfe=", headers=OWN)
        assert odd.status_code == 400 and len(gateway.taken) == 1


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "null"},
        {"origin": "http://evil.example"},
        {**OWN, "sec-fetch-site": "cross-site"},
        {**OWN, "host": "evil.example"},
    ],
    ids=str,
)
async def test_another_site_gives_no_score(captured: Board, headers: dict[str, str], gateway: Gateway) -> None:
    """Whatever cookie it has; one that names no Origin is taken for another."""
    episode, _ = episode_of(captured)
    async with browser(captured) as client:
        assert (await client.post(f"/rate/{episode.episode_id}", data=FIELDS, headers=headers)).status_code == 403
    async with browser(captured, is_let_in=False) as client:
        assert (await client.post(f"/rate/{episode.episode_id}", data=FIELDS, headers=OWN)).status_code == 403
    assert gateway.taken == []


async def test_a_gateway_that_is_away_is_told(captured: Board) -> None:
    """503, and nothing is lost: the form can be sent again."""
    episode, _ = episode_of(live(captured, Gateway(UnavailableError("away"))))
    async with browser(captured) as client:
        answer = await client.post(f"/rate/{episode.episode_id}", data=FIELDS, headers=OWN)
        assert answer.status_code == 503 and "away" in answer.text


def test_what_was_said_behind_its_close_stands_on_the_episode(tmp_path: Path) -> None:
    """Its record knows no reward, and never will. Of two words under one key the last, whenever they were said; of an
    answer which call's; and as text, whatever a person wrote."""
    run = Run()
    run.feed(*conversation(*TURNS))
    run.wait(20)
    before = draw_of(run, tmp_path / "before")
    assert "no reward" in before and "none: no_reward" in before and "captured" in before
    assert "behind its close" not in before
    run.feed(said(0.0, "anna", at_ms=9, name="thumb", reason="<b>wrong"), said(1.0, "anna", at_ms=5, name="thumb"))
    run.feed(said(0.5, "ben", at_ms=7, name="stars", target=call_id("b")))
    run.wait(100)
    after = draw_of(run, tmp_path / "after")
    assert "no reward" not in after and "none: no_reward" not in after
    assert '<span class="reward bad">thumb 0</span>' in after and '<span class="reward good">stars 0.5</span>' in after
    assert "<q>&lt;b&gt;wrong</q>" in after and "<b>wrong" not in after
    _, group = elements_of(draw_of(run, tmp_path / "group", "group"))
    assert "A conversation, captured, trained by" not in group and "A conversation, captured" in group
    assert "thumb 0" in group and "stars 0.5" in group and "no reward" not in group
    _, text = elements_of(after)
    assert "stars 0.5 of call 2 by feedback, behind its close" in " ".join(text.split())


def draw_of(run: Run, folder: Path, view: str = "episode") -> str:
    """Its episode's, or its group's, which are of one id."""
    board = board_over(memory_log(run.streams), folder)
    episode, _ = episode_of(board)
    return draw(board, f"/{view}/{episode.episode_id}")
