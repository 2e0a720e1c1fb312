"""Which conversation a captured trace names: the links of its spans and of their log events.

In: the facts of captured spans and events, and what these or a resource say of a conversation. Out: LinkFacts to other
keys than the trace's own. A span names a key by an id of the gateway's that it repeats, or by a conversation id, which
a rollout of Agent Lightning (`ro-`) is to us; of those that bear `session.id` only, a value with more than 8 open
traces is a process's and no conversation's, and is ignored.
Invariant: a span's links follow from the span, but for that bound, whose memory is bounded and ends with the process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterable, Mapping

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tracegrad.schemas.attributes import CONVERSATION_KEYS, ROLLOUT_KEYS, SESSION_ID
from tracegrad.schemas.bounded import BoundedMap
from tracegrad.schemas.ids import attempt_of, conversation_key, is_lightning, key_in, parse_trace_id
from tracegrad.schemas.metrics import SESSIONS_IGNORED, Metrics
from tracegrad.schemas.otlp.values import AttributeValue
from tracegrad.schemas.records.calls import CallRecord, UpstreamCall
from tracegrad.schemas.records.facts import LinkFact, LinkSource, LogFact, SpanFact, SpanKind

from .reading.repeated import CREWAI, repeated_ids
from .scan import ItemSource

_NAMING = frozenset((*ROLLOUT_KEYS, *CONVERSATION_KEYS))
_MAX_OPEN = 8
_MAX_SESSIONS = 10_000
_OPEN_NS = 600 * 10**9
"""A trace without a root span for so long, by its spans' own clock, is no longer open: its root was lost."""


def link_of_call(call: CallRecord | UpstreamCall, runs: Container[str]) -> LinkFact | None:
    """From a captured call's trace to its conversation; None where they are one, or the trace is none."""
    if call.rollout_id is not None or call.conversation_key in (None, call.trace_id) or call.trace_id is None:
        return None
    with contextlib.suppress(ValueError):
        if attempt_of(parse_trace_id(call.trace_id), runs) is None:
            return LinkFact(trace_id=call.trace_id, key=call.conversation_key or "", source=LinkSource.CALL)
    return None


def links_of_ids(fact: SpanFact | LogFact, runs: Container[str]) -> list[LinkFact]:
    """By the gateway's ids that a captured span, or one of its log events, repeats."""
    ids = (fact.response_id, fact.tool_call_id, *fact.requested_tool_call_ids)
    return _links_by(LinkSource.ID, ids, fact, runs)


def _links_by(
    source: LinkSource, ids: Iterable[str | None], fact: SpanFact | LogFact, runs: Container[str]
) -> list[LinkFact]:
    """From the trace of a fact to the keys in these ids; an attempt's key is none."""
    return [
        LinkFact(trace_id=fact.trace_id, key=key, source=source, minted_id=minted)
        for minted in ids
        if minted and (key := key_in(minted)) and key != fact.trace_id and not attempt_of(key, runs)
    ]


def links_of_event(
    fact: LogFact,
    attributes: Mapping[str, AttributeValue],
    resource: Mapping[str, AttributeValue],
    runs: Container[str],
) -> list[LinkFact]:
    """Those of a captured span's log event: the conversation's id may stand there alone. Its session tells nothing that
    its span's does not."""
    links, named = links_of_ids(fact, runs), _named(fact, attributes, resource, runs)
    return links if named is None or named.source is LinkSource.SESSION else [*links, named]


def _named(
    fact: SpanFact | LogFact,
    attributes: Mapping[str, AttributeValue],
    resource: Mapping[str, AttributeValue],
    runs: Container[str],
) -> LinkFact | None:
    """The link to the conversation that these name, if it has another key."""
    if _NAMING.isdisjoint(attributes) and _NAMING.isdisjoint(resource):
        return None
    sources, names = (attributes, resource), (*ROLLOUT_KEYS, *CONVERSATION_KEYS)
    said = ((name, source.get(name)) for name in names for source in sources)
    told = ((name, str(value).strip()) for name, value in said if value is not None)
    told = ((name, value) for name, value in told if name not in ROLLOUT_KEYS or is_lightning(value))
    # What a Collector's redaction processor masked is everybody's, and would make one conversation of all.
    name, conversation = next((pair for pair in told if pair[1] and "****" not in pair[1]), ("", ""))
    key = conversation_key(conversation)
    if not conversation or attempt_of(key, runs) or key == fact.trace_id:
        return None
    source = LinkSource.SESSION if name == SESSION_ID else LinkSource.CONVERSATION
    return LinkFact(trace_id=fact.trace_id, key=key, source=source)


class Conversations:
    """What captured spans name. Not thread-safe."""

    def __init__(self, runs: Container[str], metrics: Metrics) -> None:
        self._runs = runs
        self._metrics = metrics
        self._open: BoundedMap[str, dict[str, int]] = BoundedMap(_MAX_SESSIONS)
        """Key of a session id -> its open traces -> when their last span ended."""

    def links(
        self, fact: SpanFact, span: Span, attributes: Mapping[str, AttributeValue], source: ItemSource
    ) -> list[LinkFact]:
        """Those of a captured span, by its attributes, else its resource's."""
        links, named = links_of_ids(fact, self._runs), _named(fact, attributes, source.resource, self._runs)
        told = fact.response_id or fact.tool_call_id or fact.requested_tool_call_ids
        if not told and (fact.kind is SpanKind.LLM or source.scope == CREWAI):
            links = _links_by(LinkSource.HISTORY, repeated_ids(span, source.scope), fact, self._runs)
        if named is None:
            return links
        if named.source is LinkSource.SESSION and not self._is_conversation(named.key, fact):
            self._metrics.add(SESSIONS_IGNORED)
            return links
        return [*links, named]

    def _is_conversation(self, key: str, fact: SpanFact) -> bool:
        traces = self._open.renew(key, {})
        for trace in [trace for trace, last_ns in traces.items() if last_ns < fact.end_ns - _OPEN_NS]:
            del traces[trace]
        is_known = fact.trace_id in traces
        if not is_known and len(traces) >= _MAX_OPEN:
            return False
        if fact.parent_span_id is None or fact.parent_is_remote:
            traces.pop(fact.trace_id, None)
        else:
            traces[fact.trace_id] = max(fact.end_ns, traces.get(fact.trace_id, 0))
        return True
