"""The demo's parts: the calculator example, which the wheel brings too, and its report.

In: a finished run whose broker still answers. Out: the example's TOML file, its warm-started policy beside it; what
every run reports, and besides whether a trained version served, verdict.json in the run's `results/`. Invariant: both
hold only if a version trained in this run was acknowledged and its verdict holds; other runs' ends do not ask, as it
takes minutes. Failure: as of the report.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from tracegrad.schemas.errors import UnavailableError

from ..verify.served_proof import find_proof
from ..verify.verdict import verdict_line, verify_apart
from .report import make_report
from .run_dir import write_record
from .show import Show
from .wiring import Wiring

__all__ = ["CALCULATOR", "check_served", "demo_report"]

CALCULATOR = Path(__file__).resolve().parents[2] / "examples" / "calculator" / "tracegrad.toml"
"""Two up is the checkout, or the installed package: the rooms and the examples lie side by side in both."""


def demo_report(wiring: Wiring, show: Show) -> bool:
    """The report of every run, and the proof of the weights that served; returns whether both hold."""
    is_complete = make_report(wiring, show)
    return check_served(wiring, show) and is_complete


def check_served(wiring: Wiring, show: Show) -> bool:
    """Says and writes the verdict; False when nothing could be shown. Blocking, minutes at most."""
    proof = find_proof(wiring.log(), wiring.topics, wiring.record.hash, wiring.settings.policy.name)
    if isinstance(proof, str):
        show.result("verdict", {"holds": False, "why": proof}, [f"served weights: not shown: {proof}"])
        return False
    show.say(f"recomputing {len(proof.calls)} calls from the published folder, in another process")
    try:
        trainer = wiring.settings.trainer
        verdict = verify_apart(proof, threads=trainer.threads, python=trainer.python)
    except UnavailableError as error:
        show.result("verdict", {"holds": False, "why": str(error)}, [f"served weights: {error}"])
        return False
    write_record(wiring.run_dir.results / "verdict.json", verdict)
    show.result("verdict", msgspec.to_builtins(verdict), [verdict_line(verdict)])
    return verdict.holds
