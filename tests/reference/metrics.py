"""docs/metrics.md, made of the declarations: `python -m tests.reference.metrics > docs/metrics.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from tracegrad.schemas import metrics
from tracegrad.schemas.metrics import Counter, Metric, MetricOwner

_INTRO = """# Metrics

Generated from `schemas/metrics/` by `python -m tests.reference.metrics`; do not edit.

What each process of a run counts since it started. The name is Prometheus'; `process_status`, `tracegrad status --json`
and the processes' logs have the one in the last column. A label has at most 100 values, of 100 characters; more are
counted as `other`.

## Prometheus and Grafana

From a clone in which runs lie under `runs/`, Prometheus finds each process of each run by itself, and follows it when
it is started again. Elsewhere, copy `compose/prometheus.yml` and `compose/alerts.yml` into a folder beside `runs/`.

```
prometheus --config.file=compose/prometheus.yml --storage.tsdb.path=/tmp/tracegrad-prometheus
curl -u admin:admin -H 'Content-Type: application/json' http://127.0.0.1:3000/api/datasources \\
  -d '{"name": "tracegrad", "type": "prometheus", "url": "http://127.0.0.1:9090", "access": "proxy"}'
jq '{dashboard: ., overwrite: true}' compose/grafana/tracegrad.json |
  curl -u admin:admin -H 'Content-Type: application/json' http://127.0.0.1:3000/api/dashboards/db -d @-
```

Or by hand: a data source of type Prometheus, and Dashboards, Import with `compose/grafana/tracegrad.json`.

- Each process listens on loopback alone, at a free port, which a file under `runs/_metrics/` tells (`file_sd`); so
  Prometheus runs on the same machine, if only as an agent that writes on to another (`--enable-feature=agent`,
  `remote_write`). Whoever is on the machine may read the figures; there is no prompt, no name of a task and no secret
  among them.
- `instance` is `RUN/PROCESS`, not the port, so that a series goes on after a restart; counters begin anew, as `rate`
  expects.
- Engines are on the list with vLLM's own metrics. The broker has none here.
- `compose/alerts.yml` says what each alert asks one to look at; it is tested on the recorded runs of
  [watching.md](watching.md#alarms), a batch a minute.
"""


def by_owner() -> dict[str, list[Metric]]:
    """Who counts -> what, in the order of their declaration."""
    found: dict[str, list[Metric]] = {}
    for value in vars(metrics).values():
        if isinstance(value, MetricOwner):
            own = found.setdefault(value.words, [])
        elif isinstance(value, Metric):
            own.append(value)
    return found


def _rows(own: list[Metric]) -> Iterator[str]:
    yield "| name | kind | labels | what it says | in reports |"
    yield "|---|---|---|---|---|"
    for metric in own:
        kind = "counter" if isinstance(metric, Counter) else "gauge"
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        yield f"| `{metric.exposed}` | {kind} | {labels} | {metric.help} | `{metric.name}` |"


def metrics_markdown() -> str:
    """The text of docs/metrics.md; a test keeps the file equal to it."""
    sections = ("\n".join([f"## {place}", "", *_rows(own)]) for place, own in by_owner().items() if own)
    return "\n\n".join([_INTRO.rstrip(), *sections]) + "\n"


if __name__ == "__main__":
    sys.stdout.write(metrics_markdown())
