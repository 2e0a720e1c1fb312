"""What happens to an agent's request, in order:

    app: token, body     -> identity: one caller, or refused       -> sessions: its attempt or captured trace
    -> models: who is meant; another model's request goes to upstream/, as it is
    -> api: ChatRequest  -> calls: render, splice, sample, record  -> respond: its wire form, whole or as events

In: HTTP requests of any API. Out: ASGI applications that answer them.
Invariant: a call's slot is given back exactly once, when it has ended and its answer was sent or could not be; at most
`max_inflight` calls of attempts run, the next gets 503. Calls of no attempt have slots and bytes of their own: whoever
floods with them, to be refused and tried again, takes none from an attempt.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp

from tracegrad.schemas.attributes import CONVERSATION_HEADER
from tracegrad.schemas.errors import OverloadedError, RequestError
from tracegrad.schemas.ids import CallId, key_in, new_call, split_episode_id
from tracegrad.schemas.metrics import (
    CALLS_FAILED,
    CALLS_OPTED_OUT,
    CALLS_SERVED,
    CALLS_UNFORCED,
    TOOLS_LEFT_OUT,
)
from tracegrad.schemas.records.calls import CallOutcome

from ..http_request import holder_of, read_both
from .agent_request import AgentRequest
from .api.chat_request import ChatRequest, Message, check_recordable
from .api.events import Api, Recall, forgotten
from .api.reading import with_whole_answers
from .calls import CallServer, PolicyRequest
from .captured.conversation_ends import ConversationEnd
from .captured.which_conversation import CapturedConversations, is_named
from .identity import Caller, claims_of, conversation_of, judge, leaves_record, scope_of
from .models import Models, check_one_model
from .outcomes import CallWatch
from .parts import Parts, halved
from .render.finish import ServedCall
from .render.live import LiveAnswer
from .render.splice import SpliceHistory
from .respond import CallResponse, status_of
from .sampling import unforced, without_strict
from .session import AttemptSession, CapturedSession
from .upstream.pass_on import UpstreamCalls


class ChatEndpoints:
    """The agents' endpoints, one for each API, with one bound on the calls of all."""

    def __init__(self, parts: Parts, calls: CallServer, upstreams: UpstreamCalls, wording: Api) -> None:
        """`wording` is the API in whose words a route of upstreams alone answers errors."""
        self._parts = parts
        self._calls = calls
        self._upstreams = upstreams
        self._wording = wording
        self._captured = CapturedConversations(parts.sessions, parts.conversation_ends, parts.metrics)
        self._models = Models(parts.policy, parts.handles.upstreams)
        self._num_inflight: Counter[bool] = Counter()
        """Of attempts, and of others."""

    async def chat(self, http: Request, api: Api) -> ASGIApp:
        """Serves a request of one API."""
        return await self._ask(http, api.path, api, self._chat)

    async def count(self, http: Request, api: Api) -> ASGIApp:
        """How many tokens the prompt of a request would have; nothing is sampled or recorded."""
        return await self._ask(http, api.path, api, self._count)

    async def pass_on(self, http: Request, route: str) -> ASGIApp:
        """Serves a route that upstreams may speak and the policy does not."""

        async def refuse(asked: AgentRequest, entered: contextlib.ExitStack) -> ASGIApp:
            raise RequestError(
                f"expected a model that an upstream serves, got the policy, which does not speak {route}; ask it by "
                f"{self._wording.path}",
                status=404,
                param="model",
            )

        return await self._ask(http, route, self._wording, refuse)

    async def _ask(
        self,
        http: Request,
        route: str,
        api: Api,
        serve: Callable[[AgentRequest, contextlib.ExitStack], Awaitable[ASGIApp]],
    ) -> ASGIApp:
        """Reads a request, and lets the model that it means answer: an upstream, or `serve` for the policy."""
        parts = self._parts
        holder = holder_of(http.headers, parts.handles.key)
        caller = judge(claims_of(http), holder, parts.handles.run_hash, conversation_of(http.headers))
        session = parts.sessions.find(caller)
        # Without a token anybody is let in, an attempt's code too that hides its key.
        is_hidden = parts.config.token is None and parts.sessions.has_attempts
        is_recorded = leaves_record(http, session is not None or holder is not None, is_hidden)
        if not is_recorded:
            parts.metrics.add(CALLS_OPTED_OUT)
        if session is not None:
            # Who names its rollout alone is in one of its attempts all the same, and so is its record.
            caller = msgspec.structs.replace(caller, attempt_id=split_episode_id(session.key)[1])
        with contextlib.ExitStack() as entered:
            try:
                # A slot only for a body that is here, or clients that never send theirs would hold them all.
                share = entered.enter_context(parts.budgets[session is not None].share())
                data, body = await read_both(http, parts.config.max_body_bytes, share)
                if session is not None:
                    # From here on it is the agent's doing what becomes of the request; a body that broke off is not.
                    session.last_fault = None
                asked = AgentRequest(http, route, api, caller, session, is_recorded, data, body)
                upstream = self._models.meant(body.get("model"))
                if upstream is not None:
                    check_one_model(data)
                    if not caller.key:
                        asked = dataclasses.replace(asked, caller=caller.in_trace_of_its_own())
                    return self._upstreams.answer(asked, upstream, entered)
                self._enter(session is not None, 1, entered)
                return await serve(asked, entered)
            except OverloadedError:
                if session is not None:
                    session.last_fault = 503
                raise

    async def _chat(self, asked: AgentRequest, entered: contextlib.ExitStack) -> ASGIApp:
        parts, api, caller = self._parts, asked.api, asked.caller
        session: AttemptSession | CapturedSession | None = asked.session
        scope = scope_of(asked.http)
        asks = _read(asked, self._recall(caller, asked.session, scope))
        check_recordable(asks)
        request = self._free(asks, asked)
        for kind in request.left_out:
            parts.metrics.add(TOOLS_LEFT_OUT, kind)
        if request.tool_choice != asks.tool_choice:
            parts.metrics.add(CALLS_UNFORCED, "tool_choice")
        # Each choice is a call of its own; more than there are slots take them all.
        others = min(request.num_choices, self._limit(session is not None)) - 1
        self._enter(session is not None, others, entered)
        taken, watches = list[ConversationEnd](), []
        if session is None:
            if asked.is_recorded:
                is_said = bool(asked.http.headers.get(CONVERSATION_HEADER, "").strip())
                caller = msgspec.structs.replace(caller, scope=scope)
                caller, session, taken = self._captured.find(caller, request, is_said=is_said)
                watches = [CallWatch(parts.outcomes, caller) for _ in range(request.num_choices)]
            else:
                # Of no conversation: what is not on the log, no later call can go on from.
                caller = caller.in_trace_of_its_own()
                session = CapturedSession(caller.key)
        session.enter()
        entered.callback(session.leave)
        ids = [watch.call_id for watch in watches] or [new_call(caller.key) for _ in range(request.num_choices)]
        live = LiveAnswer()
        return CallResponse(
            call=functools.partial(self._serve, PolicyRequest(session, caller, request, live, asked.is_recorded), ids),
            api=api,
            request=request,
            live=live,
            keep_alive_s=parts.config.keep_alive_s,
            left=functools.partial(self._give_back, taken),
            settled=functools.partial(self._settle, session, entered.pop_all().close, taken, watches),
        )

    async def _count(self, asked: AgentRequest, entered: contextlib.ExitStack) -> ASGIApp:
        request, key = self._free(_read(asked), asked), asked.caller.key
        known = asked.session or self._parts.sessions.known(key)
        history = known.history if known is not None else SpliceHistory()
        num_tokens = await self._calls.count(key, history, request)
        return JSONResponse({"input_tokens": num_tokens})

    def _free(self, request: ChatRequest, asked: AgentRequest) -> ChatRequest:
        """The request as it is served: nothing but the policy chooses what may train."""
        parts, session = self._parts, asked.session
        if not parts.config.allow_strict:
            request = without_strict(request)
        may_train = asked.is_recorded and (session is not None or parts.handles.trains_captured)
        return unforced(request) if may_train and not parts.config.allow_forced else request

    def _recall(self, caller: Caller, session: AttemptSession | None, scope: bytes) -> Recall:
        """What the caller may go on with: answers of its attempt, or of a captured conversation that is its own."""

        def recall(call_id: CallId) -> tuple[Message, ...] | None:
            key = key_in(call_id) or ""
            inner = self._captured.nesting.known_key(caller.trace_id or "", caller.key)
            if is_named(caller) and key not in (caller.key, inner):
                return None
            found = session or self._parts.sessions.known(key)
            # Who names the attempt or the conversation may go on with what another client of it was answered.
            of = None if session is not None or is_named(caller) else scope
            return found.conversations.find(call_id, of) if found is not None else None

        return recall

    async def _serve(self, asked: PolicyRequest, ids: Sequence[CallId]) -> ServedCall:
        served = await self._calls.serve(asked, ids)
        if asked.is_recorded and isinstance(asked.session, CapturedSession):
            asked_for = [tool.id for answer in served.answers for tool in answer.tool_calls]
            self._captured.answered(asked.session, asked.caller, asked.request, asked_for)
        return served

    def _settle(
        self,
        session: AttemptSession | CapturedSession,
        leave: Callable[[], None],
        taken: list[ConversationEnd],
        watches: Sequence[CallWatch],
        served: ServedCall | None,
        error: BaseException | None,
    ) -> None:
        leave()
        is_delivered = served is not None and served.answers[0].outcome is CallOutcome.DELIVERED
        if isinstance(session, AttemptSession):
            # Any other 5xx is the answer to what this request holds: an agent that finds one would be tried again.
            session.last_fault = 503 if error is not None and status_of(error) == 503 else None
        else:
            outcome = CallOutcome.DELIVERED if is_delivered else CallOutcome.CLIENT_DISCONNECTED
            for watch in watches:
                watch.settle(outcome if session.answers.pop(watch.call_id, None) else None, error)
        if not is_delivered:
            self._give_back(taken)
        if served is not None:
            self._parts.metrics.add(CALLS_SERVED, served.answers[0].outcome, num=len(served.answers))
        elif error is not None:
            self._parts.metrics.add(CALLS_FAILED, type(error).__name__)

    def _give_back(self, taken: list[ConversationEnd]) -> None:
        """Nobody has the answer, or will: the client asks the same again."""
        while taken:
            self._parts.conversation_ends.add_end(taken.pop())

    @property
    def num_inflight(self) -> int:
        """Calls that run."""
        return self._num_inflight.total()

    def _limit(self, is_attempts: bool) -> int:
        limit = self._parts.config.max_inflight
        return limit if is_attempts else halved(limit)

    def _enter(self, is_attempts: bool, num: int, entered: contextlib.ExitStack) -> None:
        running = self._num_inflight[is_attempts]
        if running + num > self._limit(is_attempts):
            raise OverloadedError(f"{running} calls are in flight already; try again")
        self._num_inflight[is_attempts] += num
        entered.callback(self._num_inflight.subtract, {is_attempts: num})


def _read(asked: AgentRequest, recall: Recall = forgotten) -> ChatRequest:
    api, body = asked.api, asked.body
    return with_whole_answers(api.read(body) if api.read_on is None else api.read_on(body, recall))
