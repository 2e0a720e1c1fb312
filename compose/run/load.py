"""The one TOML file, the environment above it, flags above both: `load` gives checked `RunSettings`.

In: a TOML file, variables TRACEGRAD_<SECTION>_<KEY>, flags as `section.key -> value`. Out: settings with absolute
paths. One walk over the records (`_build`) finds unknown keys, missing keys and wrong types, so that messages are our
own whatever msgspec says; each record refuses what it cannot work with. What cannot work fails here and names the
key, not an hour later in a process. Every failure is a ConfigurationError. Called by command line entry points only.
"""

from __future__ import annotations

import re
import tomllib
import typing
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tracegrad.producers.llm_gateway.config import RUN_MODEL
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.section import PathKind, Section, nearest, section_of

from .settings import GONE, RunSettings, choices, type_words

S = TypeVar("S", bound=Section)
ENV_PREFIX = "TRACEGRAD_"
_FLAGS = {
    "run": "--run NAME, or name the TOML file",
    "tasks.file": "--tasks FILE",
    "tasks.eval_file": "--eval-tasks FILE",
    "policy.model": "--model DIR",
}
"""How a key that is missing or wrong can be given without editing the file."""
_FUNCTIONS = (PathKind.FUNCTION, PathKind.NAME_OR_FUNCTION)
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
    _absolute_paths(data, path.resolve().parent if path else Path.cwd())
    above: dict[str, Any] = {}
    given = [(name, value, f"flag for {name}") for name, value in flags.items() if value is not None]
    for name, value, origin in (*_variables(environ), *given):
        _put(above, name, value, origin)
    _absolute_paths(above, Path.cwd())
    source = str(path) if path else "the command line"
    try:
        settings = _build(RunSettings, _merged(data, above))
        _check_paths(settings)
    except ConfigurationError as error:
        raise ConfigurationError(f"{source}: {error}") from error
    if for_training and settings.select.train:
        raise ConfigurationError(
            f"{source}: [select] train: a run that trains on captured traffic goes on until a person stops it; start "
            "it by `tracegrad up`, or leave the key out"
        )
    if for_training:
        settings.policy.needed_model()
    for section in ("agent", "tasks", "reward"):
        if for_training and getattr(settings, section) is None:
            raise ConfigurationError(
                f"training needs a section [{section}]; add it, or bring your own agent to `tracegrad up`"
            )
    return settings


def load_over(settings: RunSettings, flags: Mapping[str, Any], *, unused: Collection[str] = ()) -> RunSettings:
    """A run's own settings, and flags above them. Raises ConfigurationError as `load`.

    `unused`: sections whose files nobody will open, so that they may be gone.
    """
    above: dict[str, Any] = {}
    for name, value in flags.items():
        _put(above, name, value, f"flag for {name}")
    _absolute_paths(above, Path.cwd())
    made = _build(RunSettings, _merged(_without_none(msgspec.to_builtins(settings)), above))
    _check_paths(made, unused)
    return made


def _without_none(table: dict[str, Any]) -> dict[str, Any]:
    """What a file would say: none of its forms is a null."""
    return {
        key: _without_none(value) if isinstance(value, dict) else value
        for key, value in table.items()
        if value is not None
    }


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


def _build(record: type[S], table: Mapping[str, Any], where: str = "") -> S:
    """The record that a table describes; `where` is the section's name."""
    kinds = record.kinds()
    given = {}
    for key, value in table.items():
        if key not in kinds:
            what = f"section {key!r}" if isinstance(value, dict) else f"key {key!r}"
            remedy = _instead(f"{where}.{key}" if where else key, kinds)
            raise ConfigurationError(f"unknown {what}{f' in [{where}]' if where else ''}; {remedy}")
        given[key] = _value(value, kinds[key], f"{where}.{key}" if where else key)
    for field in msgspec.structs.fields(record):
        if field.required and field.name not in given:
            path = f"{where}.{field.name}" if where else field.name
            what = _spelt(path) if where else f"section or key {path!r}"
            raise ConfigurationError(f"{what} is missing; add it{_or_flag(path)}")
    try:
        return record(**given)
    except ConfigurationError as error:
        raise ConfigurationError(f"[{where}] {error}" if where else str(error)) from error


def _instead(path: str, kinds: Collection[str]) -> str:
    """What to say in place of a section or key that there is not."""
    return f"it is gone: {GONE[path]}" if path in GONE else nearest(path.rpartition(".")[2], kinds)


def _value(value: Any, kind: Any, path: str) -> Any:
    section = section_of(kind)
    if section is None:
        return _plain(value, kind, _spelt(path))
    if typing.get_origin(kind) is tuple and isinstance(value, list | tuple):
        names = [item.get("name", number) if isinstance(item, dict) else number for number, item in enumerate(value)]
        return tuple(_value(item, section, f"{path}.{name}") for name, item in zip(names, value, strict=True))
    if not isinstance(value, dict):
        raise ConfigurationError(f"{_spelt(path)}: expected a table, got {value!r}")
    if typing.get_origin(kind) is dict:
        return {name: _value(item, section, f"{path}.{name}") for name, item in value.items()}
    return _build(section, value, path)


def _plain(value: Any, kind: Any, where: str, *, strict: bool = True) -> Any:
    try:
        return msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError:
        pass
    allowed = choices(kind)
    hint = f"; {nearest(value, allowed)}" if allowed and isinstance(value, str) else ""
    raise ConfigurationError(f"{where}: expected {type_words(kind)}, got {value!r}{hint}")


