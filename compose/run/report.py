"""The end of a training run: what was learnt, whether the weights that served were the trained ones, the accounting.

In: a finished run whose broker still answers. Out: lines for people, results.json, chart.svg and verdict.json in the
run's `results/`, and whether the checks passed. Invariant: True only if a version trained in this run was
acknowledged, calls bear its label, their logprobs recomputed elsewhere match it, and every id is accounted for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from tracegrad.consumers.audit.account import Report
from tracegrad.consumers.views.chart import Panel, Series, draw
from tracegrad.consumers.views.results import HeldOut, Results, collect
from tracegrad.schemas.errors import UnavailableError

from ..verify.recheck_served import Verdict, verify_apart
from ..verify.served_proof import find_proof
from .audit_run import account, report_lines
from .show import Show
from .wiring import Wiring

__all__ = ["chart_of", "make_report"]


def make_report(wiring: Wiring, show: Show) -> bool:
    """Reads, checks, writes and prints; returns whether the checks passed."""
    log = wiring.log()
    settings, folder = wiring.settings, wiring.run_dir.results
    policy = settings.policy.name
    results = collect(
        log, wiring.topics, run=wiring.record.name, policy=policy, num_held_out=_num_held_out(settings.tasks)
    )
    _write(folder / "results.json", results)
    (folder / "chart.svg").write_text(chart_of(results), encoding="utf-8")
    _show_results(results, show)
    is_served = _check_served(wiring, show)
    report = account(wiring, log, is_live=False)
    _write(folder / "audit.json", report)
    _show_accounting(report, show)
    model = _newest_folder(wiring)
    show.result(
        "files",
        {"results": str(folder), "model": model},
        [f"results and chart: {folder}", f"model: {model or 'none was published'}"],
    )
    return is_served and report.is_complete


def _num_held_out(tasks: Any) -> int:
    if tasks is None or tasks.eval_file is None:
        return 0
    with Path(tasks.eval_file).open(encoding="utf-8") as lines:
        return sum(1 for line in lines if line.strip())


def _show_results(results: Results, show: Show) -> None:
    def score(pass_: HeldOut | None) -> str:
        if pass_ is None:
            return "not run"
        if pass_.mean is None:
            return f"none of {pass_.num_tasks} scored"
        unscored = pass_.num_tasks - pass_.num_scored
        tail = f", {unscored} unscored" if unscored else ""
        return f"{pass_.mean:.3f} (95% {pass_.low:.3f} to {pass_.high:.3f}, {pass_.num_scored} tasks{tail})"

    phases = ", ".join(f"{name} {seconds:.1f}" for name, seconds in results.seconds.items())
    last = "-" if results.reward_last_ten is None else f"{results.reward_last_ten:.3f}"
    fields = msgspec.to_builtins(results)
    fields.pop("curves")
    show.result(
        "results",
        fields,
        [
            f"held-out before: {score(results.before)}",
            f"held-out after:  {score(results.after)}",
            f"{results.steps} steps, mean reward of the last ten {last}, staleness mean {results.staleness_mean:.2f} "
            f"max {results.staleness_max}, sampler and trainer differ by at most {results.logprob_error_max:.1e} nats",
            f"seconds: {phases}",
        ],
    )


def _check_served(wiring: Wiring, show: Show) -> bool:
    proof = find_proof(wiring.log(), wiring.topics, wiring.record.hash, wiring.settings.policy.name)
    if isinstance(proof, str):
        show.result("verdict", {"holds": False, "why": proof}, [f"served weights: not shown: {proof}"])
        return False
    show.say(f"recomputing {len(proof.calls)} calls from the published folder, in another process")
    try:
        verdict = verify_apart(proof, wiring.run_dir.results, threads=wiring.settings.trainer.threads)
    except UnavailableError as error:
        show.result("verdict", {"holds": False, "why": str(error)}, [f"served weights: {error}"])
        return False
    _write(wiring.run_dir.results / "verdict.json", verdict)
    show.result("verdict", msgspec.to_builtins(verdict), [_verdict_line(verdict)])
    return verdict.holds


def _verdict_line(verdict: Verdict) -> str:
    if not verdict.holds:
        return f"served weights: {verdict.why}"
    if verdict.num_telling:
        told = (
            f"{verdict.num_telling} of them tell it from version {verdict.previous_version}, all for {verdict.version}"
        )
    elif verdict.num_differing:
        told = (
            f"the {verdict.num_differing} that differ from version {verdict.previous_version} fit {verdict.version} "
            f"better (squared error {verdict.squared_error:.2g} against {verdict.squared_error_previous:.2g})"
        )
    else:
        told = f"version {verdict.previous_version} gives the same"
    return (
        f"served weights: version {verdict.version}, {verdict.num_tokens} tokens of {verdict.num_calls} calls "
        f"recomputed within {verdict.error_max:.1e} nats (rms {verdict.error_rms:.1e}); {told}"
    )


def _show_accounting(report: Report, show: Show) -> None:
    show.result("audit", msgspec.to_builtins(report), report_lines(report))


def _newest_folder(wiring: Wiring) -> str | None:
    found = sorted(
        (path for path in wiring.run_dir.weights.glob("v*-e*") if path.is_dir()),
        key=lambda path: tuple(int(part) for part in path.name[1:].split("-e")),
    )
    return str(found[-1]) if found else None


def chart_of(results: Results) -> str:
    """The run's curves as SVG."""
    steps = results.steps

    def curve(name: str, label: str | None = None) -> Series:
        values = results.curves.get(name, [])
        return Series(name=label or name, points=tuple((float(i), y) for i, y in enumerate(values, start=1)))

    marks = [
        Series(name=f"held-out {name}", points=((x, pass_.mean),), is_marks=True)
        for name, x, pass_ in (("before", 0.0, results.before), ("after", steps + 1.0, results.after))
        if pass_ is not None
    ]
    air = [name for name in results.curves if name.startswith("air:")]
    panels = [
        Panel(title="mean final reward per step", series=(curve("reward", "training"), *marks), greatest=1.0),
        Panel(
            title="tool calls that succeeded",
            series=(curve("tool_success", "share"),),
            greatest=1.0,
        ),
        Panel(title="staleness in versions", series=(curve("staleness", "mean"),)),
    ]
    if air:
        panels.insert(
            2,
            Panel(title="intermediate reward per rollout", series=tuple(curve(name) for name in air), least=None),
        )
    return draw(f"run {results.run}: {steps} steps", panels)


def _write(path: Path, record: msgspec.Struct) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")
