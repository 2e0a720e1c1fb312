"""Other runs laid over one: their lines by step beside its own, and the settings that differ."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.consumers.page.boards import RUN
from tests.consumers.page.looking import draw, elements_of
from tests.consumers.page.test_charts import step
from tests.consumers.page.test_kept import read_board
from tracegrad.consumers.page import run
from tracegrad.consumers.page.asked import Beside, Other
from tracegrad.consumers.page.board import Ask, Board
from tracegrad.consumers.page.charts import Charts, charts_of
from tracegrad.consumers.page.kept import keep, read_kept
from tracegrad.consumers.page.overlay import chosen, differences, laid_over, other_of


def board_beside(folder: Path, *others: Other) -> Board:
    """A run with steps 1 and 2 beside these."""
    board = read_board(folder)
    by_name = {one.name: one for one in others}
    board.beside = Beside(lambda: list(by_name), by_name.__getitem__)
    board.about = msgspec.structs.replace(board.about, settings={"run": "small", "trainer": {"lr": 0.1, "steps": 80}})
    return board


def lines(charts: Charts, id_: str) -> dict[str, list[float | None]]:
    """Of one chart, by name."""
    chart = next(chart for chart in charts.charts if chart.id == id_)
    return {one.name: list(one.values) for one in chart.series}


def test_lines_of_others_lie_by_step_on_one_axis() -> None:
    """Each run's values stand at its own steps; the raw ones of others are left out."""
    own = charts_of([step(1), step(2)], [])
    laid = laid_over(own, [Other("b", [step(2), step(3), step(4)])])
    assert laid.steps == [1, 2, 3, 4]
    found = lines(laid, "staleness")
    assert found["mean"][:2] == lines(own, "staleness")["mean"] and found["mean"][2:] == [None, None]
    assert found["b: mean"][0] is None and None not in found["b: mean"][1:]
    assert "b: greatest" not in found
    hues = {one.hue for chart in laid.charts for one in chart.series if one.form == "over"}
    assert hues == {2}


def test_what_is_stacked_shows_the_run_alone() -> None:
    """On its own steps: a sum over another run's would be nobody's."""
    laid = laid_over(charts_of([step(1), step(2)], []), [Other("b", [step(5)])])
    time = next(chart for chart in laid.charts if chart.is_stacked)
    assert time.steps == [1, 2] and all(":" not in one.name for one in time.series)


def test_what_a_page_left_is_a_run_beside(tmp_path: Path) -> None:
    """With the steps that survive, its passes and its settings."""
    kept = read_kept(keep(board_beside(tmp_path), "mark") or b"", RUN)
    assert kept is not None
    kept = msgspec.structs.replace(kept, settings={"policy": {"name": "policy"}})
    other = other_of("b", kept)
    assert [one.step for one in other.steps] == [1, 2] and [one.mean for one in other.passes] == [0.5]


def test_only_what_differs_is_told() -> None:
    """By key, the run's own name apart; a run of which no settings are known differs in nothing."""
    this = {"run": "a", "trainer": {"lr": 0.1, "steps": 80}, "tasks": {}}
    that = {"run": "b", "trainer": {"lr": 0.2, "steps": 80}, "tasks": {}, "new": True}
    assert differences(this, [Other("b", settings=that), Other("c")]) == [
        ("new", "-", ["true", "-"]),
        ("trainer.lr", "0.1", ["0.2", "-"]),
    ]


def test_long_settings_are_cut() -> None:
    """They are for a table."""
    found = differences({"text": "a" * 9_000}, [Other("b", settings={"text": "b"})])
    assert len(found[0].this) < 400 and found[0].those == ["b"]


def test_the_url_says_which_runs_are_laid_over(tmp_path: Path) -> None:
    """At most four, each once; one that is not there is named with the reason, and nothing is looked for."""
    board = board_beside(tmp_path, *(Other(name, [step(1)]) for name in "abcde"))
    assert [one.name for one in chosen("a,b,a,c,d,e", board.beside)] == ["a", "b", "c", "d"]
    (none,) = chosen("../../etc/passwd", board.beside)
    assert not none.steps and "no other run of that name" in none.reason
    found = run.numbers(board, Ask(query={"with": "a,b"}))
    assert {"a: mean", "b: mean"} <= lines(found, "staleness").keys()
    assert run.numbers(board, Ask()) == run.numbers(board, Ask(query={"with": ""}))


@pytest.mark.parametrize("asked", ["", "a", "a,b,c,d"])
def test_the_view_offers_what_may_be_added_or_taken_away(tmp_path: Path, asked: str) -> None:
    """By links, so that a keyboard does it and the URL keeps it."""
    board = board_beside(
        tmp_path,
        Other("a", [step(1)], settings={"trainer": {"lr": 0.2, "steps": 80}}),
        Other("b", reason="no page has left its curves"),
        *(Other(name) for name in "cde"),
    )
    html = draw(board, f"/?with={asked}")
    _, text = elements_of(html)
    if asked == "":
        assert 'href="/?with=a"' in html and "Their settings differ" not in text
    elif asked == "a":
        assert 'href="/?with=a,b"' in html and 'href="/?"' in html
        assert "trainer.lr" in text and "trainer.steps" not in text
    else:
        assert "with=a,b,c,d,e" not in html and 'href="/?with=a,c,d"' in html and "At most 4" in text
        assert "no page has left its curves" in text
