"""`episode_events`: normalised facts of one episode, the state from which the assembler folds.

Facts carry no lineage of a run (origin offsets travel in record headers), so that a replay gives equal bytes.
"""

from __future__ import annotations

import hashlib

import msgspec

from ..ids import CallId, told_call_id
from .calls import (
    CallEnded,
    CallOpen,
    CallRecord,
    CallsClosed,
    Purpose,
    SamplingParameters,
    SpliceOutcome,
    UpstreamCall,
)
from .codec import Codec, OpenEnum
from .rollouts import Reward, RolloutEvent
from .told import ToldCall


class SpanKind(OpenEnum):
    """What a span stands for, whatever its dialect calls it."""

    AGENT = "agent"
    TOOL = "tool"
    LLM = "llm"
    OTHER = "other"
    """Read, and none of these."""
    UNKNOWN = "unknown"
    """A value of a later release; keeps its place in the tree."""


class ToolStatus(OpenEnum):
    """Tri-state: unknown is not failure."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNKNOWN = "unknown"
    """Nothing tells, or a value of a later release."""


MAX_FACTS_PER_RECORD = 500
"""Keeps a record below the topic's message limit: a span's fact is at most 6 KB, for its texts are cut."""
MAX_TOOL_CALLS = 16
"""Of a span's `requested_tool_call_ids`; of an answer that asks for more, the first are enough to know it by."""
MAX_RESULT = 2_000
"""Characters of a tool's result that stay on the log beyond its span."""


class SpanReward(msgspec.Struct, frozen=True, kw_only=True):
    """A reward that a span names; whether it counts is the assembler's to say."""

    name: str
    """`agent`, or `agent.<name>` of a further dimension."""
    value: float | None
    """None: no usable number."""
    target: str | None = None
    """The call id of the answer that it is linked to; None: the episode."""


class SpanFact(msgspec.Struct, frozen=True, kw_only=True, tag="span"):
    """One agent, tool or LLM span, read by its dialect; other spans keep only their place in the tree."""

    trace_id: str
    span_id: str
    parent_span_id: str | None
    name: str
    kind: SpanKind
    dialect: str
    """Those that the span speaks (docs/dialects.md), sorted and joined by `+`; or `none`."""
    service: str
    start_ns: int
    end_ns: int
    agent_name: str | None = None
    response_id: str | None = None
    """Of an LLM span: the gateway's response id, by which it joins its call."""
    tool_name: str | None = None
    tool_call_id: str | None = None
    """The id that the gateway minted, when the framework repeats it."""
    tool_status: ToolStatus = ToolStatus.UNKNOWN
    """Of a tool's span, or of an OTHER one that is the far side of its execution (MCP's server)."""
    tool_status_from: str = ""
    """What the status was read from: `span_status`, `exception`, `attribute`, `result`, `text`; or nothing."""
    error_type: str | None = None
    is_counted: bool = False
    """Its agent host counted it in the end event's `spans_exported`; spans of other processes in the trace are not."""
    proved_by: str = ""
    """The holder (credentials.py) of the credential that it was sent with, as the run's OTLP gateway saw it; empty: it
    came without, past the gateway, or to an episode of no runner."""
    output_digest: str | None = None
    """Of an LLM span: `digest_of` the answer's text, by which a span that names no response may still find its call;
    the text itself stays out of facts. None: no text, several answers, or a text that the span cut."""
    requested_tool_call_ids: tuple[str, ...] = ()
    """Likewise, ids of the tool calls that the answer asks for, as the span repeats them."""
    agent_hints: dict[str, str] = {}
    """Names of the agent at work that a span bears which is no agent's own: rung (`lc_agent_name`, `entity_path`,
    `agent_attribute`) -> name. Never the name of a wrapper: a workflow, a graph, a crew."""
    parent_is_remote: bool = False
    """Its parent is of another process, which may export nothing: nobody waits for it."""
    parent_is_local: bool = False
    """Its parent is of its own process, which will export it once it has ended. Neither: nobody told."""
    rewards: tuple[SpanReward, ...] = ()
    """What it says of its agent's own reward."""
    input_tokens: int | None = None
    """Of an LLM span: the prompt's tokens, and `output_tokens` the answer's, as it counts them; None: it does not."""
    output_tokens: int | None = None
    tool_result: str | None = None
    """Of a tool's span: the first MAX_RESULT characters of what it returned, where the span holds that."""
    is_result_cut: bool = False
    """There was more."""
    http_status: int | None = None
    """Of the HTTP request that it is or serves."""


