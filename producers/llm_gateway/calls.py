"""One call from request to acknowledged record.

    request -> sampling forced -> prompt rendered and spliced -> sampled by an engine with a known label
            -> parsed -> answer -> record acknowledged by Kafka -> (app sends the answer)

Invariant: no content leaves before its record is acknowledged. Failure: RequestError, EngineRefusal (the request's
fault), UnavailableError, OverloadedError (ours; the agent's client retries), SessionError.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from tracegrad.schemas.errors import OverloadedError, RecordError, RequestError, UnavailableError
from tracegrad.schemas.keys import episode_key
from tracegrad.schemas.log.protocol import LogWriter
from tracegrad.schemas.records.calls import CallOutcome, Purpose
from tracegrad.schemas.records.versions import VersionSpan

from .api.answer import Answer, ParsedMessage, finish, message_of, mint_call_id
from .config import EngineRef, LlmGatewayConfig, PolicyRef
from .engines.client import GENERATE, EngineClient
from .engines.lineage import LineageTail
from .identity import Caller
from .record import CallSummary, Generation, call_record
from .render.engine_render import EndOfTurn, Renderer, Waits, build_prompt, chat_fields, splice_context, waits_until
from .sampling import Sampling, decide, engine_parameters
from .sessions import Session
from .splice import Prompt, ServedTurn

__all__ = ["CallServer", "Served"]

_LOGGER = logging.getLogger(__name__)
_LABEL_POLL_S = 0.1
_NO_LOGPROB = -9000.0
"""vLLM writes -9999 for a logprob that is missing, NaN or minus infinity: nothing can be trained on it."""


class _LogprobEntry(msgspec.Struct):
    token_id: int
    logprob: float


class _Logprobs(msgspec.Struct):
    content: list[_LogprobEntry]


class _Span(msgspec.Struct):
    version: str
    start: int


class _Choice(msgspec.Struct):
    token_ids: list[int]
    finish_reason: str
    logprobs: _Logprobs
    stop_reason: int | str | None = None
    weight_versions: list[_Span] | None = None


class _GenerateAnswer(msgspec.Struct):
    choices: list[_Choice]


_GENERATE_ANSWER = msgspec.json.Decoder(_GenerateAnswer)


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """A call whose record is acknowledged."""

    answer: Answer
    summary: CallSummary
    """Its outcome is for the app to settle once the answer was sent, or could not be."""


class CallServer:
    """Serves calls. One per gateway, in one event loop."""

    def __init__(
        self,
        config: LlmGatewayConfig,
        *,
        client: EngineClient,
        renderer: Callable[[], Renderer],
        lineage: LineageTail,
        writer: LogWriter,
        topic: str,
        counters: Counter[str],
        has_room: Callable[[Session], bool],
    ) -> None:
        self._config = config
        self._client = client
        self._renderer = renderer
        self._lineage = lineage
        self._writer = writer
        self._topic = topic
        self._counters = counters
        self._has_room = has_room
        self._policies = {policy.name: policy for policy in config.policies}
        self._ends = EndOfTurn()

    async def serve(self, session: Session, caller: Caller, request: dict[str, Any], number: int) -> Served:
        """Samples and records one answer.

        Args:
            request: the checked body of the chat request.
            number: the call's number in the session, by its start.
        """
        started_ns = time.time_ns()
        policy = self._policies.get(session.policy) or PolicyRef(name=session.policy)
        sampling = decide(
            request,
            purpose=session.purpose,
            policy=policy,
            validation_temperature=self._config.validation_temperature,
        )
        waits = waits_until(session.sticky, self._config.engine_wait_s)
        with session.cancellable():
            renderer = self._renderer()
            prompt, constraint = await build_prompt(renderer, self._ends, session.history, request, waits)
            self._counters[f"splice_{prompt.outcome.kind}{prompt.outcome.reason and '_' + prompt.outcome.reason}"] += 1
            ids: list[int] = prompt.ids.tolist()
            generation = await self._sample(session, ids, sampling, constraint, waits)
            if generation.has_terminal:
                self._ends.saw(generation.ids[-1])
            parsed = await self._parse(renderer, request, ids, generation, sampling, waits)
        answer = finish(
            parsed,
            call_id=mint_call_id(),
            engine_finish=generation.finish_reason,
            stop=generation.stop,
            request=request,
            num_tokens=(len(ids), len(generation.ids)),
        )
        record = call_record(
            caller=caller,
            policy=policy.name,
            purpose=session.purpose,
            prompt=prompt,
            generation=generation,
            answer=answer,
            sampling=sampling,
            is_constrained=constraint is not None or sampling.is_filtered,
            times_ns=(started_ns, time.time_ns()),
        )
        summary = await self._append(session, caller, prompt, answer, record, number)
        if self._has_room(session):
            self._remember(session, request, prompt, generation, answer)
            self._has_room(session)  # counts the turn, which may push a captured trace out
        else:
            self._counters["turn_not_remembered"] += 1
        return Served(answer=answer, summary=summary)

    async def _parse(
        self,
        renderer: Renderer,
        request: dict[str, Any],
        prompt_ids: list[int],
        generation: Generation,
        sampling: Sampling,
        waits: Waits,
    ) -> ParsedMessage:
        """Derenders once, without the terminal token; the engine refuses to derender nothing."""
        ids = generation.ids[:-1] if generation.has_terminal else generation.ids
        if not ids:
            return ParsedMessage(content="")
        logprobs = None
        if sampling.top_logprobs is not None:
            pairs = zip(ids, generation.logprobs, strict=False)
            logprobs = {"content": [{"token_id": token, "logprob": value} for token, value in pairs]}
        return await renderer.parse(chat_fields(request), prompt_ids, ids, waits, logprobs=logprobs)

    async def _sample(
        self, session: Session, ids: list[int], sampling: Sampling, constraint: Any, waits: Waits
    ) -> Generation:
        """Generates until an answer bears a known label, within the call's wait."""
        body = {"token_ids": ids, "sampling_params": engine_parameters(sampling, constraint), "stream": False}
        while True:
            data, engine = await self._client.post(
                GENERATE,
                body,
                sticky=waits.sticky,
                deadline=waits.deadline,
                timeout_s=self._config.generate_timeout_s,
            )
            try:
                choice = _GENERATE_ANSWER.decode(data).choices[0]
                return await self._check(session, choice, engine)
            except (msgspec.MsgspecError, IndexError, UnavailableError) as error:
                self._counters["generation_refused"] += 1
                _LOGGER.warning("an answer of engine %s is refused, trying again: %s", engine.id, error)
                await self._until_labelled(session, engine, waits, error)

    async def _check(self, session: Session, choice: _Choice, engine: EngineRef) -> Generation:
        """The choice as a Generation. Raises UnavailableError when it cannot be used."""
        logprobs = [entry.logprob for entry in choice.logprobs.content]
        if choice.finish_reason not in ("stop", "length") or not choice.token_ids:
            raise UnavailableError(f"expected finish reason stop or length, got {choice.finish_reason}")
        if [entry.token_id for entry in choice.logprobs.content] != choice.token_ids:
            raise UnavailableError("expected one logprob for each sampled token, got others")
        if not all(math.isfinite(value) and value > _NO_LOGPROB for value in logprobs):
            raise UnavailableError("expected finite logprobs, got others")
        versions = await self._versions(session, choice.weight_versions or [])
        stop = choice.stop_reason if isinstance(choice.stop_reason, str) else None
        return Generation(
            ids=choice.token_ids,
            logprobs=logprobs,
            finish_reason=choice.finish_reason,
            stop=stop,
            has_terminal=choice.finish_reason == "stop" and stop is None,
            versions=versions,
            engine_id=engine.id,
        )

    async def _versions(self, session: Session, spans: list[_Span]) -> tuple[VersionSpan, ...]:
        """The spans' versions; for a rollout each must be known, a captured agent may meet any label."""
        labels = {span.version for span in spans}
        deadline = time.monotonic() + self._config.lineage_lag_s
        while True:
            known = {label: self._lineage.lineages.known(session.policy, label) for label in labels}
            if (spans and all(known.values())) or session.purpose is Purpose.UNKNOWN:
                break
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not spans:
                raise UnavailableError(f"expected labels of policy {session.policy}, got {sorted(labels)}")
            await self._lineage.changed(left_s)
        if not all(known.values()):
            return ()
        found = [(span.start, known[span.version]) for span in spans]
        return tuple(VersionSpan(start=start, **msgspec.structs.asdict(version)) for start, version in found if version)

    async def _until_labelled(self, session: Session, engine: EngineRef, waits: Waits, error: Exception) -> None:
        """Waits until generating again has a chance: the engine bears a known label, or does not tell its label."""
        while time.monotonic() < waits.deadline:
            await asyncio.sleep(_LABEL_POLL_S)
            label = await self._client.label(engine)
            if label is None or session.purpose is Purpose.UNKNOWN:
                return
            if self._lineage.lineages.known(session.policy, label):
                return
        raise UnavailableError(f"no engine gave a usable answer in time: {error}") from error

    async def _append(
        self, session: Session, caller: Caller, prompt: Prompt, answer: Answer, record: bytes, number: int
    ) -> CallSummary:
        """Waits until Kafka has the record. The call counts as the attempt's from before the append on."""
        summary = CallSummary(
            call_id=answer.call_id,
            outcome=CallOutcome.CLIENT_DISCONNECTED,
            content=answer.content,
            tool_calls=[{"id": call.id, "name": call.name, "arguments": call.arguments} for call in answer.tool_calls],
            finish_reason=answer.finish_reason,
            num_sampled=answer.sampled_tokens,
        )
        if session.purpose is not Purpose.UNKNOWN:
            digest = hashlib.sha256(prompt.ids.tobytes()).digest()
            session.register(summary, prompt_digest=digest, started=number)
        key = episode_key(caller.rollout_id, caller.trace_id)
        try:
            acknowledged = asyncio.wrap_future(self._writer.append(self._topic, key=key, value=record))
            done, _ = await asyncio.wait({acknowledged}, timeout=self._config.append_timeout_s)
            if not done:
                # It may still arrive, so /end waits for it and then names it, as one that nobody was answered by.
                self._counters["append_timeout"] += 1
                session.hold(acknowledged, answer.call_id)
                raise UnavailableError("the call record was not acknowledged in time")
            acknowledged.result()
        except RecordError as error:
            session.withdraw(answer.call_id)
            self._counters["call_too_large"] += 1
            raise RequestError(f"the call cannot be recorded: {error}", status=413) from error
        except (UnavailableError, OverloadedError):
            if not session.is_held(answer.call_id):
                session.withdraw(answer.call_id)
            raise
        self._counters["calls"] += 1
        return summary

    def _remember(
        self, session: Session, request: dict[str, Any], prompt: Prompt, generation: Generation, answer: Answer
    ) -> None:
        turn = ServedTurn(
            call_id=answer.call_id,
            prompt_ids=prompt.ids,
            sampled_ids=np.asarray(generation.ids, np.int32),
            tool_call_ids=tuple(call.id for call in answer.tool_calls),
            is_cut=answer.is_cut,
        )
        context = splice_context(chat_fields(request))
        session.history.remember(context, request["messages"], message_of(answer), turn)
