"""The calls that an episode's spans tell, where no LLM gateway of ours saw them; only a replay of a history asks.

    CallFact.told, of spans and events --> one a call --> its tools --> rendered: token ids, or why not --> CallRecord

In: an episode that closes, the tree of its spans, `[history]`, who turns words into the policy's token ids. Out: its
calls as if the gateway had recorded them, whole prompts and no parents; each bears why it leaves the loss. What is not
asked for is no call. Of models' spans in each other the innermost that tells a prompt and an answer is the call, and
those around it fill in what it lacks; two that repeat one response id are one, so are two that tell equal words at one
time. Of calls with equal prompts the agent went on with the last that was finished. Pure but for the rendering.
Invariant: equal facts give equal calls, whatever their order; a call's tools are told, or those of another call of the
same agent or of its own span, or the user's; they are never guessed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import msgspec

from tracegrad.schemas.ids import CallId, RunHash
from tracegrad.schemas.metrics import TOLD_CALLS, Metrics
from tracegrad.schemas.reasons import Reason
from tracegrad.schemas.records.calls import SamplingParameters
from tracegrad.schemas.records.facts import CallFact, SpanFact, SpanKind, ToolStatus, told_fact
from tracegrad.schemas.records.tokens import CallTokens, ids_to_bytes, logprobs_to_bytes
from tracegrad.schemas.records.told import ChatMessage, ToldCall, ToolDefinition
from tracegrad.schemas.records.versions import VersionSpan

from ..config import HistoryConfig
from .join.span_tree import SpanKey, SpanTree, span_key

AgentTools = Mapping[str, tuple[ToolDefinition, ...]]
"""Glob on agents -> their tools."""


NOBODY = ChatMessage(role="")
_KnownTools = defaultdict[str | None, set[tuple[ToolDefinition, ...]]]
"""By the agent that has them."""


@dataclass(frozen=True)
class ToldCalls:
    """Makes calls of what spans tell."""

    config: HistoryConfig
    """Which calls count."""
    policy: str
    """That learns them."""
    sampler: RunHash
    """The source run, for one version of which their tokens count."""
    tools: AgentTools
    """Of agents whose calls tell none."""
    tokens: Callable[[ToldCall], CallTokens]
    """The policy's token ids of a call."""
    joined: Callable[[ToldCall, Iterable[ToldCall]], ToldCall]
    """A span's call, with what its log events tell besides."""

    def made(self, facts: Iterable[CallFact], spans: Sequence[SpanFact], metrics: Metrics) -> dict[str, CallFact]:
        """By their ids, in the order in which they began.

        Args:
            facts: of told calls.
            spans: of their episode.
        """
        tree, items = SpanTree(spans), [fact.told for fact in facts if fact.told is not msgspec.UNSET]
        told = _one_a_call(self._by_span(items), tree)
        agents = {key: _agent_of(key, tree) for key in told}
        chosen = {key: call for key, call in told.items() if self._is_chosen(call, agents[key], tree)}
        ended = {status: {it.tool_call_id for it in spans if it.tool_status is status} for status in ToolStatus}
        succeeded = ended[ToolStatus.SUCCEEDED] - ended[ToolStatus.FAILED]
        chosen = {key: _with_results(call, succeeded) for key, call in chosen.items()}
        found = self._with_tools(chosen, agents, _tools_of_agents(items, tree))
        superseded = _superseded(found, agents)
        # Of several at one time, as clocks of seconds tell it, the one whose prompt holds the others' answers is later.
        order = sorted(found, key=lambda key: (found[key].started_ns, len(found[key].messages or ()), key))
        made = [self._fact(found[key], number, is_superseded=key in superseded) for number, key in enumerate(order)]
        for fact in made:
            metrics.add(TOLD_CALLS, fact.masked or "exact")
        return {fact.call.call_id: fact for fact in made}

    def _by_span(self, items: Iterable[ToldCall]) -> dict[SpanKey, ToldCall]:
        """What each model's span tells, with its events; events of a span that is not here tell of no call."""
        spans: dict[SpanKey, ToldCall] = {}
        events: dict[SpanKey, list[ToldCall]] = {}
        for told in items:
            if told.is_event:
                events.setdefault((told.trace_id, told.span_id), []).append(told)
            else:
                spans[told.trace_id, told.span_id] = told
        return {key: self.joined(call, events[key]) if key in events else call for key, call in spans.items()}

    def _is_chosen(self, call: ToldCall, agent: str | None, tree: SpanTree) -> bool:
        span, config = tree.get(call.trace_id, call.span_id), self.config
        service = span.service if span is not None else ""
        told = ((call.model, config.models), (agent or "", config.agents), (service, config.services))
        return all(not globs or any(fnmatchcase(name, glob) for glob in globs) for name, globs in told)

    def _with_tools(
        self, calls: Mapping[SpanKey, ToldCall], agents: Mapping[SpanKey, str | None], known: _KnownTools
    ) -> dict[SpanKey, ToldCall]:
        for key, call in calls.items():
            if call.tools is not None:
                known[agents[key]].add(call.tools)
        found = {}
        for key, call in calls.items():
            tools, others = call.tools, known[agents[key]]
            if tools is None:
                globs = (glob for glob in self.tools if fnmatchcase(agents[key] or "", glob))
                tools = next(iter(others)) if len(others) == 1 else self.tools.get(next(globs, ""))
            lacks = tuple(reason for reason in call.lacks if tools is None or reason != Reason.NO_TOOLS_TOLD)
            found[key] = msgspec.structs.replace(call, tools=tools, lacks=lacks)
        return found

    def _fact(self, call: ToldCall, number: int, *, is_superseded: bool) -> CallFact:
        tokens, answer = self.tokens(call), call.answer
        fact = told_fact(call)
        record = msgspec.structs.replace(
            fact.call,
            call_id=CallId(call.response_id) if call.response_id else fact.call.call_id,
            policy=self.policy,
            suffix_ids=ids_to_bytes(tokens.prompt),
            sampled_ids=ids_to_bytes(tokens.answer),
            logprobs=logprobs_to_bytes(tokens.logprobs) if tokens.logprobs is not None else b"",
            versions=(VersionSpan(run=self.sampler, version=0, epoch=0, start=0),) if len(tokens.answer) else (),
            content=answer.content if answer is not None else None,
            reasoning=answer.reasoning if answer is not None else None,
            tool_calls=answer.tool_calls if answer is not None else (),
            sampling_used=SamplingParameters(temperature=1.0 if tokens.temperature is None else tokens.temperature),
            is_truncated=call.finish_reason == "length",
            answers_user=(call.messages or (NOBODY,))[-1].role == "user",
        )
        masked = tokens.reason or (Reason.SUPERSEDED if is_superseded else tokens.masked)
        return CallFact(call=record, order=number, told=call, masked=masked)