class CallFact(msgspec.Struct, frozen=True, kw_only=True, tag="call"):
    """One call; `order` is its place among the calls of its key on `llm_calls`."""

    call: CallRecord
    order: int
    """The record's offset on `llm_calls`: ascending within an episode, whose calls lie in one partition whatever is
    added to the topic; meaningless elsewhere."""
    partition: int = 0
    """Of `llm_calls`, in which `order` counts."""
    told: ToldCall | msgspec.UnsetType = msgspec.UNSET
    """What a span, or a log event of it, tells of a call that the gateway did not see; then `call` has no tokens, and
    `order` is when it began."""
    masked: str | msgspec.UnsetType = msgspec.UNSET
    """Of a told call: why it leaves the loss."""


def told_fact(told: ToldCall) -> CallFact:
    """Of a call that a span tells, or an event of it. Its place is its time: what is told again, as by a copied file,
    lies behind nothing."""
    part = hashlib.sha256(msgspec.msgpack.encode(told)).hexdigest()[:16] if told.is_event else ""
    call = CallRecord(
        call_id=CallId(f"{told_call_id(told.trace_id, told.span_id)}{part and '-'}{part}"),
        rollout_id=None,
        attempt_id=None,
        trace_id=told.trace_id,
        parent_span_id=told.span_id,
        policy="",
        purpose=Purpose.UNKNOWN,
        parent_call_id=None,
        shared_tokens=0,
        suffix_ids=b"",
        sampled_ids=b"",
        logprobs=b"",
        versions=(),
        finish_reason=told.finish_reason or "",
        content=None,
        sampling_used=SamplingParameters(temperature=1.0),
        splice=SpliceOutcome(kind="told"),
        started_at_ns=told.started_ns,
        ended_at_ns=told.ended_ns,
    )
    return CallFact(call=call, order=told.started_ns, told=told)


class CallsClosedFact(msgspec.Struct, frozen=True, kw_only=True, tag="calls_closed"):
    """The attempt's calls are complete."""

    closed: CallsClosed


class CallOpenFact(msgspec.Struct, frozen=True, kw_only=True, tag="call_open"):
    """A captured call is in flight."""

    open: CallOpen
    order: int = -1
    """As of a CallFact; -1: an older release did not tell."""
    partition: int = 0


class ContextCallFact(msgspec.Struct, frozen=True, kw_only=True, tag="context_call"):
    """One call that another model answered."""

    call: UpstreamCall
    order: int
    """As of a CallFact."""
    partition: int = 0


class CallEndedFact(msgspec.Struct, frozen=True, kw_only=True, tag="call_ended"):
    """What became of a captured call."""

    ended: CallEnded


class RewardFact(msgspec.Struct, frozen=True, kw_only=True, tag="reward"):
    """One reward from an authorised or unauthorised source; the assembler judges."""

    reward: Reward


class RolloutFact(msgspec.Struct, frozen=True, kw_only=True, tag="rollout"):
    """One rollout event."""

    event: RolloutEvent


class LinkSource(OpenEnum):
    """What names the key of a trace's conversation."""

    ANSWER = "answer"
    """A trace whose model's span repeats the id of a call that bears this trace's key, beside those of other keys: the
    call's client propagated nothing, and the calls go to the spans."""
    CALL = "call"
    """A call with this trace and that key."""
    ID = "id"
    """A span that repeats an id which the gateway minted."""
    CONVERSATION = "conversation"
    """A span's or its resource's conversation id."""
    SESSION = "session"
    """Likewise `session.id`, which some SDKs set for a whole process."""
    HISTORY = "history"
    """A span that repeats such an id of what was said before its own answer. Others' transcripts are handed on, so it
    counts least."""
    UNKNOWN = "unknown"
    """A value of a later release; links nothing."""


