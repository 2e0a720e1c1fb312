"""Every error that tracegrad raises, named by the reaction it asks for.

    TracegradError
    |- FatalError            stop the process; the supervisor does not restart it (exit status 78)
    |  |- ConfigurationError    (ValueError)   the user's settings cannot work
    |  |- LogGapError           (LookupError)  committed offsets lie outside the log: records were lost
    |  `- FencedError           (PermissionError) another process owns what this one wanted to write
    |- RecordError           (ValueError)   dead-letter this record and go on with its neighbours
    |- UnavailableError      (ConnectionError) try again later; the other side is away
    `- OverloadedError       (BlockingIOError) slow down; a bound was reached

Messages say: expected, got, where, what to do. No message holds a prompt, token ids or a secret.
"""

from __future__ import annotations

__all__ = [
    "FATAL_EXIT_STATUS",
    "ConfigurationError",
    "FatalError",
    "FencedError",
    "LogGapError",
    "OverloadedError",
    "RecordError",
    "TracegradError",
    "UnavailableError",
]

FATAL_EXIT_STATUS = 78
"""EX_CONFIG of sysexits.h: a restart would fail in the same way, so the supervisor must not try."""


class TracegradError(Exception):
    """Base of all errors that tracegrad raises on purpose."""


class FatalError(TracegradError):
    """The process must stop and must not be restarted until a person has acted."""


class ConfigurationError(FatalError, ValueError):
    """The settings cannot work; the message names the key and the remedy."""


class LogGapError(FatalError, LookupError):
    """A committed offset lies outside the log, so records that were promised are gone."""


class FencedError(FatalError, PermissionError):
    """A higher claim exists; this writer's records are void from there on."""


class RecordError(TracegradError, ValueError):
    """One record cannot be used. `reason` is a short stable word for counters and dead letters."""

    def __init__(self, message: str, *, reason: str = "malformed") -> None:
        super().__init__(message)
        self.reason = reason

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild_record_error, (str(self), self.reason))


def _rebuild_record_error(message: str, reason: str) -> RecordError:
    return RecordError(message, reason=reason)


class UnavailableError(TracegradError, ConnectionError):
    """A service that this one needs does not answer now."""


class OverloadedError(TracegradError, BlockingIOError):
    """A bounded queue is full; the caller waits `retry_after_s` and tries again."""

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild_overloaded_error, (str(self), self.retry_after_s))


def _rebuild_overloaded_error(message: str, retry_after_s: float) -> OverloadedError:
    return OverloadedError(message, retry_after_s=retry_after_s)
