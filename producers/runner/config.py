"""What a runner is told: `[agent]` and `[reward]` of the settings file, and the handles of the run that it works for.

In: compose hands them over. Out: three frozen records. Invariant: bounds stand in the types, so what cannot work fails
at load. Imports nothing heavy: the command line reads it for its help.
"""

from __future__ import annotations

import shlex
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, field

from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.ids import RunHash
from tracegrad.schemas.records.rollouts import AGENT_REWARD, AGENT_SOURCE
from tracegrad.schemas.section import Count, Folder, Function, Program, Seconds, Section


class AgentConfig(Section, frozen=True, kw_only=True):
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
    sandbox: Literal["off", "bubblewrap"] = "off"
    """`bubblewrap`: agents read their folder, their Python and the system alone, without the tasks and the run, see no
    other process, and write to memory; needs the program bwrap. `off`: what this user can read, they can."""
    sandbox_network: Literal["gateways", "host"] = "gateways"
    """What agents in a sandbox reach: the two gateways, or all that this machine does, the broker among it."""
    sandbox_paths: tuple[Folder, ...] = ()
    """Further folders and files that agents in a sandbox may read."""
    env: dict[str, str] = field(default_factory=dict)
    """More variables for the agent."""
    env_map: dict[str, str] = field(default_factory=dict)
    """Variables made of the task (commands only): name = `input` or `input.<key>.<key or index>`, JSON unless it is a
    text; any other value is given as it is."""
    pass_env: tuple[str, ...] = ()
    """Names of variables that it gets from the environment of tracegrad, besides PATH, HOME, LANG and their like: it
    gets no others. For secrets of its tools, which then stand in no file."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.callable is None) == (self.command is None):
            raise ConfigurationError('needs either callable = "file.py:function" or command = "...", one of them')
        if self.env_map and self.command is None:
            raise ConfigurationError("env_map is of a command, a process per task; a callable is given the task")

    @property
    def argv(self) -> tuple[str, ...]:
        """The command's words."""
        return tuple(shlex.split(self.command)) if isinstance(self.command, str) else self.command or ()


class RewardConfig(Section, frozen=True, kw_only=True):
    """`[reward]`: what an attempt is worth."""

    grader: Function | None = None
    """`file.py:function`, called as grade(task, output, attempt) in a process of its own; None: trust_agent."""
    time_limit_s: Seconds = 30.0
    """Seconds for one grade; beyond it the attempt is unscored."""
    names: tuple[str, ...] = ("reward",)
    """Rewards that the grader gives (the keys, when it returns a dict); an episode waits for each. Those that it gives
    calls need not be among them."""
    env: dict[str, str] = field(default_factory=dict)
    """More variables for the grader."""
    pass_env: tuple[str, ...] = ()
    """Names of variables that it gets from the environment of tracegrad, as `[agent] pass_env`."""
    sources: tuple[str, ...] = ()
    """Sources that count besides the grader; rewards from any other are shown and ignored."""
    trust_agent: bool = False
    """Count what the agent says of its own reward (docs/agent_lightning.md says how), beside the grader's. Off: it is
    shown and ignored, for whoever is trained to raise a reward that they name learns to name a higher one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.grader is None and not self.trust_agent:
            raise ConfigurationError('needs grader = "file.py:function", or trust_agent = true')

    @property
    def source(self) -> str:
        """What the grader's own rewards name as their source."""
        return f"grader:{(self.grader or '').rpartition(':')[2]}"

    @property
    def awaited(self) -> tuple[str, ...]:
        """Names of the rewards without which an attempt is unscored."""
        return (*(self.names if self.grader else ()), *((AGENT_REWARD,) if self.trust_agent else ()))

    @property
    def counted(self) -> tuple[str, ...]:
        """Globs on the sources that count."""
        return (*((self.source,) if self.grader else ()), *self.sources, *((AGENT_SOURCE,) if self.trust_agent else ()))


class RunnerHandles(msgspec.Struct, frozen=True, kw_only=True):
    """Where the runner of a run works."""

    run_hash: RunHash
    """Rollouts of other runs are none of its business."""
    llm_url: str
    """The LLM gateway, without `/v1`."""
    otlp_endpoint: str
    """The OTLP gateway, without `/v1/traces`."""
    key: bytes
    """The run's secret, of which agents' credentials are made; no agent has it."""
    llm_token: str | None = None
    """What the LLM gateway asks of agents that no runner started."""
    otlp_token: str | None = None
    """Likewise the OTLP gateway."""
    log_dir: str
    """Where agents' and graders' stderr goes."""
    hidden: tuple[str, ...] = ()
    """Folders and files that agents in a sandbox do not see."""
