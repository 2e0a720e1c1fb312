"""How far behind the streams are, in time, as their workers' own reports of records read and to come tell.

In: process reports of stream workers, with the reader's clock. Out: seconds by which an episode may come later than
its deadlines say. Invariant: a busy stage that keeps up is not late, however much it always has to read; one that
stands still, or is silent, gets later with the clock. Failure: none; a stage of which nothing was heard is not late.
"""

from __future__ import annotations

from collections import defaultdict, deque

from tracegrad.schemas.metrics import LAG, READY, RECORDS
from tracegrad.schemas.records.process_status import ProcessReport, worker_stage

_SILENT_S = 60.0
"""A worker of which nothing was heard for so long has left its inputs to the others of its stage."""
_MAX_MARKS = 1_000
"""Of one worker that reads and is behind; one every 2 s."""


class _Worker:
    """What one process said since it started."""

    def __init__(self, now_s: float) -> None:
        self.start: tuple[int, int] = (0, 0)
        self.heard_s = now_s
        self.read_until_s = now_s
        """All that was to be read then has been read."""
        self.marks: deque[tuple[float, float]] = deque()
        """(when, how many records it will have read when it has read all that there was then)."""

    def fold(self, report: ProcessReport, now_s: float) -> None:
        """Takes the next report."""
        if self.start != (report.pid, report.since_ms):
            self.start = (report.pid, report.since_ms)
            self.marks.clear()
        self.heard_s = now_s
        num_read, num_to_come = (report.counters.get(metric.name, 0.0) for metric in (RECORDS, LAG))
        if not report.counters.get(READY.name, 1.0):
            return  # it takes partitions over, and does not know yet what there is to read
        while self.marks and self.marks[0][1] <= num_read:
            self.read_until_s = self.marks.popleft()[0]
        if not num_to_come:
            self.read_until_s = now_s
            self.marks.clear()
            return
        goal = num_read + num_to_come
        # Less than before means that partitions went to another worker, which tells of them itself.
        while self.marks and self.marks[-1][1] >= goal:
            self.marks.pop()
        if len(self.marks) < _MAX_MARKS:
            self.marks.append((now_s, goal))


class StreamDelay:
    """Of all stages together. Not thread-safe."""

    def __init__(self) -> None:
        self._stages: defaultdict[str, dict[str, _Worker]] = defaultdict(dict)

    def fold(self, report: ProcessReport, now_s: float) -> None:
        """Takes the next report of any process."""
        if (stage := worker_stage(report.process)) is not None:
            self._stages[stage].setdefault(report.process, _Worker(now_s)).fold(report, now_s)

    def seconds(self, now_s: float) -> float:
        """What is read now may be so old: the stages follow each other, so their delays add up."""
        return sum(_of_stage(list(workers.values()), now_s) for workers in self._stages.values())


def _of_stage(workers: list[_Worker], now_s: float) -> float:
    newest_s = max(worker.heard_s for worker in workers)
    return max(now_s - worker.read_until_s for worker in workers if worker.heard_s >= newest_s - _SILENT_S)
