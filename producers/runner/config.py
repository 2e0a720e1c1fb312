"""What a runner needs to know."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import msgspec

from tracegrad.schemas.errors import ConfigurationError

__all__ = ["RunnerConfig", "check", "interpreter"]


class RunnerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One runner process. Either `callable` or `command` names the agent."""

    run_hash: str
    """Rollouts of other runs are none of its business."""
    callable: str | None = None
    """`file.py:function`, relative to `cwd`: `def solve(task: {id, input}) -> output`, or async."""
    command: tuple[str, ...] | None = None
    """One process per rollout: the task as JSON on stdin, the answer is the last line on stdout."""
    python: str | None = None
    """The agent's Python; None: this one."""
    cwd: str | None = None
    """Where the agent runs and where relative files lie; None: here."""
    env: dict[str, str] = {}
    """Added to the agent's environment."""
    hosts: int = 2
    """Long-lived processes for a callable."""
    concurrency: int = 32
    """Attempts at once, over all hosts."""
    grader: str | None = None
    """`file.py:function`; None: rewards come from elsewhere, or not at all."""
    graders: int = 1
    """Processes that grade."""
    grade_timeout_s: float = 30.0
    """Beyond it the attempt is unscored and the grader's process is replaced."""
    llm_url: str
    """The LLM gateway, without `/v1`."""
    otlp_endpoint: str
    """The OTLP gateway, without `/v1/traces`."""
    llm_token: str | None = None
    """What the LLM gateway asks for; agents get it as their API key."""
    otlp_token: str | None = None
    """What the OTLP gateway asks for; agents get it as an export header."""
    service_name: str = "agent"
    log_dir: str | None = None
    """Where agents' and graders' stderr goes; None: only the last lines are kept in memory."""
    start_timeout_s: float = 120.0
    """For a host to import the agent."""
    begin_timeout_s: float = 120.0
    """How long an attempt waits for a gateway that is away before it is aborted."""
    end_timeout_s: float = 150.0
    """How long the end of an attempt waits for the gateway, calls in flight included."""
    flush_timeout_s: float = 10.0
    """The hosts' export time-out; a gateway that restarts within it costs no span."""
    hang_grace_s: float = 30.0
    """After a time limit, until a host that said nothing is held to be hung."""
    retry_backoff_s: float = 1.0
    """Before the second attempt; doubled for each further one, at most 30 s."""
    max_open: int = 4096
    """Requests read and not yet finished; beyond it the runner stops reading."""


def check(config: RunnerConfig) -> None:
    """Makes the log folder. Raises ConfigurationError when the agent or the grader cannot be started at all."""
    if (config.callable is None) == (config.command is None):
        raise ConfigurationError("[agent] expected exactly one of `callable` and `command`")
    if config.hosts < 1 or config.concurrency < 1 or config.graders < 1:
        raise ConfigurationError("[agent] hosts, concurrency and graders must be at least 1")
    for key, reference in (("[agent] callable", config.callable), ("[reward] grader", config.grader)):
        if reference is None:
            continue
        file, _, name = reference.rpartition(":")
        if not file.endswith(".py") or not name:
            raise ConfigurationError(f"{key}: expected FILE.py:NAME, got {reference!r}")
        if not Path(config.cwd or ".", file).is_file():
            raise ConfigurationError(f"{key}: no such file: {Path(config.cwd or '.', file)}")
    if config.log_dir is not None:
        try:
            Path(config.log_dir).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"log_dir {config.log_dir}: cannot be made: {error.strerror}") from error
    path = config.env.get("PATH", os.environ.get("PATH"))
    if config.command is not None:
        program = config.command[0] if config.command else ""
        found = shutil.which(str(Path(config.cwd or ".", program)) if "/" in program else program, path=path)
        if not program or found is None:
            raise ConfigurationError(f"[agent] command: cannot be executed: {program!r}")


def interpreter(config: RunnerConfig) -> str:
    """The Python of the agent and the grader."""
    return config.python or sys.executable
