"""One call from request to acknowledged record.

    request -> prompt rendered and spliced -> sampling forced -> sampled by an engine with a known label
            -> parsed -> answer -> record acknowledged by Kafka -> events, which `chat` sends
               (of a streamed answer the text before them, as it is sampled)

The engine's derender leaves to its caller what an answer is: its finish reason, where a stop string cuts it, which tool
calls count, the minted ids. A contract test compares each case with the engine's own chat endpoint.
Invariant: no answer is finished for its client before its record is acknowledged, and but for a stream's text nothing
of it leaves before that. Failure: RequestError, EngineRefusal (the request's
fault), UnavailableError, OverloadedError (ours; the agent's client retries), SessionError.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tracegrad.schemas.errors import EngineRefusal, RecordError, RequestError
from tracegrad.schemas.ids import CallId
from tracegrad.schemas.metrics import (
    CALLS,
    CALLS_NOT_REMEMBERED,
    CALLS_TOO_LARGE,
    CALLS_UNFORCED,
    CALLS_UNPARSED,
    PROMPT_NOTES,
    SPLICES,
)
from tracegrad.schemas.records.calls import LLM_CALLS, CallRecord, Purpose
from tracegrad.schemas.records.tokens import ids_to_bytes, logprobs_to_bytes
from tracegrad.schemas.topics import Topic

from .api.chat_request import ChatRequest, Message
from .api.events import TOO_LONG, Started
from .captured.conversation_ends import ConversationDigest, ConversationEnd
from .engines.chat_form import asks_grammar
from .engines.engine import Engine, Generation, ParsedMessage, Renderer, Sampling, waits_until
from .engines.generate import Generator, KnownVersions
from .identity import Caller
from .parts import Parts
from .render.finish import Answer, ServedCall, events_of, finish, merged, reads_like_a_call
from .render.live import LiveAnswer, LiveHearer
from .render.local_render import LocalRenderer
from .render.splice import (
    EarlierCall,
    Prompt,
    SpliceHistory,
    build_prompt,
    conversation_digest,
    splice_context,
)
from .sampling import decide
from .session import CapturedSession, Session

_WHOLE_EVERY_S = 300.0
"""What an episode that a deadline cuts may lose at its beginning."""


class PolicyRequest(NamedTuple):
    """A request that the policy answers, by one call or by several side by side."""

    session: Session
    caller: Caller
    request: ChatRequest
    live: LiveAnswer
    """Where a streamed answer is told while it is sampled."""
    is_recorded: bool


class _Sample(NamedTuple):
    """A sample, and what it came from."""

    started_ns: int
    """When the call began."""
    prompt: Prompt
    sampling: Sampling
    generation: Generation
    parsed: ParsedMessage
    begins: Started
    """Its first event."""


class CallServer:
    """Serves calls. One per gateway, in one event loop."""

    def __init__(self, parts: Parts, engine: Engine, versions: KnownVersions) -> None:
        self.local: LocalRenderer | None = None
        """Once it is proved equal to the engine."""
        self._engine = engine
        self._parts = parts
        self._generator = Generator(parts.config, engine, versions, parts.metrics, parts.timings)

    @property
    def renderer(self) -> Renderer:
        """What renders and parses now."""
        return self.local or self._engine

    async def serve(self, asked: PolicyRequest, ids: Sequence[CallId]) -> ServedCall:
        """As many answers as there are ids, side by side; the first failure is that of all. What `live` has told of a
        streamed one is not among its events."""
        if len(ids) == 1:
            return await self._serve(asked, ids[0], is_told=asked.request.is_stream)
        calls = [asyncio.create_task(self._serve(asked, id_)) for id_ in ids]
        try:
            await asyncio.wait(calls, return_when=asyncio.FIRST_EXCEPTION)
            for call in calls:
                if call.done():
                    call.result()
        finally:
            for call in calls:
                call.cancel()
            await asyncio.wait(calls)
        return merged([call.result() for call in calls])

    async def _serve(self, asked: PolicyRequest, call_id: CallId, *, is_told: bool = False) -> ServedCall:
        """Samples and records one answer; one that is not to be recorded is forgotten once it is sent."""
        session, request, live = asked.session, asked.request, asked.live
        with session.cancellable():
            drawn = await self._sample(session, request, call_id, live if is_told else None)
        prompt, generation = drawn.prompt, drawn.generation
        answer = finish(drawn.parsed, generation, request, call_id, asked.caller.key)
        if reads_like_a_call(answer, request):
            self._parts.metrics.add(CALLS_UNPARSED)
        events = tuple(events_of(answer, drawn.begins, drawn.parsed.logprobs, generation.stop, live.said))
        if asked.is_recorded:
            parent = _parent(prompt, session, time.monotonic(), self._parts.handles.pause_s)
            record = self._record(asked, drawn, answer, parent)
            before = conversation_digest(splice_context(request), request.messages)
            await self._append(asked, record, answer)
            whole_s = parent.whole_s if parent else time.monotonic()
            self._remember(asked, before, drawn, answer, whole_s)
        return ServedCall(answers=(answer,), events=events)

    def _record(self, asked: PolicyRequest, drawn: _Sample, answer: Answer, parent: EarlierCall | None) -> CallRecord:
        """Of a call that has ended now."""
        session, caller, request = asked.session, asked.caller, asked.request
        prompt, sampling, generation = drawn.prompt, drawn.sampling, drawn.generation
        num_shared = prompt.shared_tokens if parent else 0
        is_of_attempt = session.purpose is not Purpose.UNKNOWN
        return CallRecord(
            call_id=answer.call_id,
            **caller.names,
            parent_span_id=caller.parent_span_id,
            policy=self._parts.policy.name,
            purpose=session.purpose,
            parent_call_id=parent.call_id if parent else None,
            shared_tokens=num_shared,
            suffix_ids=ids_to_bytes(prompt.ids[num_shared:]),
            sampled_ids=ids_to_bytes(generation.ids),
            logprobs=logprobs_to_bytes(np.minimum(np.asarray(generation.logprobs, np.float32), 0)),
            versions=generation.versions,
            finish_reason=answer.finish_reason,
            content=answer.content,
            tool_calls=answer.tool_calls,
            sampling_asked=request.sampling_asked,
            sampling_used=sampling.used,
            is_constrained=sampling.is_constrained,
            is_truncated=generation.finish_reason == "length",
            splice=prompt.outcome,
            claims=caller.claims,
            engine_id=generation.engine_id,
            started_at_ns=drawn.started_ns,
            ended_at_ns=time.time_ns(),
            num_choices=request.num_choices,
            answers_user=bool(request.messages) and request.messages[-1].role == "user",
            stop_text=answer.stop_text,
            is_cut=is_of_attempt and answer.is_cut,
            reasoning=answer.reasoning if is_of_attempt else None,
        )

    async def count(self, key: str, history: SpliceHistory, request: ChatRequest) -> int:
        """The tokens of the prompt that an answer to this request would be sampled from; one that is too long counts
        as the template renders it."""
        waits = waits_until(key, self._parts.config.engine_wait_s)
        try:
            prompt, _ = await build_prompt(self.renderer, self._parts.ends, history, request, waits)
        except EngineRefusal as error:
            if error.code != TOO_LONG:
                raise
            return await self.renderer.count(request, waits)
        return len(prompt.ids)

    async def _sample(
        self, session: Session, request: ChatRequest, call_id: CallId, live: LiveAnswer | None
    ) -> _Sample:
        started_ns = time.time_ns()
        renderer, metrics = self.renderer, self._parts.metrics
        waits = waits_until(session.key, self._parts.config.engine_wait_s)
        prompt, grammar = await build_prompt(renderer, self._parts.ends, session.history, request, waits)
        metrics.add(SPLICES, prompt.outcome.kind, prompt.outcome.reason)
        for note in prompt.notes:
            metrics.add(PROMPT_NOTES, note)
        handles = self._parts.handles
        is_trained = handles.trains_captured and session.purpose is Purpose.UNKNOWN
        # Where a run trains on captured calls, they must be the policy's own.
        purpose = Purpose.TRAIN if is_trained else session.purpose
        if grammar is not None and purpose is not Purpose.UNKNOWN and not asks_grammar(request):
            # The engine's parser would choose where the policy is to: its logprobs would be another's.
            grammar = None
            metrics.add(CALLS_UNFORCED, "parser")
        as_whose = session.purpose if handles.samples_as_asked else purpose
        sampling = decide(request, as_whose, self._parts.policy, grammar)
        ids: list[int] = prompt.ids.tolist()
        model = request.model or self._parts.policy.name
        begins = Started(call_id=call_id, model=model, created_s=int(time.time()), prompt_tokens=len(ids))
        text = self.local.live(request, ids) if live and self.local else None
        hearer = LiveHearer(live, begins, text) if live and text else None
        generation = await self._generator.generate(purpose, ids, sampling, waits, hearer)
        said = generation.ids
        if generation.has_terminal:
            self._parts.ends.saw(said[-1])
            said = said[:-1]
        if not said:
            # The engine refuses to derender nothing.
            return _Sample(started_ns, prompt, sampling, generation, ParsedMessage(content=""), begins)
        parsed = await renderer.parse(request, ids, generation.entries[: len(said)], waits)
        return _Sample(started_ns, prompt, sampling, generation, parsed, begins)

    async def _append(self, asked: PolicyRequest, record: CallRecord, answer: Answer) -> None:
        """Waits until Kafka has the record. The call counts as the attempt's from the append on."""
        try:
            append = self._parts.append(Topic.LLM_CALLS, key=asked.caller.record_key, value=LLM_CALLS.encode(record))
            asked.session.register(answer, append)
            await self._parts.acknowledged(append)
        except RecordError as error:
            self._parts.metrics.add(CALLS_TOO_LARGE)
            raise RequestError(f"the call cannot be recorded: {error}", status=413) from error
        self._parts.metrics.add(CALLS)

    def _remember(self, asked: PolicyRequest, before: bytes, drawn: _Sample, answer: Answer, whole_s: float) -> None:
        """Keeps the call for the next splice, if there is room."""
        session, caller, request = asked.session, asked.caller, asked.request
        if not self._parts.sessions.has_room(session):
            self._parts.metrics.add(CALLS_NOT_REMEMBERED)
            return
        call = EarlierCall(
            call_id=answer.call_id,
            prompt_ids=drawn.prompt.ids,
            sampled_ids=np.asarray(drawn.generation.ids, np.int32),
            tool_call_ids=tuple(call.id for call in answer.tool_calls),
            is_cut=answer.is_cut,
            recorded_s=time.monotonic(),
            whole_s=whole_s,
        )
        # As the agent's next request will hold it.
        message = Message(
            role="assistant", content=answer.content, tool_calls=answer.tool_calls, reasoning=answer.reasoning
        )
        if request.is_kept:
            whole = (*request.messages[request.num_led :], message)
            session.conversations.keep(answer.call_id, whole, caller.scope)
        ends = session.history.remember(before, message, call, answer.stop_text, request.wishes.stop)
        for end in (
            ends if isinstance(session, CapturedSession) and session.is_unnamed and not asked.live.is_left else ()
        ):
            self._parts.conversation_ends.add_end(
                ConversationEnd(ConversationDigest(caller.scope, end, call.tool_call_ids), session.key)
            )
        self._parts.sessions.has_room(session)  # counts the call, which may push a captured trace out


def _parent(prompt: Prompt, session: Session, now_s: float, pause_s: float) -> EarlierCall | None:
    """The call to which the record's prompt is a difference.

    A captured conversation's episode closes by silence, or at a deadline, which the gateway does not see, and the next
    one cannot rebuild a prompt that rests on it. So after a pause shorter than any silence, and now and then, a record
    holds its whole prompt; its tokens chain with those before by what they are.
    """
    parent = prompt.parent
    if parent is None or session.purpose is not Purpose.UNKNOWN:
        return parent
    is_near = now_s - parent.recorded_s < pause_s and now_s - parent.whole_s < _WHOLE_EVERY_S
    return parent if is_near else None