def _one_a_call(told: Mapping[SpanKey, ToldCall], tree: SpanTree) -> dict[SpanKey, ToldCall]:
    around = {key: _around(key, told, tree) for key in told}
    outer = {key for keys in around.values() for key in keys}
    num_within = Counter(key for inner, keys in around.items() if inner not in outer for key in keys)
    found = dict(told)
    for inner in sorted(told, key=lambda key: (-len(around[key]), key)):
        chain = [inner, *around[inner]]
        if len(chain) == 1 or inner in outer:
            continue
        best = next((key for key in chain if _is_whole(told[key])), inner)
        for key in (key for key in chain if key != best and key in found):
            call = found.get(best, told[best])
            # Of several calls within one span nobody knows whose its id is.
            response_id = told[key].response_id if num_within[key] < 2 else None
            found[best] = msgspec.structs.replace(
                call,
                tools=told[key].tools if call.tools is None else call.tools,
                finish_reason=call.finish_reason or told[key].finish_reason,
                response_id=call.response_id or response_id,
                rewards=call.rewards + told[key].rewards,
            )
            del found[key]
    return _without_doubles(found)


def _around(key: SpanKey, told: Mapping[SpanKey, ToldCall], tree: SpanTree) -> list[SpanKey]:
    """Those of model's spans around one, from within; an agent or a tool between them begins another call."""
    found: list[SpanKey] = []
    step = tree.get(*key)
    while step is not None and (above := tree.parent(step)) is not None:
        place = tree.above(above).llm
        if place is None or place in (key, *found):
            break
        found.append(place)
        step = tree.get(*place)
    return [place for place in found if place in told]


