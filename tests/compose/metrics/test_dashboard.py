"""compose/grafana/tracegrad.json is what its maker makes, and each of its queries can be answered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.compose.metrics.dashboard import dashboard_json, queries
from tests.compose.metrics.prometheus import answerable, needs_prometheus, promtool, unknown_names

pytestmark = pytest.mark.slow

FILE = Path(__file__).parents[3] / "compose" / "grafana" / "tracegrad.json"


def expressions(panels: list[dict[str, Any]]) -> list[str]:
    """Of all panels in the file."""
    return [target["expr"] for panel in panels for target in panel.get("targets", [])]


def test_the_file_is_made_by_its_maker() -> None:
    """`python -m tests.compose.metrics.dashboard > compose/grafana/tracegrad.json`."""
    assert FILE.read_text() == dashboard_json()


def test_every_query_names_declared_metrics_alone() -> None:
    """And the file has all of them."""
    assert unknown_names(queries()) == set()
    assert expressions(json.loads(FILE.read_text())["panels"]) == queries()
    assert len(queries()) > 30


def test_panels_lie_side_by_side_and_their_queries_have_names_of_their_own() -> None:
    """None on another, and each with a title."""
    panels = json.loads(FILE.read_text())["panels"]
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len(places) and all(panel["title"] for panel in panels)
    for panel in panels:
        ids = [target["refId"] for target in panel.get("targets", [])]
        assert len(set(ids)) == len(ids)


@needs_prometheus
def test_prometheus_can_read_every_query(tmp_path: Path) -> None:
    """As rules."""
    rules = [{"record": f"query:number{number}", "expr": answerable(query)} for number, query in enumerate(queries())]
    file = tmp_path / "rules.json"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = promtool("check", "rules", file)
    assert done.returncode == 0 and f"{len(rules)} rules found" in done.stdout, done.stdout + done.stderr
