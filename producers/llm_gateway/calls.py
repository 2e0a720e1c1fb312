"""One call from request to acknowledged record.

    request -> sampling forced -> prompt rendered and spliced -> sampled by an engine with a known label
            -> parsed -> answer -> record acknowledged by Kafka -> events, which `respond` sends

Invariant: no content leaves before its record is acknowledged. Failure: RequestError, EngineRefusal (the request's
fault), UnavailableError, OverloadedError (ours; the agent's client retries), SessionError.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import msgspec
import numpy as np

from tracegrad.schemas.errors import RecordError, RequestError
from tracegrad.schemas.keys import episode_key
from tracegrad.schemas.metrics import CALLS, CALLS_TOO_LARGE, SPLICES, TURNS_NOT_REMEMBERED
from tracegrad.schemas.records.calls import CallOutcome
from tracegrad.schemas.topics import Topic

from .answer import Answer, ParsedMessage, events_of, finish, message_of
from .api.chat_request import ChatRequest
from .api.events import Event
from .engines.client import EngineClient, waits_until
from .engines.generate import Generation, Generator
from .engines.lineage import KnownVersions
from .identity import Caller
from .parts import Parts
from .record import call_record
from .render.chat_form import splice_context
from .render.engine_render import Renderer, Sampled
from .render.prompt import EndOfTurn, build_prompt
from .sampling import Sampling, decide, engine_parameters
from .sessions import CallSummary, Session
from .splice import Prompt, ServedTurn

__all__ = ["CallServer", "Served"]


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """A call whose record is acknowledged."""

    events: tuple[Event, ...]
    """Its answer."""
    summary: CallSummary
    """Its outcome is to be settled once the answer was sent, or could not be."""


class CallServer:
    """Serves calls. One per gateway, in one event loop."""

    def __init__(
        self, parts: Parts, client: EngineClient, versions: KnownVersions, renderer: Callable[[], Renderer]
    ) -> None:
        self._parts = parts
        self._renderer = renderer
        self._generator = Generator(parts.config, client, versions, parts.metrics)
        self._ends = EndOfTurn()

    async def serve(self, session: Session, caller: Caller, request: ChatRequest, number: int) -> Served:
        """Samples and records one answer; `number` is the call's in the session, by its start."""
        started_ns = time.time_ns()
        sampling = decide(request, session.purpose, self._parts.policy)
        waits = waits_until(session.sticky, self._parts.config.engine_wait_s)
        with session.cancellable():
            renderer = self._renderer()
            prompt, grammar = await build_prompt(renderer, self._ends, session.history, request, waits)
            self._parts.metrics.add(SPLICES, prompt.outcome.kind, prompt.outcome.reason)
            sampling = msgspec.structs.replace(sampling, grammar=grammar)
            ids: list[int] = prompt.ids.tolist()
            parameters = engine_parameters(sampling)
            generation = await self._generator.generate(session.purpose, ids, parameters, waits)
            if generation.has_terminal:
                self._ends.saw(generation.ids[-1])
            said = _said(ids, generation, sampling)
            # The engine refuses to derender nothing.
            parsed = await renderer.parse(request, said, waits) if said.ids else ParsedMessage(content="")
        answer = finish(parsed, generation, request, num_prompt_tokens=len(ids))
        name = self._parts.policy.name
        record = call_record(caller, name, session, request, sampling, prompt, generation, answer, started_ns)
        summary = await self._append(session, caller, prompt, answer, record, number)
        self._remember(session, request, prompt, generation, answer)
        return Served(events=tuple(events_of(answer, request.model or name)), summary=summary)

    async def _append(
        self, session: Session, caller: Caller, prompt: Prompt, answer: Answer, record: bytes, number: int
    ) -> CallSummary:
        """Waits until Kafka has the record. The call counts as the attempt's from the append on."""
        summary = CallSummary(
            call_id=answer.call_id,
            outcome=CallOutcome.CLIENT_DISCONNECTED,
            content=answer.content,
            tool_calls=answer.tool_calls,
            finish_reason=answer.finish_reason,
            num_sampled=answer.sampled_tokens,
        )
        key = episode_key(caller.rollout_id, caller.trace_id)
        register = functools.partial(session.register, summary, prompt_ids=prompt.ids, started=number)
        try:
            await self._parts.append(
                Topic.LLM_CALLS, key=key, value=record, handed=lambda append: register(append=append)
            )
        except RecordError as error:
            self._parts.metrics.add(CALLS_TOO_LARGE)
            raise RequestError(f"the call cannot be recorded: {error}", status=413) from error
        self._parts.metrics.add(CALLS)
        return summary

    def _remember(
        self, session: Session, request: ChatRequest, prompt: Prompt, generation: Generation, answer: Answer
    ) -> None:
        """Keeps the turn for the next splice, if there is room."""
        if not self._parts.sessions.has_room(session):
            self._parts.metrics.add(TURNS_NOT_REMEMBERED)
            return
        turn = ServedTurn(
            call_id=answer.call_id,
            prompt_ids=prompt.ids,
            sampled_ids=np.asarray(generation.ids, np.int32),
            tool_call_ids=tuple(call.id for call in answer.tool_calls),
            is_cut=answer.is_cut,
        )
        session.history.remember(splice_context(request), request.messages, message_of(answer), turn)
        self._parts.sessions.has_room(session)  # counts the turn, which may push a captured trace out


def _said(prompt_ids: list[int], generation: Generation, sampling: Sampling) -> Sampled:
    ids = generation.ids[:-1] if generation.has_terminal else generation.ids
    logprobs = None if sampling.top_logprobs is None else generation.logprobs[: len(ids)]
    return Sampled(prompt_ids, ids, logprobs)
