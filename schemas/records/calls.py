"""`llm_calls`: what the LLM gateway served, token by token; the truth that training rests on.

One CallRecord per generation, acknowledged by Kafka before its answer leaves the gateway, and one CallsClosed after an
attempt's last call; of a captured agent's call CallEnded tells what became of it. Beside them an UpstreamCall for what
another model answered, which trains nothing. Prompts are stored as a difference: (parent call, shared length, suffix
ids).
"""

from __future__ import annotations

from typing import Any

import msgspec

from ..ids import CallId, key_of
from .codec import Codec, OpenEnum
from .versions import VersionSpan

TOKEN_BYTES = 4
"""Of an id or a logprob in a record."""


class Purpose(OpenEnum):
    """Why a rollout runs."""

    TRAIN = "train"
    """Sampled from the policy; its episodes become transitions."""
    VALIDATION = "validation"
    """Greedy unless configured; ends at `episodes`."""
    UNKNOWN = "unknown"
    """Nobody said: an agent that no runner started (captured); also how a value of a later release is read."""


class CallOutcome(OpenEnum):
    """What became of an answer, as the gateway saw it."""

    DELIVERED = "delivered"
    CLIENT_DISCONNECTED = "client_disconnected"
    """The client was gone before the answer was sent; the call leaves the loss."""
    SUPERSEDED = "superseded"
    """By earlier releases: the client asked the same again and got that answer; this one leaves the loss."""
    UNKNOWN = "unknown"

    @property
    def is_taken(self) -> bool:
        """Whether the client went on with the answer, as far as anybody knows."""
        return self not in (CallOutcome.CLIENT_DISCONNECTED, CallOutcome.SUPERSEDED)

    @property
    def known(self) -> int:
        """How much it tells, when several are told of one call: that it was superseded is known last."""
        return _BY_KNOWLEDGE.index(self)


_BY_KNOWLEDGE = (
    CallOutcome.UNKNOWN,
    CallOutcome.CLIENT_DISCONNECTED,
    CallOutcome.DELIVERED,
    CallOutcome.SUPERSEDED,
)


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """One tool call in an answer; `id` was minted by the gateway, `arguments` is the text as sampled."""

    id: str
    name: str
    arguments: str


class SamplingParameters(msgspec.Struct, frozen=True, kw_only=True):
    """What was really used to sample."""

    temperature: float
    top_p: float = 1.0
    top_k: int = 0
    """0 means all tokens."""
    min_p: float = 0.0
    max_tokens: int | None = None
    """None: up to the context window."""
    stop: tuple[str, ...] = ()
    seed: int | None = None


class SpliceOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How the prompt continues what was sampled before in this episode."""

    kind: str
    """`first` (no earlier call), `extended` (starts with the parent's prompt + sampled ids), `new_segment`."""
    reason: str = ""
    """Why a new segment started: `answer_changed`, `history_dropped`, `no_match`, ...; empty otherwise."""


class Claims(msgspec.Struct, frozen=True, kw_only=True):
    """The identity claims as received, before the gateway judged them; see producers/llm_gateway/identity.py."""

    path: str | None = None
    api_key: str | None = None
    """Only the `rt-` form is kept; never a real key."""
    header: str | None = None
    baggage: str | None = None
    traceparent: str | None = None


class CallRecord(msgspec.Struct, frozen=True, kw_only=True, tag="call"):
    """One finished generation.

    Example: CallRecord(call_id="chatcmpl-5f0c...", rollout_id="1f2e...", attempt_id="9a3c", policy="policy",
    purpose="train", parent_call_id=None, shared_tokens=0, suffix_ids=b"...", sampled_ids=b"...", ...)
    """

    schema: str = "call/1"
    call_id: CallId
    """Also the response id that the agent saw."""
    rollout_id: str | None
    """None for a captured agent without a rollout."""
    attempt_id: str | None
    trace_id: str | None
    """From `traceparent`; the episode's key when there is neither rollout nor conversation."""
    parent_span_id: str | None
    """16 hex: the caller's span, from `traceparent`."""
    policy: str
    purpose: Purpose
    parent_call_id: CallId | None
    """The earlier call of this episode whose prompt + sampled ids the prompt shares a prefix with."""
    shared_tokens: int
    """Length of that prefix: 0 without a parent."""
    suffix_ids: bytes
    """int32 LE: prompt ids after the shared prefix."""
    sampled_ids: bytes
    """int32 LE [T], the terminal stop token included when it was sampled."""
    logprobs: bytes
    """float32 LE [T], of the sampling distribution at the temperature used."""
    versions: tuple[VersionSpan, ...]
    """Of a trained policy they are complete (`versions.are_complete`); empty when an engine bore another label."""
    finish_reason: str
    """`stop`, `length` or `tool_calls`, as the agent saw it."""
    content: str | None
    """The answer's text as the agent saw it."""
    tool_calls: tuple[ToolCall, ...] = ()
    sampling_asked: dict[str, Any] = {}
    """The request's sampling fields as received."""
    sampling_used: SamplingParameters
    is_constrained: bool = False
    """A grammar or a logit filter was active: the logprobs are not the policy's; leaves the loss."""
    is_truncated: bool = False
    """Cut at the token limit: the message's end was not the policy's; leaves the loss unless `[select] truncated` says
    otherwise. Releases without `stop_text` set it at a stop string too, with the finish reason `stop`."""
    splice: SpliceOutcome
    claims: Claims = Claims()
    engine_id: str = ""
    started_at_ns: int = 0
    """Gateway's clock, for people; order is the record's order on the topic."""
    ended_at_ns: int = 0
    conversation_key: str | None = None
    """Of a captured agent: 32 hex, of the conversation id that it named (`ids.conversation_key`; the id itself is not
    recorded), or of the earlier call that its messages continue; the episode's key then."""
    num_choices: int = 1
    """How many answers its request asked for. Of several, each has a record, and only one that the agent went on from,
    or that a reward names, stays in the loss."""
    is_cut: bool = False
    """The agent saw less than was sampled: a stop string, dropped tool calls. This and the next: of attempts alone."""
    reasoning: str | None = None
    """What the agent saw of the model's thoughts, which graders see too."""
    answers_user: bool = False
    """The request's last message is a user's: with it begins what feedback on the next answers is about."""
    stop_text: str = ""
    """The stop string that ended it, and what its last token held behind that; empty: none did."""

    @property
    def key(self) -> str:
        """By which it lies on the topic, in order with the others of that key."""
        return key_of(self.rollout_id, self.conversation_key, self.trace_id)

    @property
    def met_limit(self) -> bool:
        """Whether the token limit ended it, whichever release recorded it."""
        return self.is_truncated and self.finish_reason != "stop"

    @property
    def num_sampled(self) -> int:
        """Sampled tokens."""
        return len(self.sampled_ids) // TOKEN_BYTES

    def __repr__(self) -> str:
        return f"CallRecord({self.call_id}, {self.num_sampled} sampled tokens)"


class CallsClosed(msgspec.Struct, frozen=True, kw_only=True, tag="calls_closed"):
    """An attempt's calls are complete: `outcomes` names every one of them."""

    schema: str = "calls_closed/1"
    rollout_id: str
    attempt_id: str
    outcomes: dict[str, CallOutcome]
    """Call id -> outcome; its length is the number of calls."""


class CallOpen(msgspec.Struct, frozen=True, kw_only=True, tag="call_open"):
    """A captured call that lasts: its episode is not over, however silent it is. It is no call; its record, or
    CallEnded, ends it."""

    schema: str = "call_open/1"
    call_id: CallId
    """Of its record, if it comes to that."""
    rollout_id: str | None = None
    """These four as in CallRecord."""
    attempt_id: str | None = None
    trace_id: str | None = None
    conversation_key: str | None = None
    started_at_ns: int = 0

    @property
    def key(self) -> str:
        """As CallRecord.key."""
        return key_of(self.rollout_id, self.conversation_key, self.trace_id)


class CallEnded(msgspec.Struct, frozen=True, kw_only=True, tag="call_ended"):
    """What became of a captured call, told after its answer was sent or could not be; of an attempt's calls its end
    tells it. Of several for one call the one that tells most counts, in the order of CallOutcome.known."""

    schema: str = "call_ended/1"
    call_id: CallId
    rollout_id: str | None = None
    """These four as in CallRecord."""
    attempt_id: str | None = None
    trace_id: str | None = None
    conversation_key: str | None = None
    outcome: CallOutcome = CallOutcome.UNKNOWN
    """Of the call with this id; `unknown`: it has no record."""
    reason: str = ""
    """Why it has none: the class of the error."""


class UpstreamCall(msgspec.Struct, frozen=True, kw_only=True, tag="upstream_call"):
    """A request that the gateway passed on to another model: context of the episode, never trained. No content.

    Written as well as can be: the answer does not wait for Kafka, so a record may be missing, and is then counted.
    """

    schema: str = "upstream_call/1"
    call_id: CallId
    """Drawn by the gateway; nobody else has seen it."""
    rollout_id: str | None
    attempt_id: str | None
    trace_id: str | None
    parent_span_id: str | None
    """These four as of a CallRecord."""
    upstream: str
    """Its name in the settings."""
    route: str
    """Such as `/v1/chat/completions`."""
    model: str
    """As the agent asked for it."""
    answered_model: str | None = None
    """As the upstream names what answered."""
    status: int
    """HTTP's, as the agent saw it; 502 and 504 also when the upstream gave none."""
    outcome: CallOutcome
    response_id: str | None = None
    """The upstream's own, which spans repeat."""
    tool_call_ids: tuple[str, ...] = ()
    """Likewise, the first few."""
    prompt_tokens: int | None = None
    sampled_tokens: int | None = None
    """As the upstream counts them; None: it did not say, or the answer was too long to look for it."""
    claims: Claims = Claims()
    conversation_key: str | None = None
    """As of a CallRecord."""
    started_at_ns: int = 0
    ended_at_ns: int = 0

    @property
    def key(self) -> str:
        """As CallRecord.key."""
        return key_of(self.rollout_id, self.conversation_key, self.trace_id)


LlmCall = CallRecord | CallsClosed | CallOpen | CallEnded | UpstreamCall
LLM_CALLS: Codec[LlmCall] = Codec(
    LlmCall, released=("call/1", "calls_closed/1", "call_open/1", "call_ended/1", "upstream_call/1"), wire="msgpack"
)
