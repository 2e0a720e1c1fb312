"""Checks of a run's settings that no type can express: between fields, against the rooms, and against the file system.

In: converted settings. Out: nothing, or a ConfigurationError that names the key and the remedy. Invariant: what
passes here does not fail later in a process for a reason that the file could have told; so the rooms' own records,
which refuse what they cannot work with, are built here too, for a run that never starts.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

from tracegrad.producers.exposure import check_exposure
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.ids import parse_run_name
from tracegrad.schemas.topics import Stage

from .settings import RunSettings

__all__ = ["check", "nearest"]

_AT_LEAST = {
    "seed": 0,
    "agent.concurrency": 1,
    "agent.hosts": 1,
    "agent.flush_timeout_s": 1,
    "tasks.max_running": 1,
    "tasks.max_attempts": 1,
    "policy.max_tokens": 1,
    "policy.validation_temperature": 0,
    "engine.max_model_len": 1,
    "engine.max_num_seqs": 1,
    "engine.kv_cache_bytes": 1,
    "engine.threads": 1,
    "kafka.partitions": 1,
    "kafka.replication": 1,
    "otlp.port": 1,
    "llm.port": 1,
    "trainer.steps": 1,
    "trainer.groups_per_step": 1,
    "trainer.lr": 0,
    "trainer.warmup_steps": 0,
    "trainer.weight_decay": 0,
    "trainer.lora_alpha": 1,
    "trainer.constant_tokens": 1,
    "trainer.max_staleness": 0,
    "trainer.threads": 1,
    "trainer.micro_batch_tokens": 0,
    "trainer.keep_versions": 0,
    "streams.workers": 1,
}
"""Numbers below these cannot work; a key that is None is left to the room."""
_MAX_PORT = 65_535
_TOPIC_CHARACTERS = re.compile(r"[A-Za-z0-9._-]*")


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
    _check_relations(settings)
    _check_addresses(settings)
    _check_rooms(settings)
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
    # Here, for only an agent needs it, and `tracegrad status` checks none.
    from tracegrad.producers.runner.agent_host import FLUSH_LIMIT_S

    if agent.callable is not None and agent.flush_timeout_s >= FLUSH_LIMIT_S:
        raise ConfigurationError(
            f"[agent] flush_timeout_s: expected less than {FLUSH_LIMIT_S:g}, after which an agent host gives up its "
            f"flush, got {agent.flush_timeout_s:g}"
        )
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
    files = (("file", "--tasks", settings.tasks.file), ("eval_file", "--eval-tasks", settings.tasks.eval_file))
    for key, flag, file in files:
        if file is not None and not Path(file).is_file():
            raise ConfigurationError(f"[tasks] {key}: no such file: {file}; pass {flag} FILE")
    if settings.tasks.group_size < 2:
        raise ConfigurationError("[tasks] group_size: a rollout is compared with its peers, so 2 or more")


def _check_numbers(settings: RunSettings) -> None:
    for path, value in _values(settings):
        section, _, key = path.rpartition(".")
        where = f"[{section}] {key}" if section else key
        if isinstance(value, float):
            if not math.isfinite(value):
                raise ConfigurationError(f"{where}: expected a finite number, got {value}")
            if key.endswith("_s") and value <= 0:
                raise ConfigurationError(f"{where}: expected more than 0 seconds, got {value:g}")
        if not isinstance(value, int | float):
            continue
        if path in _AT_LEAST and value < _AT_LEAST[path]:
            raise ConfigurationError(f"{where}: expected at least {_AT_LEAST[path]}, got {value:g}")
        if key == "port" and value > _MAX_PORT:
            raise ConfigurationError(f"{where}: expected at most {_MAX_PORT}, got {value}")


def _values(settings: RunSettings) -> Iterable[tuple[str, object]]:
    """`section.key` and its value, for every key that has one value."""
    for name in RunSettings.__struct_fields__:
        section = getattr(settings, name)
        if isinstance(section, msgspec.Struct):
            for key in section.__struct_fields__:
                yield f"{name}.{key}", getattr(section, key)
        else:
            yield name, section


def _check_relations(settings: RunSettings) -> None:
    if settings.pace.staleness < 0:
        raise ConfigurationError("[pace] staleness: expected 0 (synchronous) or more; 2 is recommended")
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
    trainer, served = settings.trainer, settings.engine.dtype or "auto"
    published = trainer.dtype if trainer.publish_dtype == "auto" else trainer.publish_dtype
    if served != published and (settings.engine.url is None or settings.engine.dtype is not None):
        raise ConfigurationError(
            f"[engine] dtype is {served!r}, but versions are published as {published!r} ([trainer] publish_dtype, else "
            "dtype): the engine would not serve what was published; set both to the same, or neither"
        )
    if settings.trainer.lora_rank is not None and settings.trainer.lora_rank < 1:
        raise ConfigurationError("[trainer] lora_rank: expected at least 1; remove the key to train every weight")


def _check_addresses(settings: RunSettings) -> None:
    url = settings.engine.url
    if url is not None and not url.startswith(("http://", "https://")):
        raise ConfigurationError(f"[engine] url: expected http://host:port, got {url!r}")
    for section, gateway in (("llm", settings.llm), ("otlp", settings.otlp)):
        check_exposure(gateway.host, gateway.token, section=section)
    for key, name in (("topic_prefix", settings.kafka.topic_prefix), *settings.kafka.topics.items()):
        if not _TOPIC_CHARACTERS.fullmatch(name):
            raise ConfigurationError(f"[kafka] {key}: expected letters, digits, '.', '_' and '-' only, got {name!r}")


def _check_rooms(settings: RunSettings) -> None:
    """Builds what the processes would be given; each record raises for what it cannot work with."""
    # Here, because wiring imports the run's folder, and that the loading of settings; streams takes a while to load.
    from tracegrad.streams.assemble.air.rules import AirSignal

    from ..kafka.client_settings import shared_settings
    from .wiring import Wiring

    for rule in settings.air.rules:
        if rule.signal not in list(AirSignal):
            hint = nearest(rule.signal, AirSignal)
            raise ConfigurationError(f"[[air.rules]] {rule.name}: signal = {rule.signal!r}; {hint}")
    if len({rule.name for rule in settings.air.rules}) < len(settings.air.rules):
        raise ConfigurationError("[[air.rules]]: two rules have one name; rename one")
    wiring = Wiring.planned(settings)
    wiring.streams(Stage.NORMALIZE, 0)
    wiring.trainer()
    shared_settings(wiring.endpoints.bootstrap_servers, settings.kafka.client)
