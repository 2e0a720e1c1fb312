"""What the one TOML file may say: a record per section, a docstring under each key, defaults to start from; the files
under examples/ set what their models need (`lr`, say).

In: nothing but values. Out: `RunSettings`, which `load.py` fills and `wiring.py` turns into each room's own
record. Invariant: every path is absolute once loaded. JSON-able: it lies beside the run as `config.json`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = [
    "AgentSettings",
    "AirRule",
    "AirSettings",
    "EngineSettings",
    "GatewaySettings",
    "KafkaSettings",
    "PaceSettings",
    "PolicySettings",
    "RewardSettings",
    "RunSettings",
    "SelectSettings",
    "StreamsSettings",
    "TasksSettings",
    "TrainerSettings",
]


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A section refuses keys that it does not know."""


class AgentSettings(_Section, frozen=True, kw_only=True):
    """`[agent]`: who is trained. Exactly one of `callable` and `command`."""

    callable: str | None = None
    """`file.py:function`, called with `{id, input}`, sync or async; imported once, many rollouts at once."""
    command: str | tuple[str, ...] | None = None
    """A program: the task as JSON on stdin, the answer is the last line on stdout; a process per rollout."""
    python: str | None = None
    """The interpreter with the agent's own packages; None: the one that runs tracegrad."""
    cwd: str | None = None
    """Working folder; None: the TOML file's folder."""
    concurrency: int = 32
    """Rollouts that run at once."""
    hosts: int = 2
    """Long-lived processes that share them (callables only)."""
    flush_timeout_s: float = 10.0
    """At an attempt's end: how long its spans may take to be accepted; later ones are counted as lost (callables only:
    a command has its SDK's own time-out)."""
    time_limit_s: float = 300.0
    """Wall-clock seconds of one attempt; beyond it the attempt is `truncated` and graded."""
    service: str = "agent"
    """`service.name` of its spans."""
    env: dict[str, str] = {}
    """More variables for the agent."""


class TasksSettings(_Section, frozen=True, kw_only=True):
    """`[tasks]`: what it is trained on. A task is a JSON line `{id, input, expected?}`."""

    file: str
    """Training tasks."""
    eval_file: str | None = None
    """Held-out tasks, run greedily before and after; None: no score."""
    group_size: int = 8
    """k, the rollouts of one task that are compared with each other."""
    max_running: int | None = None
    """Groups that may run at once; None: one more than the agent's concurrency fills."""
    max_attempts: int = 3
    """Tries of a rollout whose attempts were aborted by faults that are not the model's."""


class RewardSettings(_Section, frozen=True, kw_only=True):
    """`[reward]`: what an attempt is worth."""

    grader: str
    """`file.py:function`, called as grade(task, output, attempt) in a process of its own."""
    time_limit_s: float = 30.0
    """Seconds for one grade; beyond it the attempt is unscored."""
    names: tuple[str, ...] = ("reward",)
    """Rewards that the grader gives (the keys, when it returns a dict); an episode waits for each."""
    sources: tuple[str, ...] = ()
    """Sources that count besides the grader; rewards from any other are shown and ignored."""


class PolicySettings(_Section, frozen=True, kw_only=True):
    """`[policy]`: the model that learns."""

    name: str = "policy"
    """What the agent asks for as `model`, and the key of its transitions and weights."""
    model: str
    """A Hugging Face folder (config, tokenizer, safetensors), or a hub name where a hub is reachable."""
    temperature: float = 1.0
    """Sampling temperature of training rollouts."""
    max_tokens: int | None = None
    """Bound on one answer in training; None: what the agent asks, up to the context window."""
    validation_temperature: float = 0.0
    """Of held-out rollouts; 0 is greedy."""
    tools: bool = True
    """The agent uses tools, so a chat template that ignores them is refused at start."""


class EngineSettings(_Section, frozen=True, kw_only=True):
    """`[engine]`: vLLM, started by us or found under `url`."""

    url: str | None = None
    """An engine that runs already, with our plug-in; None: start one."""
    python: str | None = None
    """The interpreter that has vLLM installed; None: the one that runs tracegrad."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`cpu`, `cuda`, or `auto`: what that vLLM was built for."""
    max_model_len: int = 2048
    """Context window in tokens."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """`float32`, `bfloat16`, as `[trainer]` publishes: set both or neither. None: float32 on CPU, bfloat16 on a GPU."""
    tool_call_parser: str | None = "hermes"
    """vLLM's parser of the model's tool calls; None: the model calls no tools."""
    tool_parser_plugin: str | None = None
    """A Python file that registers a parser of one's own with vLLM."""
    max_num_seqs: int = 128
    """Sequences decoded at once."""
    kv_cache_bytes: int | None = None
    """Memory for the KV cache; None: 128 MiB on CPU, vLLM's choice on a GPU."""
    threads: int = 1
    """CPU threads of the engine; more than one helps only real models on an otherwise idle machine."""
    args: tuple[str, ...] = ()
    """More arguments for vLLM's server."""


class KafkaSettings(_Section, frozen=True, kw_only=True):
    """`[kafka]`: a cluster of yours, or a local single node under the run folder."""

    bootstrap_servers: str | None = None
    """host:port,...; None: start a local Apache Kafka."""
    topic_prefix: str = ""
    """Put before every topic and consumer group."""
    partitions: int = 4
    """Of each topic of the run; fixed when the run is made."""
    topics: dict[str, str] = {}
    """Registry name of a raw topic -> its full name on your cluster (a Collector's topic)."""
    client: dict[str, str] = {}
    """Client settings from the allow-list: security.protocol, sasl.*, ssl.*."""
    replication: int = 1
    """Of topics that we create."""


