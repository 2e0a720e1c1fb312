"""Kafka's errors -> ours, by the reaction they ask for: the boundary that no library error passes.

In: what confluent_kafka raises or returns. Out: an error of schemas/errors.py. A code that is not listed (a later
release) counts as UnavailableError, the only reaction that loses nothing; a test says that the installed release
has none. `_NOENT` is what librdkafka says of a partition without a leader (a broker that restarts); a missing topic
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

__all__ = ["CODES", "boundary", "log_error", "translate"]

logger = logging.getLogger(__name__)

_LOG_EVERY_S = 10.0

_CONFIGURATION = """
CLUSTER_AUTHORIZATION_FAILED DELEGATION_TOKEN_AUTHORIZATION_FAILED DELEGATION_TOKEN_AUTH_DISABLED
DELEGATION_TOKEN_EXPIRED DELEGATION_TOKEN_NOT_FOUND DELEGATION_TOKEN_OWNER_MISMATCH
DELEGATION_TOKEN_REQUEST_NOT_ALLOWED GROUP_AUTHORIZATION_FAILED TOPIC_AUTHORIZATION_FAILED
TRANSACTIONAL_ID_AUTHORIZATION_FAILED SASL_AUTHENTICATION_FAILED ILLEGAL_SASL_STATE UNSUPPORTED_SASL_MECHANISM
SECURITY_DISABLED UNACCEPTABLE_CREDENTIAL PRINCIPAL_DESERIALIZATION_FAILURE INVALID_PRINCIPAL_TYPE
_AUTHENTICATION _SSL UNKNOWN_TOPIC_OR_PART UNKNOWN_TOPIC_ID INCONSISTENT_TOPIC_ID _UNKNOWN_TOPIC
_UNKNOWN_PARTITION _UNKNOWN_GROUP TOPIC_EXCEPTION TOPIC_ALREADY_EXISTS TOPIC_DELETION_DISABLED
INVALID_PARTITIONS INVALID_REPLICATION_FACTOR INVALID_REPLICA_ASSIGNMENT INVALID_CONFIG INVALID_REQUEST
INVALID_REQUIRED_ACKS INVALID_SESSION_TIMEOUT INVALID_TRANSACTION_TIMEOUT INVALID_GROUP_ID
INVALID_REGULAR_EXPRESSION INVALID_COMMIT_OFFSET_SIZE OFFSET_METADATA_TOO_LARGE POLICY_VIOLATION
INCONSISTENT_GROUP_PROTOCOL UNSUPPORTED_ASSIGNOR UNSUPPORTED_COMPRESSION_TYPE UNSUPPORTED_ENDPOINT_TYPE
UNSUPPORTED_FOR_MESSAGE_FORMAT UNSUPPORTED_VERSION MISMATCHED_ENDPOINT_TYPE GROUP_ID_NOT_FOUND
GROUP_MAX_SIZE_REACHED RESOURCE_NOT_FOUND DUPLICATE_RESOURCE LISTENER_NOT_FOUND FEATURE_UPDATE_FAILED
_INVALID_ARG _INVALID_TYPE _NOT_CONFIGURED _NOT_IMPLEMENTED _UNSUPPORTED_FEATURE _UNKNOWN_PROTOCOL _READ_ONLY
_EXISTING_SUBSCRIPTION STREAMS_INVALID_TOPOLOGY
STREAMS_INVALID_TOPOLOGY_EPOCH STREAMS_TOPOLOGY_FENCED DUPLICATE_VOTER VOTER_NOT_FOUND INVALID_REGISTRATION
INVALID_VOTER_KEY INCONSISTENT_VOTER_SET INVALID_UPDATE_VERSION
"""
_LOG_GAP = "OFFSET_OUT_OF_RANGE _AUTO_OFFSET_RESET _LOG_TRUNCATION"
_FENCED = """
FENCED_INSTANCE_ID UNRELEASED_INSTANCE_ID PRODUCER_FENCED TRANSACTION_COORDINATOR_FENCED _FENCED
"""
_RECORD = """
MSG_SIZE_TOO_LARGE RECORD_LIST_TOO_LARGE INVALID_MSG_SIZE INVALID_RECORD INVALID_TIMESTAMP TELEMETRY_TOO_LARGE
_BAD_MSG _BAD_COMPRESSION _KEY_SERIALIZATION _VALUE_SERIALIZATION _KEY_DESERIALIZATION _VALUE_DESERIALIZATION
_INVALID_DIFFERENT_RECORD INVALID_RECORD_STATE
"""
_OVERLOADED = "_QUEUE_FULL THROTTLING_QUOTA_EXCEEDED"
_UNAVAILABLE = """
BROKER_NOT_AVAILABLE CONCURRENT_TRANSACTIONS COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE
DUPLICATE_SEQUENCE_NUMBER ELECTION_NOT_NEEDED ELIGIBLE_LEADERS_NOT_AVAILABLE FENCED_LEADER_EPOCH
FENCED_MEMBER_EPOCH FENCED_STATE_EPOCH FETCH_SESSION_ID_NOT_FOUND GROUP_SUBSCRIBED_TO_TOPIC ILLEGAL_GENERATION
INVALID_FETCH_SESSION_EPOCH INVALID_MSG INVALID_PRODUCER_EPOCH INVALID_PRODUCER_ID_MAPPING
INVALID_SHARE_SESSION_EPOCH INVALID_TXN_STATE KAFKA_STORAGE_ERROR LEADER_NOT_AVAILABLE LOG_DIR_NOT_FOUND
MEMBER_ID_REQUIRED NETWORK_EXCEPTION NON_EMPTY_GROUP NOT_CONTROLLER NOT_COORDINATOR NOT_ENOUGH_REPLICAS
NOT_ENOUGH_REPLICAS_AFTER_APPEND NOT_LEADER_FOR_PARTITION NO_ERROR NO_REASSIGNMENT_IN_PROGRESS
OFFSET_NOT_AVAILABLE OPERATION_NOT_ATTEMPTED OUT_OF_ORDER_SEQUENCE_NUMBER PREFERRED_LEADER_NOT_AVAILABLE
REASSIGNMENT_IN_PROGRESS REBALANCE_IN_PROGRESS REBOOTSTRAP_REQUIRED REPLICA_NOT_AVAILABLE REQUEST_TIMED_OUT
SHARE_SESSION_LIMIT_REACHED SHARE_SESSION_NOT_FOUND STALE_BROKER_EPOCH STALE_CTRL_EPOCH STALE_MEMBER_EPOCH
TRANSACTION_ABORTABLE UNKNOWN UNKNOWN_CONTROLLER_ID UNKNOWN_LEADER_EPOCH UNKNOWN_MEMBER_ID UNKNOWN_PRODUCER_ID
UNKNOWN_SUBSCRIPTION_ID UNSTABLE_OFFSET_COMMIT _ALL_BROKERS_DOWN _APPLICATION _ASSIGNMENT_LOST
_ASSIGN_PARTITIONS _DESTROY _DESTROY_BROKER _FAIL _FATAL _GAPLESS_GUARANTEE _INCONSISTENT _INTR _IN_PROGRESS
_ISR_INSUFF _MAX_POLL_EXCEEDED _MSG_TIMED_OUT _NODE_UPDATE _NOOP _NO_OFFSET _OUTDATED _PARTIAL _PARTITION_EOF
_PREV_IN_PROGRESS _PURGE_INFLIGHT _PURGE_QUEUE _RESOLVE _RETRY _REVOKE_PARTITIONS _TIMED_OUT _TIMED_OUT_QUEUE
_STATE _CONFLICT _CRIT_SYS_RESOURCE _FS _NOENT
_TRANSPORT _UNDERFLOW _UNKNOWN_BROKER _WAIT_CACHE _WAIT_COORD
"""

CODES: dict[str, type[TracegradError]] = {
    name: error
    for error, names in (
        (ConfigurationError, _CONFIGURATION),
        (LogGapError, _LOG_GAP),
        (FencedError, _FENCED),
        (RecordError, _RECORD),
        (OverloadedError, _OVERLOADED),
        (UnavailableError, _UNAVAILABLE),
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
    message = f"expected Kafka to {doing}, got {name}: {error.str()}; {_REMEDY[kind]}"
    if kind is RecordError:
        return RecordError(message, reason="too_large" if "SIZE" in name or "LARGE" in name else "refused")
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


class _QuietLog:
    """Says a client's trouble once in a while: an away broker is reported several times a second by each client."""

    def __init__(self) -> None:
        self._last_at: dict[str, float] = {}
        self._num_left_out = 0

    def __call__(self, error: KafkaError) -> None:
        name = error.name()
        now = time.monotonic()
        if now - self._last_at.get(name, -_LOG_EVERY_S) < _LOG_EVERY_S:
            self._num_left_out += 1
            return
        self._last_at[name] = now
        logger.warning("kafka client: %s (%s; %d reports left out)", error.str(), name, self._num_left_out)
        self._num_left_out = 0


log_error = _QuietLog()
"""For client-wide troubles; librdkafka goes on trying by itself."""
