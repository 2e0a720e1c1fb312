"""Checks of a run's settings that no type can express: between fields, and against the file system.

In: converted settings. Out: nothing, or a ConfigurationError that names the key and the remedy. Invariant: what
passes here does not fail later in a process for a reason that the file could have told.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path

from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.ids import parse_run_name

from .settings import RunSettings

__all__ = ["check", "nearest"]

_SIGNALS = ("tool_succeeded", "tool_failed")


def nearest(key: str, valid: Iterable[str]) -> str:
    """The hint that goes with a wrong name: the nearest valid one, else all of them."""
    names = [str(name) for name in valid]
    found = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
    return f"did you mean {found[0]!r}?" if found else f"valid are {', '.join(names)}"


def check(settings: RunSettings, *, for_training: bool) -> None:
    """Raises ConfigurationError unless the settings can work."""
    try:
        parse_run_name(settings.run)
    except ValueError as error:
        raise ConfigurationError(f"run = {settings.run!r}: {error}; rename the run") from error
    if for_training:
        for section in ("agent", "tasks", "reward"):
            if getattr(settings, section) is None:
                raise ConfigurationError(
                    f"training needs a section [{section}]; add it, or bring your own agent to `tracegrad up`"
                )
    _check_agent(settings)
    _check_tasks(settings)
    _check_numbers(settings)
    for rule in settings.air.rules:
        if rule.signal not in _SIGNALS:
            hint = nearest(rule.signal, _SIGNALS)
            raise ConfigurationError(f"[[air.rules]] {rule.name}: signal = {rule.signal!r}; {hint}")
    if len({rule.name for rule in settings.air.rules}) < len(settings.air.rules):
        raise ConfigurationError("[[air.rules]]: two rules have one name; rename one")
    model = Path(settings.policy.model)
    if model.is_absolute() and not (model / "config.json").is_file():
        raise ConfigurationError(f"[policy] model: no config.json in {model}; name a Hugging Face folder")


def _check_agent(settings: RunSettings) -> None:
    agent = settings.agent
    if agent is None:
        return
    if (agent.callable is None) == (agent.command is None):
        raise ConfigurationError('[agent] needs either callable = "file.py:function" or command = "...", one of them')
    if agent.callable is not None:
        _check_spec("[agent] callable", agent.callable)
    if settings.reward is not None:
        _check_spec("[reward] grader", settings.reward.grader)
    if agent.python is not None and "/" in agent.python and not Path(agent.python).is_file():
        raise ConfigurationError(f"[agent] python: no such file: {agent.python}")


def _check_spec(key: str, spec: str) -> None:
    file, _, function = spec.rpartition(":")
    if not file or not function.isidentifier():
        raise ConfigurationError(f'{key}: expected "file.py:function", got {spec!r}')
    if not Path(file).is_file():
        raise ConfigurationError(f"{key}: no such file: {file}")


def _check_tasks(settings: RunSettings) -> None:
    if settings.tasks is None:
        return
    for key, file in (("file", settings.tasks.file), ("eval_file", settings.tasks.eval_file)):
        if file is not None and not Path(file).is_file():
            raise ConfigurationError(f"[tasks] {key}: no such file: {file}")
    if settings.tasks.group_size < 2:
        raise ConfigurationError("[tasks] group_size: a rollout is compared with its peers, so 2 or more")


def _check_numbers(settings: RunSettings) -> None:
    positive = {
        "[trainer] steps": settings.trainer.steps,
        "[trainer] groups_per_step": settings.trainer.groups_per_step,
        "[kafka] partitions": settings.kafka.partitions,
        "[streams] workers": settings.streams.workers,
        "[engine] max_model_len": settings.engine.max_model_len,
    }
    if settings.agent is not None:
        positive |= {"[agent] concurrency": settings.agent.concurrency, "[agent] hosts": settings.agent.hosts}
    for key, value in positive.items():
        if value < 1:
            raise ConfigurationError(f"{key}: expected at least 1, got {value}")
    if settings.pace.staleness < 0:
        raise ConfigurationError("[pace] staleness: expected 0 (synchronous) or more; 2 is recommended")
    if settings.trainer.lr < 0:
        raise ConfigurationError("[trainer] lr: expected 0 or more")
    if settings.policy.temperature <= 0:
        raise ConfigurationError(
            "[policy] temperature: training needs a sampled policy, so more than 0; "
            "[policy] validation_temperature may be 0"
        )
    if settings.streams.workers > settings.kafka.partitions:
        raise ConfigurationError(
            f"[streams] workers = {settings.streams.workers}: only [kafka] partitions = "
            f"{settings.kafka.partitions} can work at once; raise partitions (of a new run) or lower workers"
        )
    if settings.engine.url is not None and not settings.engine.url.startswith(("http://", "https://")):
        raise ConfigurationError(f"[engine] url: expected http://host:port, got {settings.engine.url!r}")
    if settings.trainer.lora_rank is not None and settings.trainer.lora_rank < 1:
        raise ConfigurationError("[trainer] lora_rank: expected at least 1; remove the key to train every weight")