class GatewaySettings(_Section, frozen=True, kw_only=True):
    """`[llm]` and `[otlp]`: where the two gateways listen."""

    host: str = "127.0.0.1"
    """Loopback unless you say otherwise."""
    port: int | None = None
    """None: a free port, kept for the life of the run."""
    token: str | None = None
    """Required to listen elsewhere than on loopback; callers send it as a Bearer key."""


class AirRule(_Section, frozen=True, kw_only=True):
    """One `[[air.rules]]`: a signal in the spans earns a reward for the call that caused it."""

    name: str
    """Stands on each applied reward as `air:<name>`."""
    signal: str
    """`tool_succeeded` or `tool_failed`."""
    value: float
    """Paid for each occurrence."""
    cap: int | None = None
    """Most occurrences paid per episode; None: no cap."""
    tool: str = "*"
    """Glob of tool names."""


class AirSettings(_Section, frozen=True, kw_only=True):
    """`[air]`: automatic intermediate rewarding."""

    enabled: bool = True
    """False: the rules stay written and pay nothing."""
    rules: tuple[AirRule, ...] = ()
    """The rules, in order."""


class TrainerSettings(_Section, frozen=True, kw_only=True):
    """`[trainer]`: how the policy learns."""

    steps: int = 80
    """Batches until the run is done."""
    groups_per_step: int = 8
    """G, the training groups of one batch."""
    lr: float = 1e-5
    """AdamW's learning rate after the warm-up."""
    warmup_steps: int = 3
    """Linear warm-up."""
    clip_low: float = 0.2
    """The ratio may fall to 1 - clip_low."""
    clip_high: float = 0.28
    """The ratio may rise to 1 + clip_high."""
    clip_norm: float = 1.0
    """Gradient norm clip."""
    weight_decay: float = 0.0
    """AdamW's."""
    lora_rank: int | None = None
    """Rank of a low-rank adapter; None: every weight is trained."""
    lora_alpha: int = 32
    """Scale of the adapter."""
    aggregation: Literal["token_mean", "rollout_mean", "constant"] = "token_mean"
    """What one token weighs in the loss: `token_mean`, `rollout_mean` or `constant`."""
    constant_tokens: int = 1024
    """L of `constant`: the greatest length of a rollout, say."""
    max_staleness: int = 8
    """Versions that a trained token may be behind; beyond it the group is excluded as `stale`. A safety net."""
    scale_advantages: bool = False
    """Also divide by the spread of the peers' returns (GRPO); off is Dr. GRPO."""
    device: str = "auto"
    """`auto`: the accelerator when there is one, else `cpu`."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """`float32`, `bfloat16`; `auto`: float32 on CPU, bfloat16 on an accelerator."""
    publish_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the published files; `auto`: `dtype`, whatever the model came in."""
    threads: int = 1
    """CPU threads; two intra-op threads on a busy two-core machine are 15 to 30 times slower than one."""
    micro_batch_tokens: int = 0
    """Padded tokens of a forward pass; bounds memory. 0: 1,024 on CPU (measured fastest), 16,384 on an accelerator."""
    keep_versions: int = 20
    """Newest version folders kept; version 0 always is; 0 keeps all."""


class PaceSettings(_Section, frozen=True, kw_only=True):
    """`[pace]`: how far rollouts may run ahead of the trainer."""

    staleness: int = 2
    """eta: batches that rollouts may be admitted ahead of the trainer; tokens can be a few versions older, as rollouts
    take time. 0 is synchronous (`--sync`): a batch is admitted when the one before it is trained."""


class StreamsSettings(_Section, frozen=True, kw_only=True):
    """`[streams]`: the workers of normalize, assemble and credit."""

    workers: int = 1
    """Processes per stage."""
    deadline_s: float = 5.0
    """After an attempt's end: how long lost or uncounted spans and calls are waited for."""
    incomplete_s: float = 60.0
    """After an attempt's end: how long counted ones are waited for; a safety net, for they were acknowledged."""
    idle_s: float = 10.0
    """Silence after which an episode of an agent without runner closes."""


class SelectSettings(_Section, frozen=True, kw_only=True):
    """`[select]`: whose episodes the run takes besides its own rollouts'."""

    capture_all: bool | None = None
    """Every episode without a rollout, whatever its service and agent; None: `up` does, when no other key of this
    section names anything, for it is there to show what arrives; `train` does not."""
    runs: tuple[str, ...] = ()
    """Hashes of other runs whose rollouts are taken too: a replay names the run it replays."""
    services: tuple[str, ...] = ()
    """Globs on `service.name`: whose episodes without a rollout are taken, unless `capture_all` takes them all."""
    agents: tuple[str, ...] = ()
    """Globs on agent names; likewise."""


class RunSettings(_Section, frozen=True, kw_only=True):
    """The whole file."""

    run: str
    """Names the run: [a-z0-9-]{1,40}; the same name resumes it."""
    seed: int = 0
    """Of the order of tasks and of the trainer."""
    agent: AgentSettings | None = None
    tasks: TasksSettings | None = None
    reward: RewardSettings | None = None
    policy: PolicySettings
    engine: EngineSettings = EngineSettings()
    kafka: KafkaSettings = KafkaSettings()
    otlp: GatewaySettings = GatewaySettings()
    llm: GatewaySettings = GatewaySettings()
    air: AirSettings = AirSettings()
    trainer: TrainerSettings = TrainerSettings()
    streams: StreamsSettings = StreamsSettings()
    pace: PaceSettings = PaceSettings()
    select: SelectSettings = SelectSettings()
