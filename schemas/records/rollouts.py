"""`rollouts` (what to run), `rollout_events` (what became of it) and `rewards` (what it was worth)."""

from __future__ import annotations

import hashlib
from typing import Any, Literal

import msgspec

from .calls import Purpose
from .codec import Codec, OpenEnum

MAX_REWARD = 1e12
"""A greater one is a grader's fault; sums of usable rewards stay finite."""

AGENT_SOURCE = "agent"
"""Source of what an agent says of itself; counts with `[reward] trust_agent` alone."""
AGENT_REWARD = "agent"
"""Name of that reward, beside the grader's. `agent.<name>` are further dimensions, shown and never summed."""
FEEDBACK_SOURCE = "feedback"
"""Source of what the people say whom an agent works for, and of what judges it later; by the rewards gateway."""

MAX_GIVEN_UP = 3
"""Times that a rollout is given up, each as an attempt of its own, before its group counts as lost: an event can be
lost as the episode was."""

MAX_GATEWAYS = 10
"""Attempts of a rollout that do not count since the LLM gateway's end aborted them: one that dies by what the rollout
asks of it would else die for ever."""

MAX_OUTPUT = 16 * 1024
"""Bytes of JSON of what an agent returned that stay on the log, so that it can be graded again."""

PeersRule = Literal["turn_or_end", "turn", "rollout"]
"""Whom a turn is compared with in the group's other rollouts, never with another agent's turns: the same turn of its
agent, or, where a member has none, that member's final reward; the same turn alone; all turns of its agent."""


class GroupRef(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout's place in its group."""

    id: str
    size: int
    """k, the number of rollouts of the same task."""
    member: int
    """0 .. size - 1."""
    index: int
    """The group's number in order of admission, per purpose, from 0."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on one attempt and on the retries of a rollout."""

    time_s: float = 300.0
    """Wall-clock seconds of one attempt; beyond it the attempt is `truncated`."""
    max_attempts: int = 3
    """Tries of a rollout whose attempts were aborted by our own faults; see RolloutEvent.gateway_replaced."""


class RolloutRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout to run. The agent is given `{id: task_id, input}` only; `expected` is the grader's."""

    schema: str = "rollout/1"
    rollout_id: str
    group: GroupRef
    task_id: str
    input: Any
    expected: Any = None
    policy: str
    purpose: Purpose
    limits: Limits = Limits()
    rewards_awaited: tuple[str, ...] = ()
    """Names of the rewards without which the episode does not close."""
    created_at_ms: int = 0


class RolloutState(OpenEnum):
    """Where an attempt, or its rollout, stands."""

    STARTED = "started"
    """The attempt begins. The first `started` of an attempt number wins; a later writer withdraws."""
    SUCCEEDED = "succeeded"
    """The agent returned an output; it may still be wrong."""
    FAILED = "failed"
    """The agent ended by an error that the model's output led to; graded."""
    TRUNCATED = "truncated"
    """A limit ended it; graded."""
    ABORTED = "aborted"
    """Engine, gateway or runner ended it; retried as a new attempt, never graded."""
    GIVEN_UP = "given_up"
    """No further attempt will be made and none has ended; written by tasks or the runner."""
    UNKNOWN = "unknown"

    @property
    def is_end(self) -> bool:
        """Whether no later event of the same attempt follows."""
        return self not in (RolloutState.STARTED, RolloutState.UNKNOWN)


class RolloutEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A change of an attempt's state. Repeats what later stages need, so that they read no other topic."""

    schema: str = "rollout_event/1"
    rollout_id: str
    attempt_id: str
    """`0000` (ids.GIVEN_UP_ATTEMPT) when a rollout is given up without an attempt; drawn when it is given up again."""
    attempt_number: int
    """The attempt's place within the rollout, from 0; two writers may claim one, see `RolloutState.STARTED`."""
    state: RolloutState
    is_final: bool = False
    """No further attempt of this rollout follows."""
    error: str | None = None
    """Why, for people; at most 2,000 characters, no payloads."""
    spans_exported: int | None = None
    """Spans of this attempt that were exported with success; None: not counted (a command)."""
    spans_lost: int = 0
    calls_closed: bool = True
    """Whether the gateway appended `calls_closed` for this attempt (False when it had forgotten it)."""
    rewards_awaited: tuple[str, ...] = ()
    group: GroupRef
    task_id: str
    policy: str
    purpose: Purpose
    at_ms: int = 0
    """The writer's clock, for people."""
    duration_s: float | None = None
    """Of the attempt, at its end."""
    spans_marked: bool = False
    """Whether each span in `spans_exported` says on its resource that it was counted (`attributes.COUNTED_SPAN`).
    False in records of runners that did not mark them: there every span of the episode has to be taken for one."""
    host: str | None = None
    """At the end: the agent host that worked on the attempt (`rh-`, credentials.py), whose spans are the attempt's own;
    None: a command, or nobody."""
    output: str | None = None
    """At the end of an attempt that is graded: what the agent returned, which the grader saw, as JSON. None: nobody
    asked, or it has more than MAX_OUTPUT bytes."""
    output_sha256: str | None = None
    """Of that JSON, where it is longer."""
    gateway_replaced: bool = False
    """At the end of an aborted attempt: the process of the LLM gateway at which it began is gone. It does not count
    against `Limits.max_attempts`, up to MAX_GATEWAYS of a rollout."""


class Reward(msgspec.Struct, frozen=True, kw_only=True):
    """One judgement of an attempt; `value` None means unscored, with its reason, and is never read as 0."""

    schema: str = "reward/1"
    rollout_id: str
    """Empty, as the attempt: of a captured episode."""
    attempt_id: str
    name: str
    """`reward` unless the grader returned a dict of names; `agent` and `agent.<name>` are the agent's own."""
    value: float | None
    reason: str = ""
    """Why there is no value; of feedback, what its giver wrote beside it."""
    target: str | None = None
    """None: the episode; else the id of a call, or of a tool call that a call asked for."""
    source: str
    """`grader:<name>`, `agent` (the agent itself), `anonymous` (somebody without a credential), `feedback`; only
    sources that the configuration lists count."""
    idempotency_key: str
    """rollout, attempt and name, and of a call its id, joined by `/`; of feedback its giver's own: what comes under one
    key revises."""
    at_ms: int = 0
    conversation_key: str | None = None
    """Of feedback on what no runner started: the key of the conversation, or the trace, that it is about."""


def piece_id(reward: Reward) -> str:
    """16 hex that stand for a piece of feedback, whatever its value: what is said under one key of one thing."""
    about = reward.target or reward.conversation_key or f"{reward.rollout_id}/{reward.attempt_id}"
    return hashlib.sha256(f"{reward.idempotency_key}\0{about}".encode()).hexdigest()[:16]


def is_usable(value: float | None) -> bool:
    """Whether a reward's value is a finite number of sane size."""
    return value is not None and abs(value) <= MAX_REWARD


ROLLOUTS: Codec[RolloutRequest] = Codec(RolloutRequest, released=("rollout/1",), wire="json")
ROLLOUT_EVENTS: Codec[RolloutEvent] = Codec(RolloutEvent, released=("rollout_event/1",), wire="json")
REWARDS: Codec[Reward] = Codec(Reward, released=("reward/1",), wire="json")
