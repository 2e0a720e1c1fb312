"""What `rollout_events` say of each rollout: how runner and tasks write them, and the fold that both rest on after a
restart.

In: events in the order of their partition. Out: a History of each rollout that is asked for. Invariant: the first
`started` of an attempt number owns it; the first end of an attempt is its end; once final, always final, and no later
`started` owns anything. Failure: none; odd events are ignored. Memory: of a rollout that is final, all its attempts
ended, only that is kept, as long as its group is in the works (`Members`); it must be known, for the request may be
delivered again, or read after its final event, and must not run again.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, field

from tracegrad.schemas.ids import run_hash_of
from tracegrad.schemas.records.calls import Purpose
from tracegrad.schemas.records.rollouts import (
    MAX_GATEWAYS,
    GroupRef,
    Limits,
    RolloutEvent,
    RolloutRequest,
    RolloutState,
)
from tracegrad.schemas.text import clean

_MAX_ERROR_CHARS = 2000


class Members:
    """Which members of which groups, of one run and purpose: small enough to be kept for a whole run. Not thread-safe.

    Groups are numbered from 0 without gaps, and complete about in that order, so those below the first incomplete one
    need not be kept: memory follows the groups in the works, not the run.
    """

    def __init__(self) -> None:
        self._num_dropped = 0
        """Groups 0 .. this - 1 are complete."""
        self._later: dict[int, set[int] | None] = {}
        """Index of a group -> its members; None: all of them."""

    def add_member(self, group: GroupRef) -> bool:
        """Adds the member that `group` names. False: it was there."""
        if group in self:
            return False
        members = self._later.setdefault(group.index, set())
        assert members is not None
        members.add(group.member)
        if len(members) == group.size:
            self._later[group.index] = None
        while self._later.get(self._num_dropped, ()) is None:
            del self._later[self._num_dropped]
            self._num_dropped += 1
        return True

    def __contains__(self, group: GroupRef) -> bool:
        return self._has(group.index, group.member)

    def _has(self, index: int, member: int) -> bool:
        if 0 <= index < self._num_dropped:
            return True
        members = self._later.get(index, ())
        return members is None or member in members

    @property
    def num_groups(self) -> int:
        """Groups of which any member was added."""
        return self._num_dropped + len(self._later)

    @property
    def num_complete(self) -> int:
        """Groups of which every member was added."""
        return self._num_dropped + sum(members is None for members in self._later.values())

    def missing(self, index: int, size: int) -> list[int]:
        """Those of members 0 .. size - 1 of a group that were not added."""
        return [member for member in range(size) if not self._has(index, member)]

    def incomplete(self) -> list[int]:
        """Groups of which some members were added, and not all."""
        return [index for index, members in self._later.items() if members is not None]


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
    num_replaced: int = 0
    """Attempts that were aborted since the LLM gateway's process was another one by then."""

    @property
    def next_number(self) -> int:
        """The number of the next attempt."""
        return max(self.owners, default=-1) + 1

    def max_attempts(self, limits: Limits, *, is_replaced: bool = False) -> int:
        """How many attempts the rollout may have: those of its limits, and one for each that the gateway's end aborted,
        within a bound; `is_replaced`: such a one more."""
        return max(limits.max_attempts, 1) + min(self.num_replaced + is_replaced, MAX_GATEWAYS)

    @property
    def open_attempts(self) -> tuple[tuple[int, str], ...]:
        """(number, attempt) of those that were started and have not ended. Each needs an end, or its episode never
        closes."""
        return tuple((number, attempt) for attempt, number in self.started.items() if attempt not in self.ended)

    def fold(self, event: RolloutEvent) -> bool:
        """Takes the next event of this rollout. False: it says nothing new."""
        if event.state is RolloutState.STARTED and event.attempt_id not in self.started:
            if not self.is_final:
                self.owners.setdefault(event.attempt_number, event.attempt_id)
            self.started[event.attempt_id] = event.attempt_number
        elif event.state.is_end and event.attempt_id not in self.ended:
            self.ended[event.attempt_id] = event.state
            self.error = event.error
            self.num_replaced += event.gateway_replaced
            self.is_final = self.is_final or event.is_final
        else:
            return False
        return True


class Histories:
    """The rollouts of one run. Not thread-safe."""

    def __init__(self, run_hash: str) -> None:
        self._run_hash = run_hash
        self._rollouts: dict[str, History] = {}
        """Those that are not final, or of which an attempt is open."""
        self._final: defaultdict[Purpose, Members] = defaultdict(Members)

    def fold(self, event: RolloutEvent) -> bool:
        """Takes the next event. False: of another run, or nothing new; what was said of a rollout that is over is
        forgotten, so that it may seem new once more."""
        rollout = event.rollout_id
        if run_hash_of(rollout) != self._run_hash:
            return False
        final = self._final[event.purpose]
        history = self._rollouts.get(rollout) or History(is_final=event.group in final)
        is_news = history.fold(event)
        self._rollouts[rollout] = history
        if history.is_final:
            final.add_member(event.group)
            if not history.open_attempts:
                del self._rollouts[rollout]
        return is_news

    def of(self, request: RolloutRequest) -> History:
        """The history of a rollout: empty when nothing was heard of it, and but for `is_final` when it is over."""
        known = self._rollouts.get(request.rollout_id)
        return known or History(is_final=request.group in self._final[request.purpose])


def event_of(
    request: RolloutRequest,
    attempt: str,
    number: int,
    state: RolloutState,
    *,
    is_final: bool = False,
    error: str | None = None,
) -> RolloutEvent:
    """An event that repeats what later stages need of the request."""
    return RolloutEvent(
        rollout_id=request.rollout_id,
        attempt_id=attempt,
        attempt_number=number,
        state=state,
        is_final=is_final,
        error=clean(error[:_MAX_ERROR_CHARS]) if error else None,
        rewards_awaited=request.rewards_awaited,
        group=request.group,
        task_id=request.task_id,
        policy=request.policy,
        purpose=request.purpose,
        at_ms=int(time.time() * 1000),
    )
