"""The topic registry: the only place that names topics, their keys, partitions and settings.

Raw topics are shared facts and bear the prefix only; all others belong to a run: `<prefix><run>.<name>`. Consumer
groups are `<prefix><run>.<stage>`. A writer takes a record's key from the function that REGISTRY names: records that
have to stay in order, or that compaction or a marker has to find again, have one key. docs/topics.md is made of this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum

import msgspec

from . import keys
from .errors import ConfigurationError, RecordError
from .ids import RunName
from .reasons import Reason

MAX_MESSAGE_BYTES = 8 * 1024 * 1024
"""`max.message.bytes` of a topic, unless its spec or `[kafka.max_message_bytes]` says otherwise."""
MAX_CLIENT_BYTES = 64 * 1024 * 1024
"""The greatest record that clients send: brokers and clients take no request of 100 MB unless told so."""
_FRAME_BYTES = 64 * 1024
"""Of a message's bytes, room for key, headers and the batch's frame; a value beyond would be refused by the broker."""
_DAY_MS = 24 * 3600 * 1000


class Topic(StrEnum):
    """Every topic, by its name without prefix and run; `REGISTRY` says what each holds."""

    OTLP_SPANS = "otlp_spans"
    OTLP_LOGS = "otlp_logs"
    LLM_CALLS = "llm_calls"
    REWARDS = "rewards"
    ROLLOUT_EVENTS = "rollout_events"
    ROLLOUTS = "rollouts"
    EPISODE_EVENTS = "episode_events"
    CLOSED_EPISODES = "closed_episodes"
    CLOSED_GROUPS = "closed_groups"
    EPISODES = "episodes"
    EPISODE_SCORES = "episode_scores"
    TRANSITIONS = "transitions"
    WEIGHTS = "weights"
    WEIGHT_ACKS = "weight_acks"
    TRAINING_STEPS = "training_steps"
    ADVANTAGES = "advantages"
    PROCESS_STATUS = "process_status"
    DEAD_LETTERS = "dead_letters"


class Stage(StrEnum):
    """Who reads as a consumer group of its own."""

    NORMALIZE = "normalize"
    ASSEMBLE = "assemble"
    CREDIT = "credit"
    RUNNER = "runner"


INPUTS: Mapping[Stage, tuple[Topic, ...]] = {
    Stage.NORMALIZE: (Topic.OTLP_SPANS, Topic.OTLP_LOGS, Topic.LLM_CALLS, Topic.REWARDS, Topic.ROLLOUT_EVENTS),
    Stage.ASSEMBLE: (Topic.EPISODE_EVENTS,),
    Stage.CREDIT: (Topic.EPISODES, Topic.EPISODE_SCORES),
    Stage.RUNNER: (Topic.ROLLOUTS,),
}
"""What each consumer group reads. A run is a view of normalize's from chosen offsets."""
STREAMS = (Stage.NORMALIZE, Stage.ASSEMBLE, Stage.CREDIT)
"""The stages that are stream workers, in the order of the flow."""


class TopicSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a topic holds and how it is created."""

    topic: Topic
    raw: bool = False
    """Shared between runs (prefix only) or owned by one."""
    public: bool = True
    """A contract with users; private topics may change between releases."""
    key: Callable[..., bytes | None]
    """Makes the key of its records."""
    value: str
    written_by: str
    read_by: str
    partitions: str = "run"
    """`run`: the run's count; `policies`: one partition per policy; `one`."""
    max_message_bytes: int = MAX_MESSAGE_BYTES
    """`max.message.bytes`, where `Topics` has no other."""
    settings: Mapping[str, str] = msgspec.field(default_factory=lambda: {"retention.ms": "-1"})
    """Kept for ever unless it says otherwise; markers are bounded by size, never by age, for pauses outlive that."""


_NEWEST = {"cleanup.policy": "compact,delete", "retention.ms": str(_DAY_MS), "segment.ms": str(600_000)}
"""Only the last record of a key counts; without short segments a day of reports would wait for compaction."""
_MARKERS = {"cleanup.policy": "compact,delete", "retention.ms": "-1", "retention.bytes": str(256 * 1024 * 1024)}

