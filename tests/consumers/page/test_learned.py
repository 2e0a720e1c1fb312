"""One held-out task before and after: which one is chosen, and that the ends are the ends."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec
import pytest

from tests.consumers.page.looking import draw, elements_of, long_board
from tracegrad.consumers.page.board import Board, ViewQuery
from tracegrad.consumers.page.episodes.learned import LearnedTask, learned_of, tasks_of
from tracegrad.schemas.errors import RequestError

_TRIES = {
    "always-lost": (0.0, 0.0, 0.0),
    "lost-again": (1.0, 1.0, 0.0),
    "won-late": (0.0, 0.0, 1.0),
    "won-early": (0.0, 1.0, 1.0),
    "unscored": (None, None, 1.0),
}


def learned(board: Board, query: Mapping[str, str] = MappingProxyType({})) -> LearnedTask:
    """Of a run that held tasks out."""
    found = learned_of(board, ViewQuery(query=query))
    assert found is not None
    return found


@pytest.fixture
def board(tmp_path: Path) -> Board:
    """Of a small run whose held-out attempts are then these."""
    board = long_board(tmp_path)
    with board.index() as connection:
        row = connection.execute(
            "SELECT n FROM episodes WHERE purpose = (SELECT n FROM words WHERE field = 'purpose' AND word = "
            "'validation') LIMIT 1"
        ).fetchone()
        (template,) = row
        columns = [name for _, name, *_ in connection.execute("PRAGMA table_info(episodes)") if name not in ("n", "id")]
        listed = ", ".join(f'"{name}"' for name in columns)
        number = 0
        for task, rewards in _TRIES.items():
            connection.execute("INSERT OR IGNORE INTO words(field, word) VALUES('task', ?)", (task,))
            for place, reward in enumerate(rewards):
                number += 1
                connection.execute(
                    f"INSERT INTO episodes(id, {listed}) SELECT ?, {listed} FROM episodes WHERE n = ?",
                    (f"{number:032x}", template),
                )
                connection.execute(
                    "UPDATE episodes SET task = (SELECT n FROM words WHERE field = 'task' AND word = ?), reward = ?, "
                    "at_ms = ?, version = ? WHERE id = ?",
                    (task, reward, 1_000 * (place + 1), place, f"{number:032x}"),
                )
        connection.execute("DELETE FROM episodes WHERE n = ?", (template,))
        connection.execute(
            "DELETE FROM episodes WHERE purpose = (SELECT purpose FROM episodes WHERE id = ?) AND at_ms > 9000",
            (f"{1:032x}",),
        )
    return board


def test_the_task_that_shows_most_comes_first(board: Board) -> None:
    """Lost and then won, with more wins between; one that was lost again comes last, one without a reward is no
    gain."""
    with board.index() as connection:
        order = [one.task for one in tasks_of(connection)]
    assert order[:2] == ["won-early", "won-late"]
    assert order[-1] == "lost-again"
    assert set(order) == set(_TRIES)


def test_the_ends_are_the_first_attempt_and_the_last(board: Board) -> None:
    """Of a task that is asked for too, whatever came of it: nothing is picked."""
    found = learned(board, {"task": "lost-again"})
    assert found.last is not None
    assert (found.first.facts["reward"], found.last.facts["reward"]) == (1.0, 0.0)
    assert (found.first.facts["version"], found.last.facts["version"]) == (0, 2)
    assert found.changes[0] == "reward 1 -> 0"
    assert [one.reward for one in found.task.tries] == [1.0, 1.0, 0.0]
    assert found.versions == [(1, 1, 0.25), (2, 2, 0.5)]
    html = draw(board, "/learned?task=lost-again")
    assert '<td><a href="/groups?where=step%3D2">2</a></td><td>2</td><td>0.500</td>' in html


def test_all_tasks_are_counted_before_and_after(board: Board) -> None:
    """By the best reward that any got; those without one are not won."""
    found = learned(board)
    assert (found.before.num_won, found.after.num_won, found.before.num) == (1, 3, 5)


def test_a_task_that_was_never_held_out_says_so(board: Board) -> None:
    """404, and what to do."""
    with pytest.raises(RequestError) as told:
        draw(board, "/learned?task=none-of-these")
    assert told.value.status == 404


def test_the_view_stands_without_the_records(board: Board) -> None:
    """They may be gone from the log; the index still knows what came of them."""
    _, text = elements_of(draw(board, "/learned?task=won-late"))
    assert "Its record is gone from the log." in text and "Version 2" in text


def test_a_run_that_held_nothing_out_yet_says_what_would_show(board: Board) -> None:
    """Nothing is an error in a run that has just begun."""
    with board.index() as connection:
        connection.execute("DELETE FROM episodes")
    assert learned_of(board, ViewQuery()) is None
    board.is_indexed = True
    assert "No held-out task has ended." in draw(board, "/learned")


def test_a_replay_shows_no_attempts_of_the_run_that_it_repeats(board: Board) -> None:
    """They were its source's policy's, in whatever order they came; that run's page is named."""
    assert "won-late" in draw(board, "/learned")
    board.about = msgspec.structs.replace(board.about, replays="runs/first")
    for view in ("/learned", "/learned?task=won-late"):
        _, text = elements_of(draw(board, view))
        assert "tracegrad page runs/first" in text
        assert "won-late" not in text
    assert learned_of(board, ViewQuery()) is None


def test_a_run_whose_episodes_are_not_read_yet_says_that(board: Board) -> None:
    """And not that there are none; likewise where groups are looked for."""
    with board.index() as connection:
        connection.execute("DELETE FROM episodes")
    for of in ("/learned", "/groups"):
        html = draw(board, of)
        assert "are being read" in html and "No held-out" not in html and "No group" not in html


def test_real_attempts_are_shown_side_by_side(tmp_path: Path) -> None:
    """With their words, from their records."""
    html = draw(long_board(tmp_path), "/learned")
    assert "w1 w2" in elements_of(html)[1]
