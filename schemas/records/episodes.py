"""`episodes`: the record of one finished attempt, spans and calls joined, rewards applied; and the closed markers."""

from __future__ import annotations

import msgspec

from ..reasons import Reason
from .calls import TOKEN_BYTES, CallOutcome, Purpose, SpliceOutcome, ToolCall
from .codec import Codec
from .facts import Close, ToolStatus
from .rollouts import GroupRef, Reward, RolloutState, is_usable
from .versions import VersionSpan

AIR_RULE = "air:"
"""Begins the name of an automatic reward."""


class AppliedReward(msgspec.Struct, frozen=True, kw_only=True):
    """One reward that counts, with the rule or source it came from."""

    rule: str
    """AIR_RULE and the rule's name, or the reward's name (`reward`)."""
    value: float

    @property
    def is_automatic(self) -> bool:
        """Whether a rule paid it; else somebody said it."""
        return self.rule.startswith(AIR_RULE)


class ToolExecution(msgspec.Struct, frozen=True, kw_only=True):
    """One tool span, joined to the call that asked for it."""

    span_id: str
    name: str
    status: ToolStatus
    status_from: str
    tool_call_id: str | None = None
    """Of the request that it was joined to."""
    error_type: str | None = None
    is_proved: bool = True
    """False: of a runner's episode, and nobody saw that its agent said so; it is shown, and pays nothing."""
    has_id: bool = True
    """The span itself bears that id; False: joined by the tool's name and the time, because it bears none."""
    result: str | None = None
    """What it returned, as its span tells: a text, or JSON; None: no span of it holds its content."""
    is_result_cut: bool = False
    """The result was longer than MAX_RESULT; this is its beginning."""
    duration_s: float | None = None
    """Of its span; None: it never ended."""
    http_status: int | None = None
    """Of the last HTTP request that it made, by its own span or one below; None: none is known."""


class EpisodeCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call of the episode, in order; ids are bytes as in CallRecord (base64 in JSON)."""

    call_id: str
    turn: int
    """The call's index within its agent, from 0."""
    agent: str | None
    """From the spans; None when no span was matched."""
    joined_by: str
    """Which rung of the cascade matched: `response_id`, `traceparent`, `content`, `tool_call_id`, `none`."""
    policy: str
    parent_call_id: str | None
    shared_tokens: int
    suffix_ids: bytes
    sampled_ids: bytes
    logprobs: bytes
    versions: tuple[VersionSpan, ...]
    temperature: float
    finish_reason: str
    content: str | None
    tool_calls: tuple[ToolCall, ...] = ()
    outcome: CallOutcome = CallOutcome.UNKNOWN
    masked: str = ""
    """Why the call leaves the loss: `constrained`, `cut_sampling` (from a part of the tokens), `truncated`,
    `client_disconnected`, `superseded`, `outcome_unknown`, `missing_parent` (its prompt rests on a call that is not
    here before it), `not_chosen` (one of several answers to a request, of which the agent made nothing); else empty."""
    splice: SpliceOutcome
    tools: tuple[ToolExecution, ...] = ()
    rewards: tuple[AppliedReward, ...] = ()
    """Intermediate rewards that this call earned (AIR, or rewards that target it)."""
    answers_user: bool = False
    """As CallRecord.answers_user."""
    named_by: str = ""
    """What named the agent: `agent_span`, `lc_agent_name`, `entity_path`, `agent_attribute`, `sole_agent`; `conflict`
    where names disagree and so none counts, `unnamed` where an agent's own span has none; empty when nothing told."""
    started_at_ns: int = 0
    ended_at_ns: int = 0
    """Both as in CallRecord: how long it took; its tokens are its ids, 4 bytes each."""
    unparsable: tuple[str, ...] = ()
    """Those of `tool_calls`, by id, whose arguments are no JSON object."""
    repeated: tuple[str, ...] = ()
    """Those, by id, for which its agent had asked before in the episode, with equal arguments, in an answer that it
    took."""

    @property
    def num_sampled(self) -> int:
        """As CallRecord.num_sampled."""
        return len(self.sampled_ids) // TOKEN_BYTES


class ContextCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call that another model answered: shown, never trained. No content.

    Example: ContextCall(call_id="chatcmpl-5f0c...", upstream="api.openai.com", model="gpt-4o", agent="planner", ...)
    """

    call_id: str
    """These as in UpstreamCall."""
    upstream: str
    route: str
    model: str
    answered_model: str | None = None
    status: int
    outcome: CallOutcome
    response_id: str | None = None
    prompt_tokens: int | None = None
    sampled_tokens: int | None = None
    started_at_ns: int = 0
    ended_at_ns: int = 0
    agent: str | None = None
    """These three as in EpisodeCall."""
    joined_by: str = "none"
    named_by: str = ""


class Episode(msgspec.Struct, frozen=True, kw_only=True):
    """One finished attempt. Example: Episode(episode_id="1f2e...9a3c", state="succeeded", reward=1.0, ...)."""

    schema: str = "episode/1"
    episode_id: str
    rollout_id: str | None
    attempt_id: str | None
    attempt_number: int = 0
    """The attempt's place within its rollout, from 0."""
    group: GroupRef | None
    task_id: str | None
    policy: str | None
    purpose: Purpose
    state: RolloutState
    """How the attempt ended; `unknown` for an agent without runner."""
    is_final: bool
    """The episode by which its rollout counts; False: superseded by a later attempt."""
    error: str | None = None
    closed_by: str
    """`complete`, `deadline`, `idle` or `bound` (too many episodes were open)."""
    services: tuple[str, ...] = ()
    calls: tuple[EpisodeCall, ...]
    rewards: tuple[Reward, ...] = ()
    """Authorised rewards, scored or not."""
    reward: float | None
    """The final reward: the sum of the authorised episode rewards; None when unscored."""
    unscored: str = ""
    """Why there is no reward."""
    num_spans: int = 0
    num_unproved_spans: int = 0
    """Of these, in a runner's episode: those not known to be its agent's."""
    num_tools: int = 0
    """Executions, those of unproved spans left out."""
    num_tools_succeeded: int = 0
    num_unauthorised_rewards: int = 0
    duration_s: float | None = None
    calls_omitted: str = ""
    """Why the calls that it made are not in the record: `too_large` (for a message), `too_many_open_bytes` (credit had
    no room for them); else empty."""
    num_joined_by: dict[str, int] = {}
    """Calls by `joined_by`."""
    num_named_by: dict[str, int] = {}
    """Calls by `named_by`; `none` where nothing told."""
    conversation: str | None = None
    """Of a captured episode: the key of its conversation; later episodes of the conversation have it too."""
    began_at_ms: int = 0
    """Of a captured episode: when its first call began, by the gateway's clock; 0: it has none."""
    air_rules: str = ""
    """Digest of the rules by which its calls were rewarded; empty: none."""
    context_calls: tuple[ContextCall, ...] = ()
    """What other models answered, in the order of the records; as many as were recorded before it closed."""
    output: str | None = None
    output_sha256: str | None = None
    """Both as in RolloutEvent: what the agent returned, so that it can be graded again; its task's input and what was
    expected stand on `rollouts`, under its rollout id."""
    are_links_cut: bool = False
    """Its trace named more than MAX_LINKS (facts.py) conversations and ids: calls of some may lie in other episodes."""

    @property
    def is_rated(self) -> bool:
        """Whether somebody said what it, or an answer in it, was worth."""
        return is_usable(self.reward) or any(not one.is_automatic for call in self.calls for one in call.rewards)

    def __repr__(self) -> str:
        return f"Episode({self.episode_id}, {self.state}, {len(self.calls)} calls, reward={self.reward})"


def why_excluded(episode: Episode, policy: str) -> str:
    """Why the rollout cannot train `policy`, judged before its tokens are looked at; empty when it can.

    Of several reasons the one nearest to the cause is told: an attempt of ours that broke off (`aborted`, `given_up`),
    one of which nobody said how it ended (`unknown_state`; of a conversation nobody does), one whose calls had no room
    (`calls_omitted`), one that never called the policy (`no_calls`: whatever its grader made of it, the agent spoke to
    another endpoint, or to none), and last one without a score (`unscored`).
    """
    if episode.state in (RolloutState.ABORTED, RolloutState.GIVEN_UP):
        return episode.state.value
    if not episode.state.is_end and episode.rollout_id is not None:
        return Reason.UNKNOWN_STATE
    if episode.calls_omitted:
        return episode.calls_omitted
    if all(call.policy != policy for call in episode.calls):
        return Reason.NO_CALLS
    return "" if is_usable(episode.reward) else Reason.UNSCORED


FEEDBACK = "feedback"
"""Why credit's clock proposes to close a conversation: people had their time to rate it."""
LATE = "late"
"""Of a marker on `closed_groups` that closes nothing: it names feedback that is for nothing."""
UNCLAIMED = "unclaimed"
"""Likewise: what they said is about nothing that waits."""


class Score(msgspec.Struct, frozen=True, kw_only=True, tag="score"):
    """Feedback on a captured conversation that came when an episode of it had closed."""

    schema: str = "score/1"
    key: str
    """Of the conversation."""
    reward: Reward


class EmittedEpisode(msgspec.Struct, frozen=True, kw_only=True, tag="emitted"):
    """An episode of a captured conversation is on `episodes`: in the order of this topic's partition, what is said of
    the conversation may be about it, unless it was let go before."""

    schema: str = "emitted/1"
    key: str
    """Of the conversation."""
    episode_id: str


class ClosedMarker(msgspec.Struct, frozen=True, kw_only=True):
    """An episode or group is closed; facts that come later are late. Kept longer than the input."""

    schema: str = "closed/1"
    id: str
    disposition: str
    """`emitted`, `not_selected`, `unattributed` or `forwarded` (to the key of its conversation); of a conversation's
    group `unscored` too; LATE."""
    num_calls: int = 0
    forwarded_to: str | None = None
    """The key to which its facts went, and later ones go."""
    key: str | None = None
    """Of a captured conversation, which may go on in a later episode."""
    last_orders: tuple[tuple[int, int], ...] = ()
    """Of the calls with its key that it held: (partition of `llm_calls`, the last place there); a later request lies
    behind it."""
    traces: tuple[tuple[str, int, int], ...] = ()
    """Likewise of those with another key, the trace's that was forwarded to it, whose places say nothing of others'
    calls: (key, partition, the last place there); (key, -1, -1) of a trace that brought none."""
    heard: tuple[str, ...] = ()
    """Of a captured episode, or the group that it is: the feedback that is on it, by `piece_id`."""

    def last_order(self, key: str, partition: int) -> int:
        """The last place in a partition of the calls with a key that it held; -1: it held none."""
        if key == (self.key or self.id):
            return dict(self.last_orders).get(partition, -1)
        return max((order for trace, there, order in self.traces if (trace, there) == (key, partition)), default=-1)


EPISODES: Codec[Episode] = Codec(Episode, released=("episode/1",), wire="json")
EPISODE_SCORES: Codec[Score | EmittedEpisode | Close] = Codec(
    Score | EmittedEpisode | Close, released=("score/1", "emitted/1", "close/1"), wire="json"
)
CLOSED: Codec[ClosedMarker] = Codec(ClosedMarker, released=("closed/1",), wire="json")
