"""What a stage is: a fold over input records that knows neither Faust nor Kafka.

In: one input record after the other, of each partition in its order. Out: Emissions. Invariant: state and outputs
follow from the records alone, so that whoever drives a fold, a worker on a live log or a replay of a recorded one,
gets the same bytes. The driver appends the outputs, waits for their acknowledgement, appends the marker, waits for it,
and only then marks the inputs in `done` as done, in the order of the emissions, so that the committed offset never
passes a record whose effect is not on the log. Failure: see `Fold.fold`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from .log.protocol import Headers, Position, Record
from .topics import Stage, Topic


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """One record to append."""

    topic: Topic
    key: bytes | None
    value: bytes
    headers: Headers = ()
    partition: int | None = None
    """None: by key."""


class Emission(msgspec.Struct, frozen=True, kw_only=True):
    """What a fold step leads to: outputs first, then the marker, then the inputs are done."""

    outputs: tuple[Output, ...] = ()
    marker: Output | None = None
    """A record for the stage's marker topic; its partition is the input's."""
    done: tuple[Position, ...] = ()
    """Input positions on which nothing open depends any more."""


class Fold(Protocol):
    """The state of one stage in one worker. Not thread-safe; one caller at a time."""

    @property
    def stage(self) -> Stage:
        """Whose inputs it takes."""

    @property
    def marker_topic(self) -> Topic | None:
        """Where closed ids are kept; None for a stage without state."""

    @property
    def num_open(self) -> int:
        """Episodes or groups that wait for something; 0 for a stage without state."""

    def reset(self) -> None:
        """Forgets everything: partitions were revoked or assigned; un-done records will come again."""

    def restore(self, markers: Iterable[Record]) -> None:
        """Takes the marker partitions from their beginning to their end, before any input."""

    def fold(self, record: Record) -> Emission:
        """Takes one input record. Bad input becomes a dead letter in the outputs.

        Raises UnreadableError when nothing of this kind can be decoded any more; it is no single record's fault.
        """

    def propose(self, now_s: float, now_ms: int = 0) -> Sequence[Output]:
        """Close proposals that the clock makes due, to be appended to the stage's own input partition.

        Args:
            now_s: by a clock that only goes forward.
            now_ms: by the clock that records bear, unix ms, for what a worker before this one began to wait for; 0:
                no such clock.
        """
