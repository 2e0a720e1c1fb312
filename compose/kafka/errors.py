"""Kafka's errors -> ours, by the reaction they ask for: the boundary that no library error passes.

In: what confluent_kafka raises or returns. Out: an error of schemas/errors.py. A code that is not listed counts as
UnavailableError, the only reaction that loses nothing; a test knows which those are in the installed release, those of
requests that no client of ours makes among them.
`_NOENT` is among them: librdkafka says it of a partition without a leader (a broker that restarts); a missing topic
bears names of its own.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator

from confluent_kafka import IllegalStateException, KafkaError, KafkaException

from tracegrad.schemas.errors import (
    ConfigurationError,
    FencedError,
    LogGapError,
    OverloadedError,
    RecordError,
    TracegradError,
    UnavailableError,
)
from tracegrad.schemas.reasons import Reason

logger = logging.getLogger(__name__)

_LOG_EVERY_S = 10.0

_CONFIGURATION = """
CLUSTER_AUTHORIZATION_FAILED GROUP_AUTHORIZATION_FAILED TOPIC_AUTHORIZATION_FAILED
TRANSACTIONAL_ID_AUTHORIZATION_FAILED SASL_AUTHENTICATION_FAILED ILLEGAL_SASL_STATE UNSUPPORTED_SASL_MECHANISM
SECURITY_DISABLED _AUTHENTICATION _SSL UNKNOWN_TOPIC_OR_PART UNKNOWN_TOPIC_ID INCONSISTENT_TOPIC_ID
_UNKNOWN_TOPIC _UNKNOWN_PARTITION _UNKNOWN_GROUP TOPIC_EXCEPTION TOPIC_ALREADY_EXISTS TOPIC_DELETION_DISABLED
INVALID_PARTITIONS INVALID_REPLICATION_FACTOR INVALID_REPLICA_ASSIGNMENT INVALID_CONFIG INVALID_REQUEST
INVALID_REQUIRED_ACKS INVALID_SESSION_TIMEOUT INVALID_TRANSACTION_TIMEOUT INVALID_GROUP_ID
INVALID_REGULAR_EXPRESSION INVALID_COMMIT_OFFSET_SIZE OFFSET_METADATA_TOO_LARGE POLICY_VIOLATION
INCONSISTENT_GROUP_PROTOCOL UNSUPPORTED_ASSIGNOR UNSUPPORTED_COMPRESSION_TYPE UNSUPPORTED_FOR_MESSAGE_FORMAT
UNSUPPORTED_VERSION GROUP_ID_NOT_FOUND GROUP_MAX_SIZE_REACHED RESOURCE_NOT_FOUND DUPLICATE_RESOURCE _INVALID_ARG
_INVALID_TYPE _NOT_CONFIGURED _NOT_IMPLEMENTED _UNSUPPORTED_FEATURE _UNKNOWN_PROTOCOL _READ_ONLY
_EXISTING_SUBSCRIPTION
"""
_LOG_GAP = "OFFSET_OUT_OF_RANGE _AUTO_OFFSET_RESET _LOG_TRUNCATION"
_FENCED = """
FENCED_INSTANCE_ID UNRELEASED_INSTANCE_ID PRODUCER_FENCED TRANSACTION_COORDINATOR_FENCED _FENCED
"""
_RECORD = """
MSG_SIZE_TOO_LARGE RECORD_LIST_TOO_LARGE INVALID_MSG_SIZE INVALID_RECORD INVALID_TIMESTAMP _BAD_MSG
_BAD_COMPRESSION _KEY_SERIALIZATION _VALUE_SERIALIZATION _KEY_DESERIALIZATION _VALUE_DESERIALIZATION
_INVALID_DIFFERENT_RECORD INVALID_RECORD_STATE
"""
_OVERLOADED = "_QUEUE_FULL THROTTLING_QUOTA_EXCEEDED"
CODES: dict[str, type[TracegradError]] = {
    name: error
    for error, names in (
        (ConfigurationError, _CONFIGURATION),
        (LogGapError, _LOG_GAP),
        (FencedError, _FENCED),
        (RecordError, _RECORD),
        (OverloadedError, _OVERLOADED),
    )
    for name in names.split()
}

_REMEDY: dict[type[TracegradError], str] = {
    ConfigurationError: "check the topic's name (`tracegrad topics create`), the ACLs and the [kafka] settings",
    LogGapError: "records were deleted before they were read; raise retention.ms and start a new run",
    FencedError: "another process uses the same identity; stop one of them",
    RecordError: "split the record or leave it out",
    OverloadedError: "wait and try again",
    UnavailableError: "it is tried again",
}


def translate(error: KafkaError, *, doing: str) -> TracegradError:
    """The error of ours for one of Kafka's; `doing` says what was tried and where."""
    name = error.name()
    kind = CODES.get(name, UnavailableError)
    if name == "INVALID_REPLICATION_FACTOR" and "currently fenced" in (error.str() or ""):
        # No number of the user's: the brokers are there, late with a heartbeat on a busy machine.
        kind = UnavailableError
    message = f"expected Kafka to {doing}, got {name}: {error.str()}; {_REMEDY[kind]}"
    if kind is RecordError:
        return RecordError(message, reason=Reason.TOO_LARGE if "SIZE" in name or "LARGE" in name else Reason.REFUSED)
    return kind(message)


@contextlib.contextmanager
def boundary(doing: str) -> Iterator[None]:
    """Nothing of confluent_kafka leaves this block; `doing` says what is tried, for the message."""
    try:
        yield
    except KafkaException as error:
        raise translate(error.args[0], doing=doing) from error
    except IllegalStateException as error:
        raise UnavailableError(f"expected Kafka to {doing}, got {error}; the client is closed") from error
    except TimeoutError as error:
        raise UnavailableError(f"expected Kafka to {doing}, got no answer in time; it is tried again") from error


class LogThrottle:
    """Says of each kind of thing whether it is time to tell of it again, so that a log keeps its other lines."""

    def __init__(self) -> None:
        self._last_at: dict[str, float] = {}

    def __call__(self, kind: str) -> bool:
        now = time.monotonic()
        if now - self._last_at.get(kind, -_LOG_EVERY_S) < _LOG_EVERY_S:
            return False
        self._last_at[kind] = now
        return True


_is_due = LogThrottle()


def log_error(error: KafkaError) -> None:
    """For client-wide troubles; librdkafka goes on trying by itself, and reports an away broker several times a second
    by each client.
    """
    if _is_due(error.name()):
        logger.warning("kafka client: %s (%s)", error.str(), error.name())
