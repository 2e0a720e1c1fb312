"""The audit of a run that we know the folder of: where it began, who is asking, how it reads to people.

In: a run's wiring. Out: consumers/audit/account.py's Report, and its lines. Failure: UnavailableError.
"""

from __future__ import annotations

from tracegrad.consumers.audit.account import Report, Unit, audit
from tracegrad.schemas.log.protocol import Log

from .wiring import Wiring

__all__ = ["account", "report_lines"]

_NAMED = 20


def account(wiring: Wiring, log: Log, *, is_live: bool) -> Report:
    """The accounting of the run."""
    return audit(
        log,
        wiring.topics,
        wiring.record.hash,
        wiring.settings.policy.name,
        starts=wiring.run_dir.starts,
        is_live=is_live,
    )


def report_lines(report: Report) -> list[str]:
    """For people."""
    lines = [
        _unit_line(name, unit)
        for name, unit in (("calls", report.calls), ("episodes", report.episodes), ("groups", report.groups))
    ]
    if report.expired:
        lines.append(f"not judged where retention has taken records: {', '.join(report.expired)}")
    if report.is_complete:
        return [*lines, "every id is accounted for"]
    lines.append(f"{report.num_missing} not accounted for:")
    lines += [f"  {text}" for text in report.missing[:_NAMED]]
    if report.num_missing > _NAMED:
        lines.append(f"  ... and {report.num_missing - _NAMED} more")
    return lines


def _unit_line(name: str, unit: Unit) -> str:
    terms = " + ".join(f"{count} {term}" for term, count in unit.terms.items())
    return f"{name:9} {unit.total} = {terms or '0'}"
