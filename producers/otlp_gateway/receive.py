"""One export request, however it came: who sent it, what of it may be recorded, and the log's acknowledgement.

In: a signal, the sender's headers, a body. Out: records on the signal's topic, one a trace and size, keyed by trace id
in hex, and with the reward token one on `rewards` for each evaluation in them; then the answer. Invariant: it answers
only when the log has acknowledged every piece. Memory is bounded: what a body becomes is taken from the request's share
before it is made. What names a rollout of this run bears its agent's credential (proof.py), or is refused and counted.
Failure: RequestError, RecordError, OverloadedError, UnavailableError or TimeoutError (the log is away or full), which
`status_of` makes one number of; a part that no record can hold is a dead letter by reference, told as partial success.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np
from google.protobuf.message import Message  # type: ignore[import-untyped]
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from tracegrad.schemas.credentials import Holder, masked, may_claim
from tracegrad.schemas.errors import ProofError, RequestError
from tracegrad.schemas.ids import AttemptId, RolloutId, run_hash_of
from tracegrad.schemas.keys import original_key, trace_key
from tracegrad.schemas.log.protocol import LogWriter, Position, Record
from tracegrad.schemas.metrics import (
    DEAD_LETTERS,
    LOG_RECORDS,
    REQUESTS,
    REQUESTS_REFUSED,
    REQUESTS_UNPROVED,
    SPANS,
    Metrics,
)
from tracegrad.schemas.otlp.signal import TRACES, Signal
from tracegrad.schemas.reasons import Reason, row_of
from tracegrad.schemas.records.dead_letters import dead_letter_headers
from tracegrad.schemas.topics import Topic, Topics

from ..budget import Budget, Share, weigh_json
from ..http_request import api_keys_of, holder_of, status_of
from .config import OtlpConfig, OtlpHandles
from .decode import JSON, PROTOBUF, decode_body
from .proof import keep_proved, may_name
from .split import Piece, Rejected, add_identity, split
from .take_evaluations import EvaluationRewards, evaluation_rewards

OFF_LOOP_BYTES = 64 * 1024
"""Larger bodies are decoded in a thread, one at a time, so that they do not hold up every other request."""
_RECORD_TARGET_BYTES = 1_000_000
"""Pieces of a trace are closed at this size, which every Kafka cluster accepts."""

T = TypeVar("T")
logger = logging.getLogger(__name__)


class Sender(NamedTuple):
    """Whose items they are."""

    holder: Holder | None
    """Whose credential of this run the request bears."""
    attempt: tuple[RolloutId, AttemptId] | None
    """What its path names."""
    keys: tuple[str, ...]
    """What it shows; no record repeats it."""


class _Split(NamedTuple):
    """What becomes of a request's items."""

    pieces: list[Piece]
    rejected: list[Rejected]
    num_unproved: int
    unproved: ProofError | None
    """Why these were taken out."""
    evaluations: EvaluationRewards


