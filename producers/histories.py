"""What `rollout_events` say of each rollout: the fold that runner and tasks rest on after a restart.

In: events in the order of their partition. Out: a History per rollout. Invariant: the first `started` of an attempt
number owns it; the first end of an attempt is its end; once final, always final. Failure: none; odd events are ignored.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tracegrad.schemas.rollouts import RolloutEvent, RolloutState

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
    final: RolloutState | None = None
    """How the rollout ended; None while another attempt may follow."""
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
            self.owners.setdefault(event.attempt_number, event.attempt_id)
            self.started.setdefault(event.attempt_id, event.attempt_number)
        elif event.state.is_end and event.attempt_id not in self.ended:
            self.ended[event.attempt_id] = event.state
            self.error = event.error
            if event.is_final and self.final is None:
                self.final = event.state


class Histories:
    """The rollouts of one run. Not thread-safe."""

    def __init__(self, run_hash: str) -> None:
        self._run_hash = run_hash
        self._rollouts: dict[str, History] = {}

    def fold(self, event: RolloutEvent) -> bool:
        """Takes the next event. False: of another run."""
        if not event.rollout_id.startswith(self._run_hash):
            return False
        self._rollouts.setdefault(event.rollout_id, History()).fold(event)
        return True

    def of(self, rollout: str) -> History:
        """The history of a rollout; empty when nothing was heard of it."""
        return self._rollouts.get(rollout) or History()
