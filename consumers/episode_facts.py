"""The facts of an episode that `--where` can ask for, and how they are read off its record: by the index and a replay.

In: a record of `episodes`. Out: `EpisodeFacts`. Pure. Failure: RecordError, as of any reader of the topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tracegrad.schemas.log.made_of import MadeOf, made_of
from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.log.where import Kind
from tracegrad.schemas.reasons import Reason
from tracegrad.schemas.records.episodes import (
    EPISODES,
    AppliedReward,
    ContextCall,
    EpisodeCall,
    ToolExecution,
    why_excluded,
)
from tracegrad.schemas.records.facts import ToolStatus

MAX_WORD = 200
"""Characters of a name: others choose them."""
_MAX_NAMES = 32


class Field(NamedTuple):
    """A fact of an episode that can be asked for."""

    kind: Kind
    meaning: str
    is_many: bool = False
    """It has several values, or none."""


FIELDS = {
    "episode": Field(Kind.TEXT, "its id; that of a rollout's begins with the rollout's"),
    "group": Field(Kind.TEXT, "the group's id; of a captured one the episode's own, under which it would train"),
    "conversation": Field(Kind.TEXT, "of a captured one, the key of its conversation"),
    "task": Field(Kind.TEXT, "the task's id"),
    "policy": Field(Kind.TEXT, "the policy's name"),
    "purpose": Field(Kind.TEXT, "`train`, `validation`; `unknown` of a captured one"),
    "state": Field(Kind.TEXT, "how the attempt ended: `succeeded`, `failed`, `truncated`, `aborted`, ..."),
    "closed_by": Field(Kind.TEXT, "`complete`, `deadline`, `idle` or `bound`"),
    "service": Field(Kind.TEXT, "services whose spans it has", True),
    "agent": Field(Kind.TEXT, "the agent that made the first call, as its spans name it"),
    "agents": Field(Kind.TEXT, "all agents that called", True),
    "tool": Field(Kind.TEXT, "tools that ran", True),
    "paid_by": Field(Kind.TEXT, "rules and sources that rewarded a call: `air:tool_success`", True),
    "rules": Field(Kind.TEXT, "digest of the AIR rules by which it was rewarded"),
    "reward": Field(
        Kind.NUMBER, "the final reward, as the episode closed; what was said behind that counts on `transitions`"
    ),
    "paid": Field(Kind.NUMBER, "sum of what its calls earned beside that"),
    "unscored": Field(Kind.TEXT, "why it has no reward"),
    "calls": Field(Kind.NUMBER, "calls in the record"),
    "turns": Field(Kind.NUMBER, "turns of its conversation"),
    "context_calls": Field(Kind.NUMBER, "what other models answered"),
    "tokens": Field(Kind.NUMBER, "sampled tokens"),
    "spans": Field(Kind.NUMBER, "spans"),
    "tools": Field(Kind.NUMBER, "tools that ran"),
    "tools_succeeded": Field(Kind.NUMBER, "of these, known to have succeeded"),
    "tools_failed": Field(Kind.NUMBER, "of these, known to have failed"),
    "duration_s": Field(Kind.NUMBER, "seconds of the attempt"),
    "attempt": Field(Kind.NUMBER, "its place within its rollout, from 0"),
    "revision": Field(Kind.NUMBER, "how often it was written again"),
    "version": Field(Kind.NUMBER, "the newest version that sampled in it"),
    "first_version": Field(Kind.NUMBER, "the oldest one"),
    "final": Field(Kind.FLAG, "its rollout counts by it; no: a later attempt followed"),
    "captured": Field(Kind.FLAG, "of an agent that no runner started"),
    "rated": Field(Kind.NUMBER, "pieces of feedback that came behind its close, and counted"),
    "step": Field(Kind.NUMBER, "the step that trained it"),
    "excluded": Field(
        Kind.TEXT,
        "why it trained nothing; none: it trained, waits, or is held out; of a conversation `unscored`, "
        "until what was said of it counts",
    ),
}
"""By name, in the order in which they are told."""
KINDS = {name: field.kind for name, field in FIELDS.items()}
"""What a text of terms is parsed against."""
SETTLED = ("rated", "step", "excluded")
"""What the index alone knows: no record of an episode tells it."""
BEFORE = (
    "task", "group", "conversation", "policy", "purpose", "service", "agent", "first_version", "captured", "attempt",
)  # fmt: skip
"""Known before anything was sampled; of agents the one that made the first call, since it chose whom to ask."""


class EpisodeFacts(NamedTuple):
    """One record of `episodes`. What no record of it alone tells, SETTLED, is not here."""

    episode: str
    group: str
    words: tuple[str | None, ...]
    """By WORDS."""
    names: tuple[tuple[str, ...], ...]
    """By NAMES, as often as they occur; `unique_names` of each is what is asked for."""
    numbers: tuple[float | None, ...]
    """By NUMBERS."""
    excluded: str | None
    """Why it trains nothing, as far as the record tells."""
    keys: list[str]
    """Keys other than its id under which facts of it came: its conversation's, traces that were forwarded."""

    def values_of(self, field: str) -> Sequence[str | float | None]:
        """The values of one of FIELDS that is not SETTLED."""
        if field in NAMES:
            return self.names[NAMES.index(field)]
        if field in WORDS:
            return (self.words[WORDS.index(field)],)
        if field in NUMBERS:
            return (self.numbers[NUMBERS.index(field)],)
        return (self.episode if field == "episode" else self.group,)


