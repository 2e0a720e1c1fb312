"""Every reason has its row: where it is seen, a sentence, a remedy."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house import FILES, ROOT, name_of, tree_of
from tests.reference.reasons import reasons_markdown
from tracegrad.schemas.reasons import Reason, Row, reason_text, row_of
from tracegrad.schemas.records.calls import CallOutcome
from tracegrad.schemas.records.rollouts import RolloutState

SEEN = {
    "dead letter", "group", "rollout", "call", "step", "episode", "request", "record", "version", "[air] function",
    "new segment",
}  # fmt: skip
OWNER = "schemas/reasons.py"


def literals(path: Path) -> Iterator[str]:
    """The reasons that a file gives as `reason=` by a text, not by the member."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.keyword) and node.arg == "reason":
            value = node.value
            for part in (value.body, value.orelse) if isinstance(value, ast.IfExp) else (value,):
                if isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value.isidentifier():
                    yield f"{name_of(path)}: {part.value}"


def test_the_page_is_generated_from_the_table() -> None:
    """docs/reasons.md: run `python -m tests.reference.reasons > docs/reasons.md`."""
    assert (ROOT / "docs" / "reasons.md").read_text() == reasons_markdown()


@pytest.mark.slow
def test_whatever_gives_a_reason_gives_a_member() -> None:
    """Over all rooms: a word that nobody explains helps nobody."""
    assert [one for path in FILES for one in literals(path)] == []
    assert sum(path.read_text().count("reason=Reason.") for path in FILES) > 20
    assert [word for word in Reason if not row_of(word).seen] == []
    words = (RolloutState.ABORTED, RolloutState.GIVEN_UP, CallOutcome.CLIENT_DISCONNECTED, CallOutcome.SUPERSEDED)
    assert [word for word in words if not row_of(word).seen] == []


@pytest.mark.slow
def test_no_row_is_of_a_reason_that_nothing_gives() -> None:
    """So that nobody looks for what cannot happen."""
    text = "".join(path.read_text() for path in FILES if name_of(path) != OWNER)
    assert [one.value for one in Reason if f"Reason.{one.name}" not in text and f'"{one.value}"' not in text] == []


@pytest.mark.parametrize("reason", Reason)
def test_a_row_says_where_it_is_seen_what_it_means_and_what_to_do(reason: Reason) -> None:
    """In a sentence each; the table in the docs breaks at no bar of theirs."""
    row = row_of(reason)
    assert row.seen and {*row.seen} <= SEEN
    assert re.fullmatch(r"[^|]+\.", row.sentence) and re.fullmatch(r"[A-Z][^|]+[.?]", row.remedy)


def test_a_word_that_nobody_knows_is_shown_as_it_is() -> None:
    """A later release may write it, and a strategy of a user's own."""
    assert row_of("of_mars") == Row((), "of_mars", "")
    assert row_of("stale").sentence == "It was sampled by too old a version."
    assert reason_text("of_mars") == "of_mars"


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("stale", "stale: It was sampled by too old a version"),
        ("unwritable_episodes", "unwritable_episodes: What was made of it is too large for the topic that the reason"),
    ],
)
def test_people_read_a_word_with_its_sentence(word: str, text: str) -> None:
    """Also one that is written with the name of a topic."""
    assert reason_text(word).startswith(text)


def test_a_reason_is_the_same_bytes_as_its_word() -> None:
    """On records, in headers, and as the label of a metric."""
    assert f"{Reason.TOO_LARGE}" == Reason.TOO_LARGE.value == "too_large"
    assert Reason.TOO_LARGE.encode() == b"too_large"
