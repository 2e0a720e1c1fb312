"""Each test that bad_days.py names is there, and has to do with its metric."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.compose.metrics.bad_days import BAD_DAYS, DAYS
from tracegrad.schemas import metrics
from tracegrad.schemas.metrics import Metric

TESTS = Path(__file__).parents[2]
CONSTANTS = {value: name for name, value in vars(metrics).items() if isinstance(value, Metric)}


def function_in(text: str, name: str) -> str:
    """Its source; empty: the file has none of that name."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            return ast.get_source_segment(text, node) or ""
    return ""


@pytest.mark.parametrize("metric", BAD_DAYS, ids=lambda metric: metric.name)
def test_the_test_that_moves_it_is_there(metric: Metric) -> None:
    """And it reads what was counted, by the declaration or by the name in reports."""
    file, _, name = BAD_DAYS[metric].partition("::")
    found = function_in((TESTS / file).read_text(), name)
    assert found, BAD_DAYS[metric]
    assert re.search(rf"\b{CONSTANTS[metric]}\b|\"{metric.name}[\"{{]", found), BAD_DAYS[metric]


def test_a_metric_has_one_bad_day() -> None:
    """So that the list says of each one reason."""
    assert len(BAD_DAYS) == sum(map(len, DAYS.values()))
