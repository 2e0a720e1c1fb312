"""The page of the recipes."""

from __future__ import annotations

from pathlib import Path

from tests.reference.algorithms import algorithms_markdown

ROOT = Path(__file__).parents[3]


def test_the_page_is_what_the_records_say() -> None:
    """Else: python -m tests.reference.algorithms > docs/algorithms.md."""
    assert (ROOT / "docs" / "algorithms.md").read_text() == algorithms_markdown()
