"""What a regrade's grader said, kept in the new run's folder: `grades.jsonl`, one line an episode.

In: grades, in the order in which they were given. Out: the one of an episode, after a restart too. Invariant: a grade
is on the disk before anything is made of it, and an episode is asked about once: a regrade that was broken off goes on
with equal records whatever a grader, which may be a model, would say a second time. Memory: an offset an episode.
Failure: a last line that was cut off is cut off here too; a line that is none of ours is ConfigurationError.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.records.rollouts import Reward

__all__ = ["Grade", "Grades"]


class Grade(msgspec.Struct, frozen=True, kw_only=True):
    """Of one episode. Example: Grade(episode_id="1f2e...9a3c", rewards=(Reward(name="reward", value=1.0, ...),))."""

    episode_id: str
    rewards: tuple[Reward, ...]
    """Of calls, then of the whole. One without a value says why the grader gave none."""


class Grades:
    """The file. Close it."""

    def __init__(self, path: Path) -> None:
        """Opens it, or makes it. Raises ConfigurationError, OSError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a+b", buffering=0)
        self._places: dict[str, int] = {}
        """Episode -> where its line begins."""
        self._file.seek(0)
        end = 0
        with path.open("rb") as lines:
            for line in lines:
                if not line.endswith(b"\n"):
                    break
                try:
                    self._places[msgspec.json.decode(line, type=Grade).episode_id] = end
                except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                    raise ConfigurationError(
                        f"{path}: expected a grade a line, got none at byte {end} ({error}); regrade into another run"
                    ) from error
                end += len(line)
        os.truncate(self._file.fileno(), end)
        self._end = end

    def of(self, episode_id: str) -> Grade | None:
        """What was said of it; None: it was not asked about."""
        place = self._places.get(episode_id)
        if place is None:
            return None
        self._file.seek(place)
        return msgspec.json.decode(self._file.readline(), type=Grade)

    def put(self, grade: Grade) -> None:
        """Keeps it. Raises OSError."""
        line = msgspec.json.encode(grade) + b"\n"
        left = memoryview(line)
        while left:
            left = left[os.write(self._file.fileno(), left) :]
        self._places[grade.episode_id] = self._end
        self._end += len(line)

    def close(self) -> None:
        """It stays."""
        self._file.close()
