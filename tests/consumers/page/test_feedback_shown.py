"""An episode's view tells what was said of it behind its close, and by which id more can be said."""

from __future__ import annotations

from pathlib import Path

from tests.consumers.audit.small_run import memory_log
from tests.consumers.page.looking import board_over, draw, elements_of, episode_of
from tests.streams.assemble.test_feedback import said
from tests.streams.credit.strategies.test_conversations import TURNS, conversation
from tests.streams.credit.test_feedback_window import Run
from tests.streams.make import call_id


def test_what_was_said_behind_its_close_stands_on_the_episode(tmp_path: Path) -> None:
    """Its record knows no reward, and never will. Of two words under one key the last, whenever they were said; of an
    answer which call's; and as text, whatever a person wrote."""
    run = Run()
    run.feed(*conversation(*TURNS))
    run.wait(20)
    before = draw_of(run, tmp_path / "before")
    assert "no reward" in before and "none: no_reward" in before and "captured" in before
    assert "behind its close" not in before
    assert f'send_feedback(response_id="{call_id("d")}"' in before
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
    episode = episode_of(board)
    return draw(board, f"/{view}/{episode.episode_id}")
