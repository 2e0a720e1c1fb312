"""The audit of a run that we know the folder of: where it began, who is asking, how it reads to people.

In: a run's wiring. Out: consumers/audit.py's Report, and its lines. Failure: UnavailableError.
"""

from __future__ import annotations

import msgspec

from tracegrad.consumers.audit import Report, Unit, audit
from tracegrad.schemas.log import Log, TopicPartition

from .run_dir import RunDir
from .wiring import Wiring

__all__ = ["account", "read_starts", "report_lines", "write_starts"]

_NAMED = 20


def write_starts(run_dir: RunDir, starts: dict[TopicPartition, int]) -> None:
    """Keeps where a new run began on the raw topics; once."""
    if starts:
        rows = [(where.topic, where.partition, offset) for where, offset in sorted(starts.items())]
        (run_dir.path / "starts.json").write_bytes(msgspec.json.encode(rows))


def read_starts(run_dir: RunDir) -> dict[TopicPartition, int]:
    """Where the run began; empty when that is not known, which means everywhere at the beginning."""
    try:
        rows = msgspec.json.decode((run_dir.path / "starts.json").read_bytes(), type=list[tuple[str, int, int]])
    except (FileNotFoundError, msgspec.DecodeError, msgspec.ValidationError):
        return {}
    return {TopicPartition(topic, partition): offset for topic, partition, offset in rows}


def account(wiring: Wiring, log: Log, *, is_live: bool) -> Report:
    """The accounting of the run."""
    return audit(
        log,
        wiring.topics,
        wiring.record.hash,
        wiring.settings.policy.name,
        starts=read_starts(wiring.run_dir),
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
