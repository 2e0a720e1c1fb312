"""The topic registry: the only place that names topics, their keys, partitions and settings.

Raw topics are shared facts and bear the prefix only; all others belong to a run: `<prefix><run>.<name>`.
Consumer groups are `<prefix><run>.<stage>`. `docs/topics.md` is generated from `REGISTRY`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from types import MappingProxyType

import msgspec

from . import keys
from .errors import ConfigurationError, RecordError
from .ids import RunName

__all__ = [
    "DEFAULT_PARTITIONS",
    "INPUTS",
    "MAX_CLIENT_BYTES",
    "MAX_MESSAGE_BYTES",
    "REGISTRY",
    "STREAMS",
    "Stage",
    "Topic",
    "TopicSpec",
    "Topics",
]

DEFAULT_PARTITIONS = 4
MAX_MESSAGE_BYTES = 8 * 1024 * 1024
"""`max.message.bytes` of a topic, unless its spec or `[kafka.max_message_bytes]` says otherwise."""
MAX_CLIENT_BYTES = 64 * 1024 * 1024
"""The greatest record that clients send: brokers and clients take no request of 100 MB unless told so."""
_FRAME_BYTES = 64 * 1024
"""Of a message's bytes, room for key, headers and the batch's frame; a value beyond would be refused by the broker."""
_DAY_MS = 24 * 3600 * 1000
_FOREVER = "-1"


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
    TRANSITIONS = "transitions"
    WEIGHTS = "weights"
    WEIGHT_ACKS = "weight_acks"
    TRAINING_STEPS = "training_steps"
    PROCESS_STATUS = "process_status"
    DEAD_LETTERS = "dead_letters"


class Stage(StrEnum):
    """Who reads as a consumer group of its own."""

    NORMALIZE = "normalize"
    ASSEMBLE = "assemble"
    CREDIT = "credit"
    RUNNER = "runner"


INPUTS: Mapping[Stage, tuple[Topic, ...]] = {
    Stage.NORMALIZE: (Topic.OTLP_SPANS, Topic.LLM_CALLS, Topic.REWARDS, Topic.ROLLOUT_EVENTS),
    Stage.ASSEMBLE: (Topic.EPISODE_EVENTS,),
    Stage.CREDIT: (Topic.EPISODES,),
    Stage.RUNNER: (Topic.ROLLOUTS,),
}
"""What each consumer group reads. A run is a view of normalize's from chosen offsets."""
STREAMS = (Stage.NORMALIZE, Stage.ASSEMBLE, Stage.CREDIT)
"""The stages that are stream workers, in the order of the flow."""

_KEPT: Mapping[str, str] = MappingProxyType({"retention.ms": _FOREVER})


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
    settings: Mapping[str, str] = _KEPT
    """Kept for ever unless it says otherwise."""


_STATE = {"retention.ms": str(2 * _DAY_MS)}
_NEWEST = {"cleanup.policy": "compact,delete", "retention.ms": str(_DAY_MS), "segment.ms": str(600_000)}
"""Only the last record of a key counts; without short segments a day of reports would wait for compaction."""
_MARKERS = {"cleanup.policy": "compact,delete", "retention.ms": str(8 * _DAY_MS)}

REGISTRY: tuple[TopicSpec, ...] = (
    TopicSpec(
        topic=Topic.OTLP_SPANS,
        raw=True,
        key=keys.trace_key,
        value="OTLP ExportTraceServiceRequest bytes",
        written_by="OTLP gateway, any OpenTelemetry Collector",
        read_by="normalize, audit, `up` (what arrives)",
    ),
    TopicSpec(
        topic=Topic.OTLP_LOGS,
        raw=True,
        key=keys.trace_key,
        value="OTLP ExportLogsServiceRequest bytes",
        written_by="any OpenTelemetry Collector",
        read_by="nobody of ours yet",
    ),
    TopicSpec(
        topic=Topic.LLM_CALLS,
        raw=True,
        key=keys.episode_key,
        value="call record or calls_closed (msgpack)",
        written_by="LLM gateway",
        read_by="normalize, audit, report, `up`",
    ),
    TopicSpec(
        topic=Topic.REWARDS,
        raw=True,
        key=keys.rollout_key,
        value="reward (JSON)",
        written_by="runner (graders)",
        read_by="normalize, audit",
    ),
    TopicSpec(
        topic=Topic.ROLLOUT_EVENTS,
        raw=True,
        key=keys.rollout_key,
        value="rollout event (JSON)",
        written_by="runner, tasks (giving up)",
        read_by="normalize, runner, tasks, audit",
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
        value="facts of one episode, or close (msgpack)",
        written_by="normalize, assemble (close proposals)",
        read_by="assemble, audit",
        settings=_STATE,
    ),
    TopicSpec(
        topic=Topic.CLOSED_EPISODES,
        public=False,
        key=keys.closed_key,
        value="closed marker (JSON)",
        written_by="assemble",
        read_by="assemble at assignment, audit",
        settings=_MARKERS,
    ),
    TopicSpec(
        topic=Topic.CLOSED_GROUPS,
        public=False,
        key=keys.closed_key,
        value="closed marker (JSON)",
        written_by="credit",
        read_by="credit at assignment, audit",
        settings=_MARKERS,
    ),
    TopicSpec(
        topic=Topic.EPISODES,
        key=keys.group_key,
        value="episode (JSON)",
        written_by="assemble",
        read_by="credit, tasks, audit, report, live view",
    ),
    TopicSpec(
        topic=Topic.TRANSITIONS,
        key=keys.policy_key,
        value="Arrow IPC stream: the segments of one training group",
        written_by="credit",
        read_by="trainer, audit",
        partitions="policies",
        max_message_bytes=4 * MAX_MESSAGE_BYTES,
    ),
    TopicSpec(
        topic=Topic.WEIGHTS,
        key=keys.policy_key,
        value="epoch claim, version manifest or rollback request (JSON)",
        written_by="trainer; rollback requests: a person",
        read_by="trainer, weight sync, LLM gateway, audit, report",
        partitions="one",
    ),
    TopicSpec(
        topic=Topic.WEIGHT_ACKS,
        key=keys.engine_key,
        value="an engine serves a version (JSON)",
        written_by="weight sync",
        read_by="tasks, report, live view",
        partitions="one",
    ),
    TopicSpec(
        topic=Topic.TRAINING_STEPS,
        key=keys.policy_key,
        value="metrics and accounting of one batch (JSON)",
        written_by="trainer",
        read_by="trainer at its start, tasks, audit, report, live view",
        partitions="one",
    ),
    TopicSpec(
        topic=Topic.PROCESS_STATUS,
        key=keys.process_key,
        value="how a process stands, by itself or by its supervisor (JSON)",
        written_by="every process of ours, every 2 s; the supervisor",
        read_by="`status`",
        partitions="one",
        settings=_NEWEST,
    ),
    TopicSpec(
        topic=Topic.DEAD_LETTERS,
        key=keys.original_key,
        value="the original bytes; headers tell reason, stage and origin",
        written_by="streams, gateways, runner, trainer",
        read_by="audit, people",
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
        for name in self.renames:
            if name not in raw:
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
                reason="too_large",
            )