REGISTRY: tuple[TopicSpec, ...] = (
    TopicSpec(
        topic=Topic.OTLP_SPANS,
        raw=True,
        key=keys.trace_key,
        value="OTLP ExportTraceServiceRequest bytes",
        written_by="OTLP gateway, any OpenTelemetry Collector",
        read_by="normalize, audit, live view of `up`",
    ),
    TopicSpec(
        topic=Topic.OTLP_LOGS,
        raw=True,
        key=keys.trace_key,
        value="OTLP ExportLogsServiceRequest bytes",
        written_by="OTLP gateway, any OpenTelemetry Collector",
        read_by="normalize",
    ),
    TopicSpec(
        topic=Topic.LLM_CALLS,
        raw=True,
        key=keys.episode_key,
        value="call record, calls_closed, of a captured call call_open and call_ended, or upstream_call (msgpack)",
        written_by="LLM gateway",
        read_by="normalize, audit, LLM gateway (open attempts, after its start), `demo` (its proof), live view of `up`",
    ),
    TopicSpec(
        topic=Topic.REWARDS,
        raw=True,
        key=keys.episode_key,
        value="reward (JSON)",
        written_by="runner (graders), LLM gateway (what agents say of themselves), rewards gateway and OTLP gateway "
        "(feedback)",
        read_by="normalize, audit, rewards gateway",
    ),
    TopicSpec(
        topic=Topic.ROLLOUT_EVENTS,
        raw=True,
        key=keys.rollout_key,
        value="rollout event (JSON)",
        written_by="runner, tasks (giving up)",
        read_by="normalize, runner, tasks, audit, live view",
    ),
    TopicSpec(
        topic=Topic.ROLLOUTS,
        key=keys.rollout_key,
        value="rollout request (JSON)",
        written_by="tasks",
        read_by="runner, tasks, audit",
    ),
    TopicSpec(
        topic=Topic.EPISODE_EVENTS,
        public=False,
        key=keys.episode_key,
        value="facts of one episode, or close (msgpack); header `tracegrad.origin`",
        written_by="normalize, assemble (close proposals)",
        read_by="assemble, audit",
        settings={"retention.ms": str(2 * _DAY_MS)},
    ),
    TopicSpec(
        topic=Topic.CLOSED_EPISODES,
        public=False,
        key=keys.closed_key,
        value="closed marker (JSON)",
        written_by="assemble",
        read_by="assemble at assignment, audit, rewards gateway",
        settings=_MARKERS,
    ),
    TopicSpec(
        topic=Topic.CLOSED_GROUPS,
        public=False,
        key=keys.closed_key,
        value="closed marker (JSON)",
        written_by="credit",
        read_by="credit at assignment, audit, rewards gateway",
        settings=_MARKERS,
    ),
    TopicSpec(
        topic=Topic.EPISODES,
        key=keys.group_key,
        value="episode (JSON); header `tracegrad.made_of`",
        written_by="assemble",
        read_by="credit, tasks, audit, index, live view",
        max_message_bytes=4 * MAX_MESSAGE_BYTES,
    ),
    TopicSpec(
        topic=Topic.EPISODE_SCORES,
        public=False,
        key=keys.group_key,
        value="captured episodes that are on `episodes`, what was said since, close (JSON); header `tracegrad.origin`",
        written_by="assemble, credit (close proposals)",
        read_by="credit, audit, rewards gateway",
        settings={"retention.ms": str(2 * _DAY_MS)},
    ),
    TopicSpec(
        topic=Topic.TRANSITIONS,
        key=keys.policy_key,
        value="Arrow IPC stream: the segments of one training group; header `tracegrad.made_of`",
        written_by="credit",
        read_by="trainer, audit, index",
        partitions="policies",
        max_message_bytes=4 * MAX_MESSAGE_BYTES,
    ),
    TopicSpec(
        topic=Topic.WEIGHTS,
        key=keys.policy_key,
        value="epoch claim, version manifest, rollback request or held-out pass (JSON)",
        written_by="trainer; held-out passes: tasks; rollback requests: trainer, a person",
        read_by="trainer, tasks, weight sync, LLM gateway, audit, index, report, live view, `demo` (its proof)",
        partitions="one",
    ),
    TopicSpec(
        topic=Topic.WEIGHT_ACKS,
        key=keys.engine_key,
        value="an engine serves a version (JSON)",
        written_by="weight sync",
        read_by="tasks, audit, live view, `demo` (its proof)",
        partitions="one",
    ),
    TopicSpec(
        topic=Topic.TRAINING_STEPS,
        key=keys.policy_key,
        value="metrics and accounting of one batch, or groups given back of the one that is read (JSON)",
        written_by="trainer",
        read_by="trainer at its start, tasks, audit, index, report, live view",
        partitions="one",
    ),
    TopicSpec(
        topic=Topic.ADVANTAGES,
        key=keys.policy_key,
        value="what a step made of the returns of one group's calls (JSON)",
        written_by="trainer",
        read_by="index, page",
        partitions="one",
        max_message_bytes=4 * MAX_MESSAGE_BYTES,
    ),
    TopicSpec(
        topic=Topic.PROCESS_STATUS,
        key=keys.process_key,
        value="how a process stands, by itself or by its supervisor (JSON)",
        written_by="each process but engine and broker, every 2 s; the supervisor, of all",
        read_by="`status`, tasks, audit",
        partitions="one",
        settings=_NEWEST,
    ),
    TopicSpec(
        topic=Topic.DEAD_LETTERS,
        key=keys.original_key,
        value="the original bytes; headers tell reason, stage and origin",
        written_by="streams, gateways, runner, trainer",
        read_by="audit, rewards gateway, people",
        max_message_bytes=4 * MAX_MESSAGE_BYTES,
    ),
)
_SPECS = {spec.topic: spec for spec in REGISTRY}