class Receiver:
    """What the two doors of the gateway, HTTP and gRPC, have in common. One event loop; the writer is shared."""

    def __init__(
        self, config: OtlpConfig, handles: OtlpHandles, *, topics: Topics, writer: LogWriter, metrics: Metrics
    ) -> None:
        self.config = config
        self.budget = Budget(config.max_inflight_bytes)
        self.metrics = metrics
        self._handles = handles
        self._topics = topics
        self._writer = writer
        # One thread: the loop waits behind each that wants the interpreter.
        self._aside = ThreadPoolExecutor(1, "large-bodies")

    def sender(self, headers: Mapping[str, str], attempt: tuple[RolloutId, AttemptId] | None = None) -> Sender:
        """Who asks; `attempt` is what its path names. Raises RequestError (401), or ProofError (403) when the attempt
        is one of this run and not the sender's."""
        token, keys = self.config.token, api_keys_of(headers)
        holder = holder_of(headers, self._handles.key)
        given = headers.get("authorization", "")
        is_known = not token or hmac.compare_digest(given.encode(), f"Bearer {token}".encode())
        if not is_known and holder is None:
            raise RequestError("expected Authorization: Bearer <the gateway's token>", status=401)
        if attempt and run_hash_of(attempt[0]) == self._handles.run_hash and not may_claim(holder, *attempt):
            raise _unproved(holder, "the path names")
        return Sender(holder, attempt, keys)

    async def beside(self, compute: Callable[[], T]) -> T:
        """What would hold up the loop; one at a time."""
        return await asyncio.get_running_loop().run_in_executor(self._aside, compute)

    async def receive(self, signal: Signal, sender: Sender, body: bytes, form: str, share: Share) -> Message:
        """The answer to a request whose body has come, in the form PROTOBUF or JSON; its bytes are in the share.

        Raises one of REFUSALS.
        """
        for key in sender.keys:
            # What an agent quotes of its credential, as in the headers of an HTTP span, is not for the log.
            body = masked(body, key)
        found = await self._decode(signal, sender, body, form, share)
        await asyncio.wait_for(self._append(signal, found), self._handles.ack_timeout_s)
        self.metrics.add(REQUESTS)
        counter = SPANS if signal is TRACES else LOG_RECORDS
        self.metrics.add(counter, num=sum(len(piece.items) for piece in found.pieces))
        found.evaluations.count_in(self.metrics)
        return _answer(signal, found)

    def refuse(self, error: Exception) -> tuple[int, str]:
        """Counts one of REFUSALS; its HTTP status and what to tell."""
        if isinstance(error, ProofError):
            self.metrics.add(REQUESTS_UNPROVED, error.reason)
        status, message = status_of(error), str(error) or "the log did not acknowledge in time"
        self.metrics.add(REQUESTS_REFUSED, str(status))
        num_refused = self.metrics.value(REQUESTS_REFUSED, str(status))
        level = logging.WARNING if num_refused == 1 else logging.DEBUG
        logger.log(level, "otlp: answered %d (%d so far): %s", status, num_refused, message)
        return status, message

    async def _decode(self, signal: Signal, sender: Sender, body: bytes, form: str, share: Share) -> _Split:
        is_large = len(body) > OFF_LOOP_BYTES
        weigh = partial(weigh_json if form == JSON else weigh_protobuf, body)
        share.charge_computed(await self.beside(weigh) if is_large else weigh(), once="decoded")
        decode = partial(self._decode_now, signal, sender, body, form)
        found = await self.beside(decode) if is_large else decode()
        if found.unproved is not None:
            if not found.pieces and not found.rejected:
                raise found.unproved
            self.metrics.add(REQUESTS_UNPROVED, found.unproved.reason)
        num_bytes = sum(piece.num_bytes for piece in found.pieces) + found.evaluations.num_bytes
        share.charge_computed(num_bytes, once="split by trace")
        return found

    def _decode_now(self, signal: Signal, sender: Sender, body: bytes, form: str) -> _Split:
        message, lost = decode_body(signal, body, form)
        rejected = [Rejected(reason=Reason.DAMAGED, num_bytes=part.num_bytes, sha256=part.sha256) for part in lost]
        rejected += add_identity(signal, message, *sender.attempt) if sender.attempt else []
        run = self._handles.run_hash
        is_named = form != PROTOBUF or sender.attempt is not None or may_name(body, run)
        num_unproved = keep_proved(signal, message, sender.holder, run, is_named=is_named)
        limit_bytes = self._topics.value_bytes(signal.topic)
        pieces, unfit = split(signal, message, target_bytes=_RECORD_TARGET_BYTES, item_limit_bytes=limit_bytes)
        unproved = _unproved(sender.holder, f"{num_unproved} {signal.items} name") if num_unproved else None
        evaluations = evaluation_rewards(signal, sender.holder, body, pieces, self._handles)
        return _Split(pieces, [*rejected, *unfit], num_unproved, unproved, evaluations)

    async def _append(self, signal: Signal, found: _Split) -> None:
        topic, futures = self._topics.name(signal.topic), []
        for piece in found.pieces:
            is_large = piece.num_bytes > OFF_LOOP_BYTES
            value = await self.beside(piece.value) if is_large else piece.value()
            futures.append(self._writer.append(topic, key=trace_key(piece.trace_id), value=value))
        futures += [self._dead_letter(topic, item) for item in found.rejected]
        rewards = self._topics.name(Topic.REWARDS)
        futures += [self._writer.append(rewards, key=key, value=value) for key, value in found.evaluations.records]
        for future in futures:
            await asyncio.wrap_future(future)

    def _dead_letter(self, topic: str, item: Rejected) -> Future[Position]:
        self.metrics.add(DEAD_LETTERS, item.reason)
        origin = Record(topic=topic, partition=-1, offset=-1, key=trace_key(item.trace_id), value=None)
        detail = f"an item of {item.num_bytes} bytes, kept by reference only"
        headers = dead_letter_headers(origin, stage="otlp_gateway", reason=item.reason, detail=detail)
        dead = self._topics.name(Topic.DEAD_LETTERS)
        return self._writer.append(dead, key=original_key(origin), value=msgspec.json.encode(item), headers=headers)


