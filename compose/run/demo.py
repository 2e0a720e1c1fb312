"""The demo's parts: the calculator example, which the wheel brings too, and its report.

In: a finished run. Out: the example's TOML file, its warm-started policy beside it; what every run reports, and the
proof besides. Failure: as of the report.
"""

from __future__ import annotations

from pathlib import Path

from ..verify.check_served import check_served
from .report import make_report
from .show import Show
from .wiring import Wiring

__all__ = ["CALCULATOR", "demo_report"]

CALCULATOR = Path(__file__).resolve().parents[2] / "examples" / "calculator" / "tracegrad.toml"
"""Two up is the checkout, or the installed package: the rooms and the examples lie side by side in both."""


def demo_report(wiring: Wiring, show: Show) -> bool:
    """The report of every run, and the proof of the weights that served; returns whether both hold."""
    is_complete = make_report(wiring, show)
    return check_served(wiring, show) and is_complete