class Topics(msgspec.Struct, frozen=True, kw_only=True):
    """Full names of the topics and consumer groups of one run.

    `renames` maps a raw topic's registry name to its full name on the user's cluster (a Collector's topic);
    `max_message_bytes` a topic's registry name to its `max.message.bytes`, where that is not the spec's.
    """

    run: RunName
    prefix: str = ""
    renames: Mapping[str, str] = {}
    max_message_bytes: Mapping[str, int] = {}

    def __post_init__(self) -> None:
        for name, size in self.max_message_bytes.items():
            if name not in set(Topic) or not 2 * _FRAME_BYTES <= size <= MAX_CLIENT_BYTES:
                raise ConfigurationError(
                    f"[kafka.max_message_bytes] {name} = {size}: expected one of {', '.join(Topic)} and a size in "
                    f"[{2 * _FRAME_BYTES}, {MAX_CLIENT_BYTES}]"
                )
        raw = {spec.topic.value for spec in REGISTRY if spec.raw}
        for name in sorted(self.renames.keys() - raw):
            raise ConfigurationError(
                f"[kafka.topics] {name}: only {', '.join(sorted(raw))} can be renamed; remove the key"
            )

    def name(self, topic: Topic) -> str:
        """The full name of a topic."""
        if _SPECS[topic].raw:
            return self.renames.get(topic.value, f"{self.prefix}{topic.value}")
        return f"{self.prefix}{self.run}.{topic.value}"

    def group(self, stage: Stage) -> str:
        """The consumer group of a stage."""
        return f"{self.prefix}{self.run}.{stage.value}"

    def message_bytes(self, topic: Topic) -> int:
        """The topic's `max.message.bytes`."""
        return self.max_message_bytes.get(topic.value, _SPECS[topic].max_message_bytes)

    def value_bytes(self, topic: Topic) -> int:
        """Of the greatest value that the topic takes."""
        return self.message_bytes(topic) - _FRAME_BYTES

    def check_size(self, topic: Topic, value: bytes) -> None:
        """Raises RecordError (`too_large`; it names the key to raise, and to what) for a value that is too large."""
        if len(value) > self.value_bytes(topic):
            raise RecordError(
                f"expected at most {self.value_bytes(topic)} bytes of a record on {topic}, got {len(value)}; it needs "
                f"[kafka.max_message_bytes] {topic} = {len(value) + _FRAME_BYTES}",
                reason=Reason.TOO_LARGE,
            )
