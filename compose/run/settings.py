"""What the one TOML file may say: a record per section, a docstring under each key, defaults to start from; the files
under examples/ set what their models need (`lr`, say).

In: nothing but values. Out: `RunSettings`, which `load.py` fills and `wiring.py` turns into each room's own
record. Invariant: every path is absolute once loaded. JSON-able: it lies beside the run as `config.json`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from tracegrad.producers.exposure import ListenConfig
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.ids import RunName, parse_run_name
from tracegrad.schemas.section import Count, File, Folder, Function, Model, Program, Seconds, Section, Whole
from tracegrad.schemas.topics import Topics
from tracegrad.streams.assemble.air.rules import AirConfig
from tracegrad.streams.config import SelectConfig, StreamsConfig
from tracegrad.trainer.config import TrainerConfig

from ..kafka.client_settings import KafkaConfig

__all__ = [
    "AgentSettings",
    "EngineSettings",
    "PaceSettings",
    "PolicySettings",
    "RewardSettings",
    "RunSettings",
    "TasksSettings",
]


class AgentSettings(Section, frozen=True, kw_only=True):
    """`[agent]`: who is trained. Exactly one of `callable` and `command`."""

    callable: Function | None = None
    """`file.py:function`, called with `{id, input}`, sync or async; imported once, many rollouts at once."""
    command: str | tuple[str, ...] | None = None
    """A program: the task as JSON on stdin, the answer is the last line on stdout; a process per rollout."""
    python: Program | None = None
    """The interpreter with the agent's own packages; None: the one that runs tracegrad."""
    cwd: Folder | None = None
    """Working folder; None: the TOML file's folder."""
    concurrency: Count = 32
    """Rollouts that run at once."""
    hosts: Count = 2
    """Long-lived processes that share them (callables only)."""
    flush_timeout_s: Annotated[float, Meta(ge=1, lt=20)] = 10.0
    """At an attempt's end: how long its spans may take to be accepted; later ones are counted as lost (callables only:
    a command has its SDK's own time-out). Less than 20, after which an agent host gives up its flush."""
    time_limit_s: Seconds = 300.0
    """Wall-clock seconds of one attempt; beyond it the attempt is `truncated` and graded."""
    service: str = "agent"
    """`service.name` of its spans."""
    env: dict[str, str] = field(default_factory=dict)
    """More variables for the agent."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.callable is None) == (self.command is None):
            raise ConfigurationError('needs either callable = "file.py:function" or command = "...", one of them')


class TasksSettings(Section, frozen=True, kw_only=True):
    """`[tasks]`: what it is trained on. A task is a JSON line `{id, input, expected?}`."""

    file: File
    """Training tasks."""
    eval_file: File | None = None
    """Held-out tasks, run greedily before and after; None: no score."""
    group_size: Annotated[int, Meta(ge=2)] = 8
    """k, the rollouts of one task that are compared with each other."""
    max_running: Count | None = None
    """Groups that may run at once; None: one more than the agent's concurrency fills."""
    max_attempts: Count = 3
    """Tries of a rollout whose attempts were aborted by faults that are not the model's."""


class RewardSettings(Section, frozen=True, kw_only=True):
    """`[reward]`: what an attempt is worth."""

    grader: Function
    """`file.py:function`, called as grade(task, output, attempt) in a process of its own."""
    time_limit_s: Seconds = 30.0
    """Seconds for one grade; beyond it the attempt is unscored."""
    names: tuple[str, ...] = ("reward",)
    """Rewards that the grader gives (the keys, when it returns a dict); an episode waits for each."""
    sources: tuple[str, ...] = ()
    """Sources that count besides the grader; rewards from any other are shown and ignored."""


class PolicySettings(Section, frozen=True, kw_only=True):
    """`[policy]`: the model that learns."""

    name: str = "policy"
    """What the agent asks for as `model`, and the key of its transitions and weights."""
    model: Model
    """A Hugging Face folder (config, tokenizer, safetensors), or a hub name where a hub is reachable."""
    temperature: Annotated[float, Meta(gt=0)] = 1.0
    """Sampling temperature of training rollouts; more than 0, for a greedy policy learns nothing."""
    max_tokens: Count | None = None
    """Bound on one answer in training; None: what the agent asks, up to the context window."""
    validation_temperature: Annotated[float, Meta(ge=0)] = 0.0
    """Of held-out rollouts; 0 is greedy."""
    tools: bool = True
    """The agent uses tools, so a chat template that ignores them is refused at start."""