def _spelt(path: str) -> str:
    """`[section] key`, as the file spells it."""
    section, _, key = path.rpartition(".")
    return f"[{section}] {key}" if section else key


def _or_flag(path: str) -> str:
    return f", or pass {_FLAGS[path]}" if path in _FLAGS else ""


def _variables(environ: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Name, value and origin of our keys; another variable that begins with TRACEGRAD_ is somebody else's business."""
    for variable in sorted(environ):
        first, _, key = variable.removeprefix(ENV_PREFIX).lower().partition("_")
        kind = RunSettings.kinds().get(first) if variable.startswith(ENV_PREFIX) else None
        if kind is not None and bool(key) == (bool(section_of(kind)) and not _is_list(kind)):
            yield f"{first}.{key}" if key else first, environ[variable], variable


def _is_list(kind: Any) -> bool:
    return typing.get_origin(kind) is tuple


def _put(target: dict[str, Any], name: str, value: Any, source: str) -> None:
    """Sets `section.key`; a text is read as the field's type."""
    section, _, key = name.rpartition(".")
    kind = RunSettings.kinds().get(section)
    record = section_of(kind) if section else RunSettings
    if _is_list(kind):
        raise ConfigurationError(f"{source}: [[{section}]] is a list; give all of it: --set {section}='[...]'")
    if record is None:
        raise ConfigurationError(f"{source}: unknown section {section!r}; {nearest(section, RunSettings.kinds())}")
    kinds = record.kinds()
    if key not in kinds:
        raise ConfigurationError(f"{source}: unknown key {name}; {_instead(name, kinds)}")
    if isinstance(value, str):
        value = _from_text(value, kinds[key], source)
    (target.setdefault(section, {}) if section else target)[key] = value


def _from_text(text: str, kind: Any, source: str) -> Any:
    value: Any = text
    if text[:1] in ("[", "{"):
        try:
            value = msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            value = _from_toml(text, f"{source}: expected JSON, or a value of TOML, got {error}")
        if section_of(kind):
            return value
    return msgspec.to_builtins(_plain(value, kind, source, strict=False))


def _from_toml(text: str, refusal: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{refusal}; {error}") from error


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    both = dict(below)
    for key, value in above.items():
        old = both.get(key)
        both[key] = {**old, **value} if isinstance(value, dict) and isinstance(old, dict) else value
    return both


def _absolute_paths(data: dict[str, Any], folder: Path) -> None:
    """Makes each path absolute that a table of sections holds."""
    for name, kind in RunSettings.kinds().items():
        section, table = section_of(kind), data.get(name)
        if section is None or not isinstance(table, dict):
            continue
        for key, path_kind in section.path_kinds().items():
            value = table.get(key)
            if isinstance(value, str) and value:
                table[key] = _absolute(value, path_kind, folder)
            elif isinstance(value, list | tuple):
                table[key] = [_absolute(one, path_kind, folder) if isinstance(one, str) else one for one in value]
    agent = data.get("agent")
    if isinstance(agent, dict) and ("callable" in agent or "command" in agent):
        agent.setdefault("cwd", str(folder))


def _absolute(text: str, kind: PathKind, folder: Path) -> str:
    if kind is PathKind.PROGRAM and "/" not in text:
        return text
    if kind is PathKind.MODEL and text.startswith(RUN_MODEL):
        return text
    if kind is PathKind.MODEL and _HUB_NAME.fullmatch(text) and not Path(folder, text).exists():
        return text
    file, colon, function = text.rpartition(":") if kind in _FUNCTIONS else (text, "", "")
    # Not resolve(): the python of a virtual environment is a link that must stay one.
    return f"{Path(folder, Path(file).expanduser())}{colon}{function}" if file else text


def _check_paths(settings: RunSettings, unused: Collection[str] = ()) -> None:
    """Raises ConfigurationError unless what the settings name is there."""
    for name in settings.__struct_fields__:
        if name in unused:
            continue
        section = getattr(settings, name)
        for key, kind in section.path_kinds().items() if isinstance(section, Section) else ():
            path = f"{name}.{key}"
            value = getattr(section, key)
            for text in value if isinstance(value, tuple) else (value,):
                if text is not None and (problem := _problem(text, kind)):
                    raise ConfigurationError(f"{_spelt(path)}: {problem}{_or_flag(path).replace(', or', ';')}")


def _problem(text: str, kind: PathKind) -> str | None:
    if kind is PathKind.MODEL:
        is_absent = Path(text).is_absolute() and not Path(text, "config.json").is_file()
        return f"no config.json in {text}; name a Hugging Face folder" if is_absent else None
    if kind is PathKind.FOLDER or (kind is PathKind.PROGRAM and "/" not in text):
        return None
    file = text
    if kind is PathKind.NAME_OR_FUNCTION and ":" not in text:
        return None
    if kind in _FUNCTIONS:
        file, _, function = text.rpartition(":")
        if not file or not function.isidentifier():
            return f'expected "file.py:function", got {text!r}'
    if not Path(file).is_file():
        return f"no such file: {file}"
    return _missing_function(file, function) if kind in _FUNCTIONS else None


def _missing_function(file: str, function: str) -> str | None:
    """What is wrong if nothing in a file could define a function; it is not imported, which may take long."""
    source = Path(file).read_text(errors="replace")
    if re.search(rf"\b{function}\b|import \*", source):
        return None
    defined = re.findall(r"^(?:async )?(?:def|class) ([A-Za-z]\w*)", source, re.MULTILINE)
    return f"no {function!r} in {file}; it has: {', '.join(defined) or 'no function'}"
