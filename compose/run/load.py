"""The one TOML file, the environment above it, flags above both: `load` gives checked `RunSettings`.

In: a TOML file, variables TRACEGRAD_<SECTION>_<KEY>, flags as `section.key -> value`. Out: settings with
absolute paths. Unknown keys are refused with the nearest valid name; checks between fields (`checks.py`) fail
here and name the fix, not an hour later in a process. Every failure is a ConfigurationError. Called by command
line entry points only.
"""

from __future__ import annotations

import re
import tomllib
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from tracegrad.schemas.errors import ConfigurationError

from .checks import check, nearest
from .settings import RunSettings

__all__ = ["ENV_PREFIX", "load", "read_resolved", "write_resolved"]

ENV_PREFIX = "TRACEGRAD_"
_PATHS = (
    ("agent", "python"),
    ("agent", "cwd"),
    ("tasks", "file"),
    ("tasks", "eval_file"),
    ("engine", "python"),
    ("engine", "tool_parser_plugin"),
)
_SPECS = (("agent", "callable"), ("reward", "grader"))
"""`file.py:function`: the part before the last colon is a path."""
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def load(
    path: Path | None,
    *,
    environ: Mapping[str, str],
    flags: Mapping[str, Any],
    for_training: bool = False,
) -> RunSettings:
    """The settings of a run.

    Args:
        path: the TOML file; None: only environment and flags.
        environ: the process's environment.
        flags: `section.key` or `key` -> value; None values are ignored; their paths are relative to the cwd.
        for_training: the run needs an agent, tasks and a grader.
    Raises:
        ConfigurationError: anything about them that cannot work, with the key and the remedy.
    """
    data = _read_toml(path) if path else {}
    _refuse_unknown(data, RunSettings, where="", source=str(path))
    _absolute_paths(data, path.resolve().parent if path else Path.cwd())
    above = _from_environment(environ)
    for name, value in flags.items():
        if value is not None:
            _put(above, name, value, f"flag for {name}")
    _absolute_paths(above, Path.cwd())
    _merge(data, above)
    settings = _convert(data, str(path) if path else "the command line")
    check(settings, for_training=for_training)
    return settings


def write_resolved(path: Path, settings: RunSettings) -> None:
    """Writes the settings beside the run, for `tracegrad serve` and for people."""
    encoded = msgspec.json.format(msgspec.json.encode(settings, order="deterministic"), indent=2)
    scratch = path.with_suffix(".tmp")
    scratch.write_bytes(encoded + b"\n")
    scratch.replace(path)


def read_resolved(path: Path) -> RunSettings:
    """The settings that `write_resolved` wrote. Raises ConfigurationError when they are not there."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=RunSettings)
    except FileNotFoundError:
        raise ConfigurationError(
            f"expected a run folder with config.json, got none at {path}; start the run with "
            "`tracegrad up` or `tracegrad train FILE`, or name its folder by --run-dir"
        ) from None
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ConfigurationError(f"{path}: {error}; it was written by another release") from error


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        raise ConfigurationError(f"no such file: {path}") from None
    except IsADirectoryError:
        raise ConfigurationError(f"{path} is a folder; name the TOML file in it") from None
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} is not TOML: {error}") from error


def _fields(record: type[msgspec.Struct]) -> dict[str, Any]:
    return {field.name: field.type for field in msgspec.structs.fields(record)}


def _struct_of(kind: Any) -> type[msgspec.Struct] | None:
    """The Struct in `Struct`, `Struct | None` or `tuple[Struct, ...]`."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) in (typing.Union, tuple):
        return next((found for part in typing.get_args(kind) if (found := _struct_of(part))), None)
    return None


def _refuse_unknown(data: Mapping[str, Any], record: type[msgspec.Struct], *, where: str, source: str) -> None:
    fields = _fields(record)
    for key, value in data.items():
        if key not in fields:
            kind = "section" if isinstance(value, dict) else "key"
            raise ConfigurationError(
                f"{source}: unknown {kind} {key!r}{f' in [{where}]' if where else ''}; {nearest(key, fields)}"
            )
        inner = _struct_of(fields[key])
        if inner is None:
            continue
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, dict):
                _refuse_unknown(item, inner, where=f"{where}.{key}" if where else key, source=source)


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """Variables of our sections; another one that begins with TRACEGRAD_ is somebody else's business."""
    above: dict[str, Any] = {}
    sections = {name for name, kind in _fields(RunSettings).items() if _struct_of(kind)}
    for variable in sorted(environ):
        if not variable.startswith(ENV_PREFIX):
            continue
        section, _, key = variable.removeprefix(ENV_PREFIX).lower().partition("_")
        if section in sections and key:
            _put(above, f"{section}.{key}", environ[variable], variable)
        elif section in ("run", "seed") and not key:
            _put(above, section, environ[variable], variable)
    return above


