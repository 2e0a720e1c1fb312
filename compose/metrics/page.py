"""docs/metrics.md, made of the declarations: `python -m tracegrad.compose.metrics.page > docs/metrics.md`."""

from __future__ import annotations

from collections.abc import Iterator

from tracegrad.schemas.metrics import Counter, Metric, by_place

__all__ = ["metrics_markdown"]

_INTRO = """# Metrics

Generated from `schemas/metrics/` by `python -m tracegrad.compose.metrics.page`; do not edit.

What each process of a run counts since it started. The name is Prometheus'; `process_status`, `tracegrad status --json`
and the processes' logs have the one in the last column. A label has at most 100 values, of 100 characters; more are
counted as `other`.
"""


def _rows(metrics: list[Metric]) -> Iterator[str]:
    yield "| name | kind | labels | what it says | in reports |"
    yield "|---|---|---|---|---|"
    for metric in metrics:
        kind = "counter" if isinstance(metric, Counter) else "gauge"
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        yield f"| `{metric.exposed}` | {kind} | {labels} | {metric.help} | `{metric.name}` |"


def metrics_markdown() -> str:
    """The text of docs/metrics.md; a test keeps the file equal to it."""
    sections = ("\n".join([f"## {place}", "", *_rows(metrics)]) for place, metrics in by_place().items() if metrics)
    return "\n\n".join([_INTRO.rstrip(), *sections]) + "\n"


if __name__ == "__main__":
    import sys

    sys.stdout.write(metrics_markdown())
