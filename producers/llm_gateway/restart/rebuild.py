"""An open attempt's session, from its records.

In: an attempt, as its runner tells of it again, and the records of its rollout, in their order. Out: a Session that
goes on as that of the gateway that is gone would have: the same splices, and at the end the same calls. Invariant:
nothing is guessed. What the records do not hold is refused, and the attempt is then made again. How the last answers
went is told by none: they stay `unknown`, and leave the loss, until the agent goes on from one, or asks the same again.
Who ended meanwhile ended by the gateway, unless a later call says otherwise. Failure: SessionError (409). One thread at
a time; it touches nothing but its session.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from tracegrad.schemas.credentials import Holder
from tracegrad.schemas.errors import RecordError, SessionError
from tracegrad.schemas.ids import CallId, EpisodeId, split_episode_id
from tracegrad.schemas.log.mac import is_by_own_run, signer_of
from tracegrad.schemas.log.protocol import Offsets, Record
from tracegrad.schemas.records.calls import LLM_CALLS, CallOutcome, CallRecord, CallsClosed, Purpose
from tracegrad.schemas.records.tokens import Ids, ids_from_bytes

from ..api.chat_request import Message
from ..outcomes import Answer
from ..sessions import Session
from ..splice import EarlierCall

__all__ = ["Rebuild", "rebuildable"]

_NOTHING: Ids = np.asarray([], np.int32)


def rebuildable(record: CallRecord, session: Session, answer: Answer, asked: bytes, number: int) -> CallRecord:
    """An attempt's record, with what `Rebuild` finds in it.

    Args:
        asked: digest of the conversation that it answers.
        number: by its start.
    """
    return msgspec.structs.replace(
        record,
        number=number,
        asked=asked,
        is_cut=answer.is_cut,
        reasoning=answer.reasoning,
        settled=session.calls.settled,
    )


class Rebuild:
    """One attempt, while its records are read.

    Args:
        episode: of the attempt.
        purpose, host: as at its first `/begin`.
        since: partition of `llm_calls` -> an offset below which the attempt has no record.
    """

    def __init__(self, episode: EpisodeId, purpose: Purpose, host: Holder | None, since: Mapping[int, int]) -> None:
        self.session = Session(episode, purpose, host)
        self.since = since
        self.refusal: SessionError | None = None
        """Why it cannot be; nothing more is taken then."""
        self.terminals: dict[int, None] = {}
        """Tokens that ended its answers."""
        self._episode = episode
        self._earlier: dict[CallId, EarlierCall] = {}
        self._answers: dict[CallId, Answer] = {}
        self._closed: CallsClosed | None = None

    def check_kept(self, kept: Mapping[int, Offsets]) -> None:
        """Refuses it where the log has lost some of what was written since it began."""
        for partition, offsets in kept.items():
            if not offsets.begin <= self.since.get(partition, 0) <= offsets.end:
                return self.refuse("retention")

    def refuse(self, reason: str) -> None:
        """For a short stable word; the first one counts."""
        self.refusal = self.refusal or SessionError(
            f"attempt {self._episode} began at a gateway that is gone, and cannot be gone on with ({reason}); abort "
            "and retry the attempt",
            status=409,
            code=reason,
        )

    def take(self, record: Record) -> None:
        """A record of the rollout; those of its other attempts, and of other writers, are passed over."""
        if self.refusal is not None or not is_by_own_run(signer_of(record), self._episode):
            return
        try:
            call = LLM_CALLS.decode(record.value)
            if split_episode_id(self._episode) != (call.rollout_id, call.attempt_id):
                return
            if isinstance(call, CallsClosed):
                self._closed = call
            elif isinstance(call, CallRecord) and call.call_id not in self._earlier:
                self._add(call)
        except RecordError:
            self.refuse("undecodable")

    def _add(self, record: CallRecord) -> None:
        if not record.asked or record.purpose is not self.session.purpose:
            return self.refuse("older_record")
        before, parent = _NOTHING, self._earlier.get(record.parent_call_id or CallId(""))
        if parent is not None:
            before = np.concatenate([parent.prompt_ids, parent.sampled_ids])[: record.shared_tokens]
        if len(before) != record.shared_tokens:
            return self.refuse("missing_parent")
        answer = Answer(
            call_id=record.call_id,
            outcome=CallOutcome.UNKNOWN,
            content=record.content,
            reasoning=record.reasoning,
            tool_calls=record.tool_calls,
            finish_reason=record.finish_reason,
            sampled_tokens=record.num_sampled,
            is_cut=record.is_cut,
            stop_text=record.stop_text,
        )
        call = EarlierCall(
            call_id=record.call_id,
            prompt_ids=np.concatenate([before, ids_from_bytes(record.suffix_ids)]),
            sampled_ids=ids_from_bytes(record.sampled_ids),
            tool_call_ids=tuple(call.id for call in record.tool_calls),
            is_cut=record.is_cut,
        )
        self._earlier[record.call_id], self._answers[record.call_id] = call, answer
        self._tell(record.settled)
        if not record.is_truncated and not record.stop_text and len(call.sampled_ids):
            self.terminals[int(call.sampled_ids[-1])] = None
        message = Message(
            role="assistant", content=record.content, tool_calls=record.tool_calls, reasoning=record.reasoning
        )
        stops = record.sampling_used.stop
        self.session.history.remember(record.asked, message, call, record.stop_text, stops)
        self.session.calls.add(answer, call.prompt_ids, record.number, record.parent_call_id)

    def _tell(self, outcomes: Mapping[CallId, CallOutcome]) -> None:
        for call_id, outcome in outcomes.items():
            if call_id in self._answers:
                self._answers[call_id].outcome = outcome

    def finish(self) -> None:
        """All of its records were taken."""
        session = self.session
        session.was_rebuilt, session.last_fault = True, 503
        if self._closed is None:
            return
        if self._closed.outcomes.keys() - self._answers.keys():
            return self.refuse("missing_call")
        # Its end is on the log, and what else came is none of its calls.
        outcomes = {CallId(call_id): outcome for call_id, outcome in self._closed.outcomes.items()}
        self._tell(outcomes)
        session.is_closing = True
        session.end([answer for call_id, answer in self._answers.items() if call_id in outcomes])
