"""Makes compose/grafana/tracegrad.json: `python -m tests.compose.metrics.dashboard > compose/grafana/tracegrad.json`.

In: the declared metrics. Out: a dashboard for one or several runs, its data source chosen by who opens it. A query says
the names by the declarations, so that none can be misspelt.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from grafana_foundation_sdk.builders.dashboard import Dashboard, DatasourceVariable, QueryVariable, Row
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.builders.timeseries import Panel
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import DataSourceRef, VariableRefresh

from tracegrad.schemas import metrics as m
from tracegrad.schemas.metrics import Counter, Metric

_SOURCE = DataSourceRef(type_val="prometheus", uid="${source}")
_RUN = 'run=~"$run"'


def now(metric: Metric, more: str = "") -> str:
    """Its series of the chosen runs; what a counter grows by in a second."""
    series = f"{metric.exposed}{{{_RUN}{more}}}"
    return f"rate({series}[$__rate_interval])" if isinstance(metric, Counter) else series


def by(metric: Metric, *labels: str, more: str = "") -> str:
    """Summed but for these."""
    return f"sum by ({', '.join(('run', *labels))}) ({now(metric, more)})"


Query = tuple[str, str]
"""An expression, and how its series are called."""
_ENGINE = f'{{job="tracegrad", {_RUN}}}'
ROWS: dict[str, dict[str, Sequence[Query]]] = {
    "What it learns": {
        "Final reward": [(now(m.REWARD), "{{run}}")],
        "What each rule pays a rollout": [(now(m.RULE_REWARD), "{{run}} {{rule}}")],
        "Reward's deviation within groups": [(now(m.REWARD_DEVIATION), "{{run}}")],
        "Entropy (nats a token)": [(now(m.ENTROPY), "{{run}}")],
        "Alarms": [(now(m.ALARMS_HOLDING), "{{run}} {{alarm}}")],
        "Staleness (versions)": [
            (now(m.STALENESS), "{{run}} mean"),
            (now(m.STALENESS_GREATEST), "{{run}} greatest"),
            (now(m.STALENESS_BOUND), "{{run}} bound"),
        ],
    },
    "How it goes on": {
        "Last step": [(now(m.TRAINING_STEP), "{{run}}")],
        "Where the time of a step goes": [(by(m.STEP_SECONDS, "phase"), "{{run}} {{phase}}")],
        "Trained tokens a second": [(by(m.TOKENS_TRAINED), "{{run}}")],
        "Gradient norm": [(now(m.GRADIENT_NORM), "{{run}}")],
        "Clipped tokens, effective sample": [
            (now(m.CLIPPED), "{{run}} clipped"),
            (now(m.EFFECTIVE_SAMPLE), "{{run}} effective"),
        ],
        "Groups a second: trained, excluded": [
            (by(m.GROUPS_TRAINED), "{{run}} trained"),
            (by(m.GROUPS_EXCLUDED, "reason"), "{{run}} {{reason}}"),
        ],
    },
    "What it waits for": {
        "Requests in the engines": [
            (f"sum by (run, process) (vllm:num_requests_running{_ENGINE})", "{{run}} {{process}} run"),
            (f"sum by (run, process) (vllm:num_requests_waiting{_ENGINE})", "{{run}} {{process}} wait"),
        ],
        "Sampled tokens a second": [
            (
                f"sum by (run, process) (rate(vllm:generation_tokens_total{_ENGINE}[$__rate_interval]))",
                "{{run}} {{process}}",
            )
        ],
        "Inputs to come, by stage": [(by(m.LAG, "process"), "{{run}} {{process}}")],
        "Open episodes and groups": [(by(m.OPEN, "process"), "{{run}} {{process}}")],
        "Attempts a second, by outcome": [(by(m.OUTCOMES, "state"), "{{run}} {{state}}")],
        "Calls a second": [(by(m.CALLS), "{{run}} recorded"), (by(m.CALLS_FAILED, "error"), "{{run}} {{error}}")],
    },
    "What goes wrong": {
        "Dead letters a second": [(by(m.DEAD_LETTERS, "process", "reason"), "{{run}} {{process}} {{reason}}")],
        "Restarts": [(f"{m.PROCESS_RESTARTS.exposed}{{{_RUN}}}", "{{run}} {{name}}")],
        "Refused answers of engines": [
            (by(m.GENERATIONS_REFUSED), "{{run}} refused"),
            (by(m.LABELS_REFUSED), "{{run}} wrong label"),
        ],
        "Requests refused": [(by(m.REQUESTS_REFUSED, "process", "status"), "{{run}} {{process}} {{status}}")],
        "Memory of processes (bytes)": [(f"process_resident_memory_bytes{_ENGINE}", "{{run}} {{process}}")],
        "Processor time of processes": [
            (f"rate(process_cpu_seconds_total{_ENGINE}[$__rate_interval])", "{{run}} {{process}}")
        ],
    },
}


def queries() -> list[str]:
    """Every expression of the dashboard."""
    return [query for panels in ROWS.values() for found in panels.values() for query, _ in found]


def _panel(title: str, found: Sequence[Query]) -> Panel:
    panel = Panel().title(title).datasource(_SOURCE).height(8).span(8).fill_opacity(5)
    for number, (query, legend) in enumerate(found):
        panel.with_target(Dataquery().expr(query).legend_format(legend).ref_id(chr(ord("A") + number)))
    return panel


def dashboard_json() -> str:
    """The file's text."""
    made = (
        Dashboard("tracegrad")
        .uid("tracegrad")
        .tags(["tracegrad"])
        .refresh("10s")
        .time("now-3h", "now")
        .timezone("browser")
        .readonly()
        .with_variable(DatasourceVariable("source").label("Prometheus").type("prometheus"))
        .with_variable(
            QueryVariable("run")
            .label("run")
            .datasource(_SOURCE)
            .query(f"label_values({m.PROCESSES_RUNNING.exposed}, run)")
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .multi(True)
            .include_all(True)
        )
    )
    for row, panels in ROWS.items():
        made.with_row(Row(row))
        for title, found in panels.items():
            made.with_panel(_panel(title, found))
    return JSONEncoder(sort_keys=True, indent=1).encode(made.build()) + "\n"


if __name__ == "__main__":
    sys.stdout.write(dashboard_json())
