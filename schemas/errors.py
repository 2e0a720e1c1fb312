"""Every error that tracegrad raises, named by the reaction it asks for.

    TracegradError
    |- FatalError            stop the process; the supervisor does not restart it (exit status 78)
    |  |- ConfigurationError    (ValueError)   the user's settings cannot work
    |  |- LogGapError           (LookupError)  committed offsets lie outside the log: records were lost
    |  |- FencedError           (PermissionError) another process owns what this one wanted to write
    |  |- UnreadableError       (ValueError)   record after record cannot be decoded: writer and reader do not fit
    |  `- DivergedError         (ArithmeticError) training goes wrong (exit status 70)
    |- RecordError           (ValueError)   dead-letter this record and go on with its neighbours
    |  |- UndecodableError                     its bytes are no record that this reader knows
    |  `- IdentityError                        a request's identity claims cannot be believed: quarantined
    |- RequestError          (ValueError)   answer with `status`; whoever asked has to ask otherwise
    |  |- SessionError          (LookupError)  the attempt takes no such request
    |  |- ProofError                           whoever asks has not shown that it may
    |  `- EngineRefusal                        the engine says that the request is wrong
    |- UnavailableError      (ConnectionError) try again later; the other side is away
    `- OverloadedError       (BlockingIOError) slow down; a bound was reached

Messages say: expected, got, where, what to do. No message holds a prompt, token ids or a secret. None crosses a process
boundary; what a class adds to its message has a default, so that pickling needs no code of its own.
"""

from __future__ import annotations

from typing import ClassVar

FATAL_EXIT_STATUS = 78
"""EX_CONFIG of sysexits.h: a restart would fail in the same way, so the supervisor must not try."""

AWAY_EXIT_STATUS = 75
"""EX_TEMPFAIL: Kafka did not answer. The supervisor tries again for as long as it takes."""

BUG_EXIT_STATUS = 70
"""EX_SOFTWARE: a command ended by a fault of ours."""

NO_RUN_EXIT_STATUS = 3
"""Of `status`: there is no such run."""

DIVERGED_EXIT_STATUS = 70
"""EX_SOFTWARE: as 78, but nothing is wrong with the settings' form; the run's own exit status is 1."""


class TracegradError(Exception):
    """Base of all errors that tracegrad raises on purpose."""


class FatalError(TracegradError):
    """The process must stop and must not be restarted until a person has acted."""

    exit_status: ClassVar[int] = FATAL_EXIT_STATUS


class ConfigurationError(FatalError, ValueError):
    """The settings cannot work; the message names the key and the remedy."""


class LogGapError(FatalError, LookupError):
    """A committed offset lies outside the log, so records that were promised are gone."""


class FencedError(FatalError, PermissionError):
    """A higher claim exists; this writer's records are void from there on."""


class UnreadableError(FatalError, ValueError):
    """A topic that only our own processes write brings nothing that can be decoded; nothing of it was committed."""


class DivergedError(FatalError, ArithmeticError):
    """Loss, gradients or logits are NaN or infinite, or an alarm is to stop the run; the message names the step and
    what to change."""

    exit_status = DIVERGED_EXIT_STATUS


class RecordError(TracegradError, ValueError):
    """One record cannot be used. `reason` is a short stable word for counters and dead letters."""

    def __init__(self, message: str, *, reason: str = "malformed") -> None:
        super().__init__(message)
        self.reason = reason


class UndecodableError(RecordError):
    """The bytes are no record that this reader knows; many in a row mean that a wrong release reads or wrote them."""


class IdentityError(RecordError):
    """Claims that are malformed or disagree are quarantined as a dead letter, never guessed."""


class RequestError(TracegradError, ValueError):
    """The request cannot be served; `status`, `param` and `code` are for the answer, as OpenAI's API words it."""

    def __init__(self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code


class SessionError(RequestError, LookupError):
    """The attempt takes no such request: 409 when it did not begin here, 410 after its end."""


class ProofError(RequestError):
    """What a request claims is not proved by a credential (403). `reason` is a short stable word for counters."""

    def __init__(self, message: str, *, reason: str = "no_credential") -> None:
        super().__init__(message, status=403, code=reason)
        self.reason = reason


class EngineRefusal(RequestError):
    """The engine says that the request is wrong."""


class UnavailableError(TracegradError, ConnectionError):
    """A service that this one needs does not answer now."""


class OverloadedError(TracegradError, BlockingIOError):
    """A bounded queue is full; the caller waits and tries again."""