def _without_doubles(told: Mapping[SpanKey, ToldCall]) -> dict[SpanKey, ToldCall]:
    """One of those that repeat a response id, or equal words at one time: the one that lacks least."""
    found: dict[SpanKey, ToldCall] = {}
    seen: dict[object, list[ToldCall]] = {}
    for key in sorted(told, key=lambda key: (not _is_whole(told[key]), len(told[key].lacks), key)):
        call = told[key]
        words = msgspec.msgpack.encode((call.messages, call.answer)) if _is_whole(call) else key
        of_id = seen.get(call.response_id or "", [])
        same = [one for one in seen.get(words, ()) if one in of_id or _overlap(one, call)]
        same += [one for one in of_id if not _is_whole(call) or not _is_whole(one) or _overlap(one, call)]
        if same:
            place = same[0].trace_id, same[0].span_id
            rewards = (*found[place].rewards, *call.rewards)
            found[place] = msgspec.structs.replace(found[place], rewards=tuple(dict.fromkeys(rewards)))
            continue
        # An id that two answers bear, as in a careless export, names the first alone.
        found[key] = msgspec.structs.replace(call, response_id=None) if of_id else call
        for name in (words, call.response_id):
            seen.setdefault(name, []).append(call)
    return found


def _overlap(one: ToldCall, other: ToldCall) -> bool:
    return one.started_ns < other.ended_ns and other.started_ns < one.ended_ns


def _is_whole(call: ToldCall) -> bool:
    return call.messages is not None and call.answer is not None


def _with_results(call: ToldCall, succeeded: Container[str | None]) -> ToldCall:
    """Who rewrites failures has told a result as it was sent where the tool's span says that it ended well."""
    has_failures = any(it.role == "tool" and it.tool_call_id not in succeeded for it in call.messages or ())
    lacks = tuple(reason for reason in call.lacks if has_failures or reason != Reason.FAILURE_REWRITTEN)
    return msgspec.structs.replace(call, lacks=lacks)


def _superseded(calls: Mapping[SpanKey, ToldCall], agents: Mapping[SpanKey, str | None]) -> set[SpanKey]:
    """Those that were asked again, in equal words, once they had ended, and answered then."""
    asked: dict[object, list[SpanKey]] = {}
    for key, call in calls.items():
        if call.messages is not None and Reason.UNFINISHED not in call.lacks:
            words = msgspec.msgpack.encode((call.model, call.messages, call.tools))
            asked.setdefault((agents[key], words), []).append(key)
    return {
        key
        for same in asked.values()
        for key in same
        if any(calls[other].started_ns >= max(calls[key].ended_ns, calls[key].started_ns + 1) for other in same)
    }


def _tools_of_agents(items: Iterable[ToldCall], tree: SpanTree) -> _KnownTools:
    """Those that agents' own spans tell."""
    found: _KnownTools = defaultdict(set)
    for told in items:
        span = tree.get(told.trace_id, told.span_id)
        if told.tools is not None and span is not None and span.kind is SpanKind.AGENT:
            found[_agent_of(span_key(span), tree)].add(told.tools)
    return found


def _agent_of(key: SpanKey, tree: SpanTree) -> str | None:
    span = tree.get(*key)
    named = tree.above(span).named if span is not None else None
    return named.name if named is not None else None