MAX_LINKS = 1_000
"""That one trace names, in a record of facts and in all; further ones tell of keys whose calls stay apart."""


class LinkFact(msgspec.Struct, frozen=True, kw_only=True, tag="link"):
    """A captured trace is of a conversation with another key: whoever holds the trace forwards its facts there."""

    trace_id: str
    key: str
    """A rollout id, or 32 hex."""
    source: LinkSource
    minted_id: str | None = None
    """Of `id`: the call or tool call; where no call bears it, the trace's facts join nothing."""


def link_order(link: LinkFact) -> tuple[str, str, str, str]:
    """By which the same of too many links are kept, in whatever order they come."""
    return link.key, link.source.value, link.minted_id or "", link.trace_id


class LogFact(msgspec.Struct, frozen=True, kw_only=True, tag="log"):
    """What a log event tells of the span that it belongs to, here or to come; fields as in SpanFact."""

    trace_id: str
    span_id: str
    """Of the span."""
    event_name: str
    """`gen_ai.choice` or another of GenAI's; empty: several, told as one."""
    agent_name: str | None = None
    response_id: str | None = None
    tool_call_id: str | None = None
    output_digest: str | None = None
    requested_tool_call_ids: tuple[str, ...] = ()
    proved_by: str = ""


Fact = (
    SpanFact
    | CallFact
    | ContextCallFact
    | CallsClosedFact
    | CallOpenFact
    | CallEndedFact
    | RewardFact
    | RolloutFact
    | LinkFact
    | LogFact
)


class Facts(msgspec.Struct, frozen=True, kw_only=True, tag="facts"):
    """A batch of facts of one episode, from one raw record."""

    schema: str = "facts/1"
    episode_id: str
    """Its key, where no runner made it."""
    facts: tuple[Fact, ...]
    forwarded_from: str | None = None
    """The trace whose facts assemble forwarded, with the links that say why; None: normalize made the record."""
    hops: int = 0
    """How often they were forwarded: traces that name each other would hand them on for ever."""


class Close(msgspec.Struct, frozen=True, kw_only=True, tag="close"):
    """A proposal, made by a worker's clock, to close an episode now with what it has."""

    schema: str = "close/1"
    episode_id: str
    reason: str
    """`deadline` (a count stayed incomplete), `idle` (an episode of which no runner spoke fell silent) or `bound` (too
    many were open); of credit `feedback` (people had their time to rate it), `bound` (others need its room) or
    `unclaimed` (feedback that is about no episode, `episode_id` the key of its conversation)."""
    num_records: int = 0
    """Of `idle`: how many records of the episode were folded then; once it has more, it was not silent. 0: any."""
    before: int = 0
    """Of `unclaimed`: what was said of the conversation before this offset of the topic is let go."""


class _Whose(msgspec.Struct, frozen=True, kw_only=True, tag="facts"):
    """The part of Facts that tells whose they are."""

    episode_id: str


_WHOSE = msgspec.msgpack.Decoder(_Whose)

EPISODE_EVENTS: Codec[Facts | Close] = Codec(Facts | Close, released=("facts/1", "close/1"), wire="msgpack")


def whose_facts(value: bytes) -> str:
    """The `episode_id` of encoded Facts, at a tenth of the cost of reading them all."""
    return _WHOSE.decode(value).episode_id


def digest_of(text: str | None) -> str | None:
    """32 hex that stand for an answer's text, spaces around it left out; None for no text. Equal texts, equal digests:
    both sides of a join compute it, the text goes no further."""
    said = (text or "").strip()
    return hashlib.sha256(said.encode("utf-8", "replace")).hexdigest()[:32] if said else None
