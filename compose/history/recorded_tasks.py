"""The tasks of a run, as its `rollouts` tell: what was asked, and what was expected.

In: the source's log. Out: the request of an episode's rollout. Invariant: memory holds each task once, however many
rollouts it had. Failure: a record that cannot be read is left out; its episodes have no task.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tracegrad.schemas.errors import RecordError
from tracegrad.schemas.log.follow import read_to_end
from tracegrad.schemas.log.protocol import Log
from tracegrad.schemas.records.episodes import Episode
from tracegrad.schemas.records.rollouts import ROLLOUTS, RolloutRequest

__all__ = ["RecordedTasks"]


class _Task(msgspec.Struct, frozen=True, array_like=True):
    id: str
    input: Any
    expected: Any


class RecordedTasks:
    """By rollout."""

    def __init__(self) -> None:
        self._tasks: dict[bytes, bytes] = {}
        self._of: dict[str, bytes] = {}

    def read(self, log: Log, topic: str) -> RecordedTasks:
        """All that there are now; of several requests of a rollout the first. Blocks. Raises UnavailableError."""
        for record in read_to_end(log, topic):
            try:
                asked = ROLLOUTS.decode(record.value)
            except RecordError:
                continue
            task = msgspec.json.encode(_Task(asked.task_id, asked.input, asked.expected))
            self._of.setdefault(asked.rollout_id, self._tasks.setdefault(task, task))
        return self

    def request(self, episode: Episode) -> RolloutRequest | None:
        """What its rollout was asked for; None where no record tells."""
        found = self._of.get(episode.rollout_id or "")
        if found is None or episode.rollout_id is None or episode.group is None:
            return None
        task = msgspec.json.decode(found, type=_Task)
        return RolloutRequest(
            rollout_id=episode.rollout_id,
            group=episode.group,
            task_id=task.id,
            input=task.input,
            expected=task.expected,
            policy=episode.policy or "",
            purpose=episode.purpose,
        )