def _put(target: dict[str, Any], name: str, value: Any, source: str) -> None:
    """Sets `section.key`; a text is read as the field's type."""
    section, _, key = name.rpartition(".")
    record: type[msgspec.Struct] = RunSettings
    if section:
        kind = _fields(RunSettings).get(section)
        inner = _struct_of(kind) if kind is not None else None
        if inner is None:
            hint = nearest(section, _fields(RunSettings))
            raise ConfigurationError(f"{source}: unknown section {section!r}; {hint}")
        record = inner
    fields = _fields(record)
    if key not in fields:
        raise ConfigurationError(f"{source}: unknown key {name}; {nearest(key, fields)}")
    if isinstance(value, str):
        value = _from_text(value, fields[key], source)
    (target.setdefault(section, {}) if section else target)[key] = value


def _from_text(text: str, kind: Any, source: str) -> Any:
    value: Any = text
    if text[:1] in ("[", "{"):
        try:
            value = msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            raise ConfigurationError(f"{source}: expected JSON, got {error}") from error
    try:
        return msgspec.to_builtins(msgspec.convert(value, kind, strict=False))
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{source}: {error}") from error


def _merge(below: dict[str, Any], above: Mapping[str, Any]) -> None:
    for key, value in above.items():
        if isinstance(value, dict) and isinstance(below.get(key), dict):
            below[key] = {**below[key], **value}
        else:
            below[key] = value


def _absolute_paths(data: dict[str, Any], folder: Path) -> None:
    def absolute(text: str) -> str:
        # Not resolve(): the python of a virtual environment is a link that must stay one.
        return str(Path(folder, Path(text).expanduser()))

    def value_of(section: str, key: str) -> str | None:
        table = data.get(section)
        value = table.get(key) if isinstance(table, dict) else None
        return value if isinstance(value, str) else None

    for section, key in _PATHS:
        text = value_of(section, key)
        if text and (key != "python" or "/" in text):
            data[section][key] = absolute(text)
    for section, key in _SPECS:
        file, colon, function = (value_of(section, key) or "").rpartition(":")
        if colon:
            data[section][key] = f"{absolute(file)}:{function}"
    model = value_of("policy", "model")
    if model and (Path(folder, model).exists() or not _HUB_NAME.fullmatch(model)):
        data["policy"]["model"] = absolute(model)
    agent = data.get("agent")
    if isinstance(agent, dict) and ("callable" in agent or "command" in agent):
        agent.setdefault("cwd", str(folder))


def _convert(data: dict[str, Any], source: str) -> RunSettings:
    try:
        return msgspec.convert(data, RunSettings)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{source}: {_readable(str(error))}") from error


def _readable(message: str) -> str:
    """msgspec's message with the key as the file spells it, and the flag that would give a missing one."""
    missing = re.match(r"Object missing required field `(\w+)`(?: - at `\$\.(\w+)`)?", message)
    if missing:
        section, key = missing[2], missing[1]
        flags = {
            ("tasks", "file"): "--tasks FILE",
            ("policy", "model"): "--model DIR",
            (None, "run"): "--run NAME, or name the TOML file",
        }
        flag = flags.get((section, key))
        where = f"[{section}] {key}" if section else f"section or key {key!r}"
        return f"{where} is missing; add it{f', or pass {flag}' if flag else ''}"
    other = re.match(r"Invalid enum value (.+) - at `\$\.(\w+)\.(\w+)`", message)
    inner = _struct_of(_fields(RunSettings)[other[2]]) if other else None
    if other and inner is not None:
        valid = ", ".join(_choices(_fields(inner)[other[3]]))
        return f"[{other[2]}] {other[3]}: expected one of {valid}, got {other[1]}"
    return re.sub(r" - at `\$\.?(.*)`", lambda found: f" (key {found[1]})", message)


def _choices(kind: Any) -> list[str]:
    """The texts that a `Literal`, or one in a union, allows."""
    return [text for part in typing.get_args(kind) for text in ([part] if isinstance(part, str) else _choices(part))]
