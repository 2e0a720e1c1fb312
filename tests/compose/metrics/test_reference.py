"""docs/metrics.md has every metric that is declared, and says of each what the declaration says."""

from __future__ import annotations

from pathlib import Path

from tests.reference.metrics import metrics_markdown

ROOT = Path(__file__).parents[3]


def test_the_page_is_generated_from_the_declarations() -> None:
    """docs/metrics.md: run `python -m tests.reference.metrics > docs/metrics.md`."""
    assert (ROOT / "docs" / "metrics.md").read_text() == metrics_markdown()