WORDS = ("task", "conversation", "policy", "purpose", "state", "closed_by", "agent", "rules", "unscored")
NAMES = ("service", "agents", "tool", "paid_by")
NUMBERS = (
    "reward", "paid", "calls", "turns", "context_calls", "tokens", "spans", "tools", "tools_succeeded", "tools_failed",
    "duration_s", "attempt", "revision", "version", "first_version", "final", "captured",
)  # fmt: skip


def read_facts(record: Record, policy: str) -> EpisodeFacts:
    """The facts of a record. Raises RecordError."""
    episode = EPISODES.decode(record.value)
    made = made_of(record.headers, MadeOf)
    if made is not None and made.id != episode.episode_id:
        made = None
    agents: list[str] = []
    tools: list[ToolExecution] = []
    rewards: list[AppliedReward] = []
    versions: list[int] = []
    num_tokens = num_turns = 0
    for call in episode.calls:
        num_tokens += call.num_sampled
        num_turns = max(num_turns, call.turn + 1)
        if call.agent is not None:
            agents.append(call.agent)
        for tool in call.tools:
            if tool.is_proved:
                tools.append(tool)
        rewards += call.rewards
        versions += [span.version for span in call.versions]
    of_calls: tuple[EpisodeCall | ContextCall, ...] = (*episode.calls, *episode.context_calls)
    agents += [call.agent for call in episode.context_calls if call.agent is not None]
    return EpisodeFacts(
        episode.episode_id,
        episode.group.id if episode.group is not None else episode.episode_id,
        (
            episode.task_id, episode.conversation, episode.policy, episode.purpose.value, episode.state.value,
            episode.closed_by, of_calls[0].agent if of_calls else None, episode.air_rules or None,
            episode.unscored or None,
        ),
        (episode.services, tuple(agents), tuple([tool.name for tool in tools]), tuple([one.rule for one in rewards])),
        (
            episode.reward, sum([one.value for one in rewards]), len(episode.calls), num_turns,
            len(episode.context_calls), num_tokens, episode.num_spans, episode.num_tools, episode.num_tools_succeeded,
            len([tool for tool in tools if tool.status is ToolStatus.FAILED]), episode.duration_s,
            episode.attempt_number, made.revision if made else 0, max(versions, default=None),
            min(versions, default=None), episode.is_final, episode.rollout_id is None,
        ),
        (why_excluded(episode, policy) or None) if episode.is_final else Reason.SUPERSEDED,
        [key for key in dict.fromkeys((made.key, *made.parts)) if key != made.id] if made else [],
    )  # fmt: skip


def cut(text: str) -> str:
    """What is kept of a name."""
    return text[:MAX_WORD]


def unique_names(names: Iterable[str]) -> list[str]:
    """As many as are kept, in order."""
    return sorted(set(map(cut, names)))[:_MAX_NAMES]