def _unproved(holder: Holder | None, what: str) -> ProofError:
    return ProofError(
        f"{what} a rollout of a runner: expected its credential, which its agent finds in OTEL_EXPORTER_OTLP_HEADERS, "
        f"got {f'that of {holder}' if holder else 'another or none'}; export with that variable",
        reason=Reason.OTHER_ATTEMPT if holder else Reason.NO_CREDENTIAL,
    )


def _answer(signal: Signal, found: _Split) -> Message:
    words = []
    if found.rejected:
        reasons = sorted({item.reason for item in found.rejected})
        told = [f"{reason}: {row_of(reason).sentence} {row_of(reason).remedy}" for reason in reasons]
        words.append(f"{signal.items} kept as dead letters by reference: {' '.join(told)}")
    if found.unproved:
        words.append(str(found.unproved))
    if found.evaluations.words:
        words.append(found.evaluations.words)
    is_traces, num = signal is TRACES, len(found.rejected) + found.num_unproved
    response = ExportTraceServiceResponse() if is_traces else ExportLogsServiceResponse()
    if words:
        setattr(response.partial_success, "rejected_spans" if is_traces else "rejected_log_records", num)
        response.partial_success.error_message = "; ".join(words)
    return response


_FACTOR = 6
"""Bytes of memory for one of the body's that need not be told: a text takes one, an attribute about three."""
_SPAN_BYTES, _OTHER_BYTES = 180, 90
_SPAN_FIELD = 2
"""Of the field that holds spans; in other messages it holds smaller ones."""
_MESSAGE_FIELDS = (1, _SPAN_FIELD, 3, 4, 5, 6, 9, 11, 13, 15)
"""Numbers of OTLP's fields whose value is a message."""
_PIECE_BYTES = 1024 * 1024


def _excess() -> np.ndarray:
    """By tag and length: how much more than `_FACTOR` for each of its bytes such a message takes."""
    excess = np.zeros((256, 256), np.int64)
    for field in _MESSAGE_FIELDS:
        size = _SPAN_BYTES if field == _SPAN_FIELD else _OTHER_BYTES
        excess[field << 3 | 2] = np.maximum(0, size - _FACTOR * (np.arange(256) + 2))
    return excess


_EXCESS = _excess()
_LONGEST = int(np.flatnonzero(_EXCESS.any(axis=0))[-1])
"""A longer message takes no excess."""


def weigh_protobuf(data: bytes) -> int:
    """Bytes of memory that a body takes once it is decoded, beyond six for each of its own: two can be an empty span of
    180. By every two bytes that could be the tag and the length of a short message: what only looks like one, within a
    text, is told too. Takes less time than decoding."""
    total = 0
    for start in range(0, len(data), _PIECE_BYTES):
        piece = np.frombuffer(data, np.uint8, min(_PIECE_BYTES + 1, len(data) - start), start)
        tags = np.flatnonzero(piece[1:] <= _LONGEST)
        total += int(_EXCESS[piece[tags], piece[tags + 1]].sum())
    return total
