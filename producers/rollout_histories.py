"""What `rollout_events` say of each rollout: the fold that runner and tasks rest on after a restart.

In: events in the order of their partition. Out: a History of each rollout that is asked for. Invariant: the first
`started` of an attempt number owns it; the first end of an attempt is its end; once final, always final, and no later
`started` owns anything. Failure: none; odd events are ignored. Memory: of a rollout that is final, all its attempts
ended, only that is kept, as long as its group is in the works (`Members`); it must be known, for the request may be
delivered again, or read after its final event, and must not run again.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from tracegrad.schemas.ids import run_hash_of
from tracegrad.schemas.records.calls import Purpose
from tracegrad.schemas.records.rollouts import RolloutEvent, RolloutRequest, RolloutState

from .members import Members

__all__ = ["Histories", "History"]


@dataclass
class History:
    """One rollout so far."""

    owners: dict[int, str] = field(default_factory=dict)
    """Attempt number -> the attempt that owns it."""
    started: dict[str, int] = field(default_factory=dict)
    """Attempt -> its number; also the ones that were not first."""
    ended: dict[str, RolloutState] = field(default_factory=dict)
    """Attempt -> how it ended."""
    is_final: bool = False
    """No further attempt follows."""
    error: str | None = None
    """Of the last end."""

    @property
    def next_number(self) -> int:
        """The number of the next attempt."""
        return max(self.owners, default=-1) + 1

    @property
    def open_attempts(self) -> tuple[tuple[int, str], ...]:
        """(number, attempt) of those that were started and have not ended. Each needs an end, or its episode never
        closes."""
        return tuple((number, attempt) for attempt, number in self.started.items() if attempt not in self.ended)

    def fold(self, event: RolloutEvent) -> None:
        """Takes the next event of this rollout."""
        if event.state is RolloutState.STARTED:
            if not self.is_final:
                self.owners.setdefault(event.attempt_number, event.attempt_id)
            self.started.setdefault(event.attempt_id, event.attempt_number)
        elif event.state.is_end and event.attempt_id not in self.ended:
            self.ended[event.attempt_id] = event.state
            self.error = event.error
            self.is_final = self.is_final or event.is_final


class Histories:
    """The rollouts of one run. Not thread-safe."""

    def __init__(self, run_hash: str) -> None:
        self._run_hash = run_hash
        self._rollouts: dict[str, History] = {}
        """Those that are not final, or of which an attempt is open."""
        self._final: defaultdict[Purpose, Members] = defaultdict(Members)

    def fold(self, event: RolloutEvent) -> bool:
        """Takes the next event. False: of another run."""
        rollout = event.rollout_id
        if run_hash_of(rollout) != self._run_hash:
            return False
        final = self._final[event.purpose]
        history = self._rollouts.get(rollout) or History(is_final=event.group in final)
        history.fold(event)
        self._rollouts[rollout] = history
        if history.is_final:
            final.add(event.group)
            if not history.open_attempts:
                del self._rollouts[rollout]
        return True

    def of(self, request: RolloutRequest) -> History:
        """The history of a rollout: empty when nothing was heard of it, and but for `is_final` when it is over."""
        known = self._rollouts.get(request.rollout_id)
        return known or History(is_final=request.group in self._final[request.purpose])

    @property
    def num_kept(self) -> int:
        """Rollouts whose history takes memory."""
        return len(self._rollouts)