class EngineSettings(Section, frozen=True, kw_only=True):
    """`[engine]`: vLLM, started by us or found under `url`."""

    url: str | None = None
    """An engine that runs already, with our plug-in; None: start one."""
    python: Program | None = None
    """The interpreter that has vLLM installed; None: the one that runs tracegrad."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`cpu`, `cuda`, or `auto`: what that vLLM was built for."""
    max_model_len: Count = 2048
    """Context window in tokens."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """`float32`, `bfloat16`, as `[trainer]` publishes: set both or neither. None: float32 on CPU, bfloat16 on a GPU."""
    tool_call_parser: str | None = "hermes"
    """vLLM's parser of the model's tool calls; None: the model calls no tools."""
    tool_parser_plugin: File | None = None
    """A Python file that registers a parser of one's own with vLLM."""
    max_num_seqs: Count = 128
    """Sequences decoded at once."""
    kv_cache_bytes: Count | None = None
    """Memory for the KV cache; None: 128 MiB on CPU, vLLM's choice on a GPU."""
    threads: Count = 1
    """CPU threads of the engine; more than one helps only real models on an otherwise idle machine."""
    args: tuple[str, ...] = ()
    """More arguments for vLLM's server."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise ConfigurationError(f"url: expected http://host:port, got {self.url!r}")


class PaceSettings(Section, frozen=True, kw_only=True):
    """`[pace]`: how far rollouts may run ahead of the trainer."""

    staleness: Whole = 2
    """eta: batches that rollouts may be admitted ahead of the trainer; tokens can be a few versions older, as rollouts
    take time. 0 is synchronous (`--sync`): a batch is admitted when the one before it is trained."""


class RunSettings(Section, frozen=True, kw_only=True):
    """The whole file. Refuses sections that do not go together."""

    run: str
    """Names the run: [a-z0-9-]{1,40}; the same name resumes it."""
    seed: Whole = 0
    """Of the order of tasks and of the trainer."""
    agent: AgentSettings | None = None
    tasks: TasksSettings | None = None
    reward: RewardSettings | None = None
    policy: PolicySettings
    engine: EngineSettings = EngineSettings()
    kafka: KafkaConfig = KafkaConfig()
    otlp: ListenConfig = ListenConfig()
    llm: ListenConfig = ListenConfig()
    air: AirConfig = AirConfig()
    trainer: TrainerConfig = TrainerConfig()
    streams: StreamsConfig = StreamsConfig()
    pace: PaceSettings = PaceSettings()
    select: SelectConfig = SelectConfig()

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            parse_run_name(self.run)
        except ValueError as error:
            raise ConfigurationError(f"run = {self.run!r}: {error}; rename the run") from error
        _ = self.topics
        if self.streams.workers > self.kafka.partitions:
            raise ConfigurationError(
                f"[streams] workers = {self.streams.workers}: only [kafka] partitions = "
                f"{self.kafka.partitions} can work at once; raise partitions (of a new run) or lower workers"
            )
        trainer, served = self.trainer, self.engine.dtype or "auto"
        published = trainer.dtype if trainer.publish_dtype == "auto" else trainer.publish_dtype
        if served != published and (self.engine.url is None or self.engine.dtype is not None):
            raise ConfigurationError(
                f"[engine] dtype is {served!r}, but versions are published as {published!r} ([trainer] publish_dtype, "
                "else dtype): the engine would not serve what was published; set both to the same, or neither"
            )

    @property
    def topics(self) -> Topics:
        """The full names of the run's topics."""
        kafka = self.kafka
        return Topics(
            run=RunName(self.run),
            prefix=kafka.topic_prefix,
            renames=kafka.topics,
            max_message_bytes=kafka.max_message_bytes,
        )
