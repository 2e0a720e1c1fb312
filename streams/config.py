"""What the streams are told: `[streams]` and `[select]` of the settings file, and the rules of a run.

In: compose hands them over. Out: `StreamRules`, all that the three folds decide by; where a worker finds Kafka is the
shell's own (`shell/config.py`). Invariant: plain data (JSON-able), checked when it is made; what cannot work is a
ConfigurationError with the key and the remedy.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.ids import RunHash, parse_run_hash
from tracegrad.schemas.section import Count, File, Folder, Function, Seconds, Section

from .assemble.air.rules import AirConfig
from .credit.config import CreditConfig
from .normalize.reading.judge_tool import ToolRule


class SelectConfig(Section, frozen=True, kw_only=True):
    """`[select]`: which calls of its episodes a run trains, and which episodes it takes besides those of its own
    rollouts; the rest is `not_selected`.

    An episode without a rollout is taken when `capture_all` is set, or when `services` or `agents` name
    something and each of the two that is not empty matches one of the episode's. Judged after the join.
    """

    truncated: Literal["mask", "train"] = "mask"
    """Answers that the token limit cut, also those of rollouts: they are context alone, for the policy did not choose
    where they end, or they train as all others (TRL's default, `mask_truncated_completions = False`)."""
    train: bool = False
    """Train on the episodes without a rollout that people rated (docs/feedback.md): each is a group of its own. Such a
    run has held-out [tasks] alone."""
    unscored: Literal["drop", "air"] = "drop"
    """Of such a run the conversations that nobody rated: they train nothing, or `air` alone pays them, by which a
    policy may learn to earn nothing else."""
    sampling: Literal["forced", "asked"] = "forced"
    """Of such a run: calls are sampled as `[policy]` says, or as the agent asks. Then those that are cut (top_p, top_k,
    min_p, logit_bias) train nothing."""
    capture_all: bool | None = None
    """Every episode without a rollout, whatever its service and agent; None: `up` does, when no other key of this
    section names anything, for it is there to show what arrives; `train` does not."""
    runs: tuple[Folder, ...] = ()
    """Other runs whose rollouts are taken too, as a replay takes those of the run it replays: their folders, or copies
    of their `key.json`, for what they wrote counts by their key."""
    services: tuple[str, ...] = ()
    """Globs on `service.name`."""
    agents: tuple[str, ...] = ()
    """Globs on agent names."""
    from_ns: int | None = None
    """Only episodes without a rollout whose first span or call began at or after this time (unix ns)."""
    until_ns: int | None = None
    """Only those that began before this time."""


class HistoryConfig(Section, frozen=True, kw_only=True):
    """`[history]`: of a replay, which calls count that spans tell and that no LLM gateway of ours saw
    (docs/history.md). A live run reads no content of spans, whatever stands here."""

    models: tuple[str, ...]
    """Globs on the models whose answers are to be learned, as requests name them; `replay --dry-run` lists them."""
    agents: tuple[str, ...] = ()
    """Globs on the agents that asked; none: all."""
    services: tuple[str, ...] = ()
    """Globs on `service.name`; none: all."""
    tools: File | None = None
    """A JSON file: glob on agents -> their tools as OpenAI's definitions, an empty list for none. Only of calls whose
    tools nobody told."""
    tasks: File | None = None
    """As `[tasks] file`: what was to be answered, by its input."""
    task: Function | None = None
    """`file.py:function` that is given the messages of an episode's first call, dictionaries of role, content and what
    else they have, and returns the task's input, a text; none: the first message of the user."""
    rewards: File | None = None
    """JSON lines or CSV: one of response_id, span_id, trace_id, conversation; name, value."""
    temperature: float | None = None
    """Of calls whose token ids are told without it."""
    logprobs: Literal["raw", "processed"] = "raw"
    """Those that are told are of before temperature, top_p and the like, as vLLM's are by default, or of behind."""
    max_call_bytes: Count = 256 * 1024
    """Of what is told of one call; one with more is context alone (`history_cut`)."""


class ServiceConfig(Section, frozen=True, kw_only=True):
    """`[streams.services."name"]`: how long episodes that we did not start are waited for, by the `service.name` of
    their spans; of several services the longest.

    Example: ServiceConfig(idle_s=60.0).
    """

    idle_s: Seconds | None = None
    """As `[streams] idle_s`."""
    deadline_s: Seconds | None = None
    """As `[streams] captured_deadline_s`."""


class StreamsConfig(Section, frozen=True, kw_only=True):
    """`[streams]`: the workers of normalize, assemble and credit.

    What exceeds a bound on memory is a dead letter with the bound's name as its reason, unless its key says otherwise.
    """

    workers: Count = 1
    """Processes per stage."""
    deadline_s: Seconds = 5.0
    """After an attempt's end: how long lost or uncounted spans and calls are waited for."""
    incomplete_s: Seconds = 60.0
    """After an attempt's end: how long counted ones are waited for; a safety net, for they were acknowledged."""
    idle_s: Seconds = 10.0
    """Silence after which an episode of an agent without runner closes, unless the agent is still at work: a call above
    5 s is in flight, or a span has come whose parent, in the same process, has not."""
    captured_deadline_s: Seconds = 1800.0
    """The longest that it stays open, from its first fact on; what comes later makes another episode."""
    services: dict[str, ServiceConfig] = msgspec.field(default_factory=dict)
    """Other times for the agents of some services, by `service.name`."""
    orphan_s: Seconds = 600.0
    """Silence after which a rollout's episode closes of which no runner ever spoke; one of spans alone is let go. Long:
    its events may be late, since they travel on another topic than its spans."""
    tools: tuple[ToolRule, ...] = ()
    """How the results of some tools are read; the first rule that matches a tool is its own."""
    max_open_episodes: Count = 20_000
    """Per worker. Above 90 % the longest-silent episode without runner is proposed for closing (`bound`);
    at the bound, facts that would open another episode are dead letters (`too_many_open`)."""
    max_stray_traces: Count = 10_000
    """Per worker, besides: traces of which nothing but spans has come. Beyond it, or `max_bytes_per_episode` in all,
    the longest-silent one is let go, without a close."""
    max_calls_per_episode: Count = 20_000
    """Further ones are dead letters (`too_many_calls`) and the episode closes by deadline. Spans take none of it."""
    max_spans_per_episode: Count = 20_000
    """And rewards; further ones are dead letters (`too_many_spans`) and the episode closes by deadline, all of its
    calls in it."""
    max_bytes_per_episode: Count = 64 * 1024 * 1024
    """Of the records of its calls, and as much of its spans and rewards; further ones are dead letters
    (`too_many_bytes`)."""
    max_open_bytes: Count = 1024 * 1024 * 1024
    """Per worker, of the records of all open episodes, of which spans and rewards get three quarters, and those that
    came into a runner's episode without a credential one; further ones are dead letters (`too_many_open_bytes`). In
    credit of all open groups; a further episode joins its group without its calls. In memory they take up to three
    times that, and up to 3 kB more for each episode or group."""
    max_open_groups: Count = 4_096
    """Per worker; beyond it the group that is open longest closes with the members that it has."""
    max_closed_ids: Count = 1_000_000
    """Closed ids remembered per worker; beyond it the oldest are forgotten, counted. About 120 bytes each."""

    @property
    def least_idle_s(self) -> float:
        """The shortest silence that closes an episode of anybody's agent."""
        own = (service.idle_s for service in self.services.values())
        return min([self.idle_s, *(idle_s for idle_s in own if idle_s is not None)])


class StreamRules(msgspec.Struct, frozen=True, kw_only=True):
    """What the folds decide by: four sections, and whose episodes and rewards are the run's."""

    run_hash: RunHash
    """8 hex; rollout ids and trace ids that begin with it are the run's own."""
    policies: tuple[str, ...]
    """Trained policies; a policy's index is its partition of `transitions`. Calls of others are context."""
    reward_sources: tuple[str, ...]
    """Globs on the sources whose rewards count."""
    feedback_wait_s: float = 0.0
    """With `select.train`: how long a conversation waits for feedback once its episode has closed."""
    streams: StreamsConfig = StreamsConfig()
    air: AirConfig = AirConfig()
    credit: CreditConfig = CreditConfig()
    select: SelectConfig = SelectConfig()
    history: HistoryConfig | None = None
    """Of a replay: spans tell calls."""
    selected: tuple[str, ...] = ()
    """Hashes of the runs that `select.runs` names."""

    @property
    def runs(self) -> frozenset[str]:
        """Hashes of the runs whose rollouts this run takes: its own and those selected."""
        return frozenset((self.run_hash, *self.selected))

    def __post_init__(self) -> None:
        for run in self.runs:
            try:
                parse_run_hash(run)
            except ValueError as error:
                raise ConfigurationError(f"run_hash: {error}") from None
        if not self.policies or len(set(self.policies)) != len(self.policies):
            raise ConfigurationError("policies: expected one or more distinct names; name each trained policy once")
