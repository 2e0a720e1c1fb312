"""`tracegrad recipes` and the page that is made of the same."""

from __future__ import annotations

from pathlib import Path

import msgspec
from typer.testing import CliRunner

from tests.reference.algorithms import algorithms_markdown
from tracegrad.compose.cli import app
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.trainer.algorithm.recipes import RECIPES

ROOT = Path(__file__).parents[3]


def test_the_page_is_what_the_records_say() -> None:
    """Else: python -m tests.reference.algorithms > docs/algorithms.md."""
    assert (ROOT / "docs" / "algorithms.md").read_text() == algorithms_markdown()


def test_all_recipes_are_listed() -> None:
    """A line each; as JSON with every axis."""
    runner = CliRunner()
    assert [line.split()[0] for line in runner.invoke(app, ["recipes"]).output.splitlines()] == list(RECIPES)
    lines = [msgspec.json.decode(line) for line in runner.invoke(app, ["recipes", "--json"]).output.splitlines()]
    assert {line["name"]: line["recipe"]["surrogate"] for line in lines}["cispo"] == "cispo"


def test_one_recipe_is_told_in_full() -> None:
    """Axes, what it needs, formula, source."""
    output = CliRunner().invoke(app, ["recipes", "grpo"]).output
    for told in ('"scale": "std"', '"beta": 0.04', 'needs     ["all_rows", "reference"]', "arXiv:2402.03300"):
        assert told in output


def test_a_name_that_is_none_gets_the_nearest() -> None:
    """As in the settings."""
    result = CliRunner().invoke(app, ["recipes", "gropo"])
    assert isinstance(result.exception, ConfigurationError)
    assert "did you mean 'grpo'" in str(result.exception)
