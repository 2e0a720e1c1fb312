"""The demo's parts: the calculator example, which the wheel brings too, and its report.

In: a finished run whose broker still answers. Out: the example's TOML file, its warm-started policy beside it; what
every run reports, and besides whether sampler and trainer agree. Invariant: it holds only if tokens were compared, for
an engine that serves other weights than their label says gives other logprobs. Failure: as of the report.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from tracegrad.consumers.views.results import Results
from tracegrad.schemas.records.training import LOGPROB_ERROR_BOUND

from .report import make_report
from .show import Show
from .wiring import Wiring

__all__ = ["CALCULATOR", "demo_report", "why_doubtful"]

CALCULATOR = Path(__file__).resolve().parents[2] / "examples" / "calculator" / "tracegrad.toml"
"""Two up is the checkout, or the installed package: the rooms and the examples lie side by side in both."""


def demo_report(wiring: Wiring, show: Show) -> bool:
    """The report of every run; returns whether it holds, and sampler and trainer agree."""
    is_complete = make_report(wiring, show)
    results = msgspec.json.decode((wiring.run_dir.results / "results.json").read_bytes(), type=Results)
    if why := why_doubtful(results):
        show.result("served", {"holds": False, "why": why}, [f"served weights: {why}"])
    return is_complete and not why


def why_doubtful(results: Results) -> str:
    """Why the weights that served may be other ones than their label says; empty: nothing speaks for that. The policy
    is published in float32."""
    if not results.num_checked_tokens:
        return "no token was compared: none was sampled by the version that trained on it"
    if results.logprob_error_max > LOGPROB_ERROR_BOUND:
        return (
            f"sampler and trainer differ by {results.logprob_error_max:.2g} nats, expected {LOGPROB_ERROR_BOUND:g} at "
            "most; the engine serves other weights, or samples otherwise than it reports"
        )
    return ""
