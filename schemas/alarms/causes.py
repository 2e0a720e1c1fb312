"""What went wrong in attempts, as one can mend it: a reason, and of user code the exception's class and its line.

    grader raised RuntimeError at grade.py:9: no key   -> grader_raised, RuntimeError at grade.py:9; example: no key
    the agent never called the policy                  -> no_calls

In: final episodes, in any order. Out: causes with how many attempts had each, of how many; the one that stops a run.
Invariants: a message is never a key, for a grader words every failure anew: one is kept, as the example. A cause stops
a run only if no training can mend it, and only where it is that of every attempt. Failure: none.
"""

from __future__ import annotations

import re

import msgspec

from ..reasons import Reason, row_of
from ..records.calls import Purpose
from ..records.episodes import Episode, why_excluded
from ..records.rollouts import RolloutState

_RAISED = re.compile(r"(grader|agent) raised (\w+(?: at .+?:\d+)?): ?(.*)", re.DOTALL)
"""As the runner's hosts write it (producers/runner/hosted/raised.py)."""
_BY = {"grader": Reason.GRADER_RAISED, "agent": Reason.AGENT_RAISED}
_ENDED = (RolloutState.SUCCEEDED, RolloutState.FAILED, RolloutState.TRUNCATED)
_STOPPING = (Reason.GRADER_RAISED, Reason.AGENT_RAISED, Reason.NO_CALLS)
_OF_THE_MODEL = re.compile("Turns|Limit|Recursion|Iteration|Steps|Timeout|Pars|Decode|Valid|Behavior")
"""Exceptions by whose names agents say that an answer was no good, or that there were too many: training mends that."""
_LEAST = 16
"""Attempts before one cause may stop a run."""
_MAX_CAUSES, _MAX_EXAMPLE = 50, 300
_Found = tuple[str, str, str, bool]
"""Reason, key, example, and whether no training can mend it."""


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """One, and how many attempts ended by it."""

    reason: str
    key: str = ""
    """`ValueError at agent.py:12`; empty where the reason says it all."""
    example: str = ""
    """A message, of at most 300 characters; it may hold what a task expects."""
    attempts: int
    of: int
    """Attempts that ended."""
    stops: bool = False
    """No training can mend it."""

    @property
    def text(self) -> str:
        """For who owns the run: all of it, and what to do."""
        row, example = row_of(self.reason), f" ({' '.join(self.example.split())})" if self.example else ""
        where = f": {self.key}" if self.key else ""
        share = f"{self.attempts} of {self.of} attempts"
        return f"{self.reason}: {share}{where}{example}. {row.sentence} {row.remedy}".rstrip()


def _cause_of(episode: Episode, policy: str) -> _Found | None:
    """Why an attempt that ended has nothing to train on, or may have too little; None: nothing stands on it."""
    excluded, error, unscored = why_excluded(episode, policy), episode.error or "", episode.unscored
    # Without a call of the policy the agent is nearer to the cause than its grader.
    said = (error,) if excluded == Reason.NO_CALLS else (unscored, error)
    raised = next(filter(None, map(_RAISED.match, said)), None)
    if raised is not None:
        reason, is_paid = _BY[raised[1]], any(one.value > 0 for call in episode.calls for one in call.rewards)
        is_of_model = reason == Reason.AGENT_RAISED and (is_paid or bool(_OF_THE_MODEL.search(raised[2].split()[0])))
        return reason, raised[2], raised[3], excluded == Reason.NO_CALLS or not is_of_model
    if excluded:
        return excluded, "", unscored if excluded == Reason.UNSCORED else error, excluded in _STOPPING
    masked = [call.masked for call in episode.calls if call.policy == policy]
    if all(masked):
        return masked[0], "", "", len({*masked}) == 1 and masked[0] != Reason.TRUNCATED
    return (Reason.TIME_LIMIT, "", error, False) if episode.state is RolloutState.TRUNCATED else None


class Causes:
    """The fold of a run's final episodes."""

    def __init__(self, policy: str) -> None:
        self.num_ended = 0
        self._policy = policy
        self._tasks: set[str | None] = set()
        """Two of them at most."""
        self._counts: dict[tuple[str, str], Cause] = {}

    def add_episode(self, episode: Episode) -> None:
        """One more attempt; it counts where it ended by itself, or by a limit."""
        if episode.state not in _ENDED or episode.purpose is Purpose.UNKNOWN:
            return
        self.num_ended += 1
        if len(self._tasks) < 2:
            self._tasks.add(episode.task_id)
        if (found := _cause_of(episode, self._policy)) is None:
            return
        reason, key, example, stops = found
        if (reason, key) not in self._counts and len(self._counts) >= _MAX_CAUSES:
            key, example = "", ""
        first = Cause(reason=reason, key=key, example=example[:_MAX_EXAMPLE], attempts=0, of=0, stops=stops)
        known = self._counts.setdefault((reason, key), first)
        self._counts[reason, key] = msgspec.structs.replace(known, attempts=known.attempts + 1)

    def found(self) -> list[Cause]:
        """The commonest first."""
        known = sorted(self._counts.values(), key=lambda one: (-one.attempts, one.reason, one.key))
        return [msgspec.structs.replace(one, of=self.num_ended) for one in known]

    def stopping(self, least: int) -> Cause | None:
        """The cause of every attempt so far, of `least` and of 16, and of two tasks, that no training can mend."""
        if self.num_ended < max(least, _LEAST) or len(self._tasks) < 2 or len(self._counts) != 1:
            return None
        (cause,) = self.found()
        return cause if cause.stops and cause.attempts == self.num_ended else None
