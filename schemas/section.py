"""A section of the settings file: the base of the record that a component declares beside itself.

In: values, from the file (`compose/run/load.py`) or from code. Out: a frozen record, a docstring under each field,
which is what `--help` and docs/settings.md say of it.
Invariant: bounds stand in the types, so that a record that exists keeps them. Failure: ConfigurationError that begins
with the key; who knows the section's name puts it in front. A user's Python file that a section names (`file.py:name`)
is run here too, in this process; modules beside it can be imported, and whatever its code raises is told with its line.
"""

from __future__ import annotations

import ast
import difflib
import importlib.util
import inspect
import math
import operator
import re
import sys
import traceback
import typing
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import msgspec

from .errors import ConfigurationError


class PathKind(StrEnum):
    """What a text in a section names; relative ones are relative to the file."""

    FILE = "file"
    """Must exist at load."""
    FOLDER = "folder"
    """Is looked at by whoever uses it."""
    PROGRAM = "program"
    """An interpreter: a name on the path, or a file that exists."""
    FUNCTION = "function"
    """`file.py:function`, of a file that exists."""
    NAME_OR_FUNCTION = "name_or_function"
    """A name that we know, or as FUNCTION."""
    MODEL = "model"
    """A Hugging Face folder that exists, or a name on a hub."""


Whole = Annotated[int, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(ge=1)]
Device = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^(auto|cpu|cuda(:\d{1,2})?)$", description="`auto`, `cpu`, `cuda` or `cuda:N`, the N-th GPU (from 0)"
    ),
]
Seconds = Annotated[float, msgspec.Meta(gt=0)]
Port = Annotated[int, msgspec.Meta(ge=1, le=65_535)]
File = Annotated[str, PathKind.FILE]
Folder = Annotated[str, PathKind.FOLDER]
Program = Annotated[str, PathKind.PROGRAM]
Function = Annotated[str, PathKind.FUNCTION]
NameOrFunction = Annotated[str, PathKind.NAME_OR_FUNCTION]
Model = Annotated[str, PathKind.MODEL]


_BOUNDS: dict[str, tuple[Callable[[float, float], bool], str]] = {
    "ge": (operator.ge, "at least"),
    "gt": (operator.gt, "more than"),
    "le": (operator.le, "at most"),
    "lt": (operator.lt, "less than"),
}


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A record that refuses numbers beyond the bounds of their fields' types; checks between fields are added by
    `__post_init__`, which calls this one first.
    """

    def __post_init__(self) -> None:
        for key, remarks in _remarks(type(self)).items():
            value = getattr(self, key)
            if isinstance(value, float) and not math.isfinite(value):
                raise ConfigurationError(f"{key}: expected a finite number, got {value}")
            for bound in remarks:
                if isinstance(bound, msgspec.Meta):
                    _check_bound(key, value, bound)

    @classmethod
    @cache
    def kinds(cls) -> dict[str, Any]:
        """The types of its fields, without their bounds."""
        return typing.get_type_hints(cls)

    @classmethod
    def path_kinds(cls) -> dict[str, PathKind]:
        """The fields that name something in the file system."""
        return {key: kind for key, remarks in _remarks(cls).items() for kind in remarks if isinstance(kind, PathKind)}

    @classmethod
    def docs(cls) -> dict[str, str]:
        """What stands under each field, on one line; `--help` and docs/settings.md are made of it."""
        found: dict[str, str] = {}
        for record in reversed(cls.__mro__):
            if issubclass(record, Section):
                found |= documented(record.__module__).get(record.__name__, {})
        return found


def section_of(kind: Any) -> type[Section] | None:
    """The record in a field's type `Record`, `Record | None` or `tuple[Record, ...]`."""
    if isinstance(kind, type) and issubclass(kind, Section):
        return kind
    return next((found for part in typing.get_args(kind) if (found := section_of(part))), None)


def nearest(name: str, valid: Iterable[str]) -> str:
    """The hint that goes with a wrong name: the nearest valid one, else all of them."""
    names = [str(one) for one in valid]
    found = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {found[0]!r}?" if found else f"valid are {', '.join(names)}"


def _check_bound(key: str, value: Any, bound: msgspec.Meta) -> None:
    if isinstance(value, str) and bound.pattern and not re.search(bound.pattern, value):
        raise ConfigurationError(f"{key}: expected {bound.description or bound.pattern}, got {value!r}")
    for name, (is_kept, words) in _BOUNDS.items() if isinstance(value, int | float) else ():
        limit = getattr(bound, name)
        if limit is not None and not is_kept(value, limit):
            raise ConfigurationError(f"{key}: expected {words} {limit:g}, got {value:g}")


@cache
def _remarks(record: type[Section]) -> dict[str, tuple[Any, ...]]:
    """What the types of a record's fields say beyond the type."""
    return {key: tuple(_said(hint)) for key, hint in typing.get_type_hints(record, include_extras=True).items()}


@cache
def documented(module: str) -> dict[str, dict[str, str]]:
    """Class -> field or member -> docstring, read from the module's source: Python keeps none of these."""
    found: dict[str, dict[str, str]] = {}
    for record in ast.parse(inspect.getsource(sys.modules[module])).body:
        if isinstance(record, ast.ClassDef):
            found[record.name] = {
                ast.unparse(field.target if isinstance(field, ast.AnnAssign) else field.targets[0]): " ".join(
                    doc.value.value.split()
                )
                for field, doc in pairwise(record.body)
                if isinstance(field, ast.AnnAssign | ast.Assign) and isinstance(doc, ast.Expr)
                if isinstance(doc.value, ast.Constant) and isinstance(doc.value.value, str)
            }
    return found


def _said(hint: Any) -> Iterator[Any]:
    yield from getattr(hint, "__metadata__", ())
    if typing.get_origin(hint) is not Annotated:
        for part in typing.get_args(hint):
            yield from _said(part)


def module_of(file: str, key: str) -> ModuleType:
    """The file's module, run anew, under a name that meets none of ours."""
    spec = importlib.util.spec_from_file_location(f"tracegrad_user_{Path(file).stem}", file)
    if spec is None or spec.loader is None:
        raise ConfigurationError(f"{key}: expected a Python file, got {file}")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    sys.path.append(str(Path(file).parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        at = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
        where = f"line {(at or [getattr(error, 'lineno', 0)])[-1]}: {type(error).__name__}"
        raise ConfigurationError(f"{key}: {file} cannot be run: {where}: {error}; mend it and start again") from error
    return module


def declared(group: str) -> dict[str, EntryPoint]:
    """What installed packages declare under a group of entry points, by name."""
    return {one.name: one for one in entry_points(group=group)}


def function_of(reference: str, key: str) -> Callable[..., Any]:
    """The function that `file.py:name` names."""
    file, _, name = reference.rpartition(":")
    module = module_of(file, key)
    found = getattr(module, name, None)
    if not callable(found):
        there = [one for one, value in vars(module).items() if callable(value)]
        hint = f"; {nearest(name, there)}" if there else ""
        raise ConfigurationError(f"{key}: expected a function {name!r} in {file}, got {found!r}{hint}")
    return found  # type: ignore[no-any-return]


def function_named(name: str, group: str, key: str) -> Callable[..., Any]:
    """The function of `file.py:name`, or of an entry point of the group that an installed package declares.

    Raises:
        ConfigurationError: its code cannot be run, or holds none.
    """
    if ":" in name:
        return function_of(name, key)
    entry = declared(group)[name]
    try:
        found = entry.load()
    except Exception as error:  # the package's code
        raise ConfigurationError(
            f"{key}: {name!r} of package {entry.value} cannot be imported: {error}; mend or remove it"
        ) from error
    if not callable(found):
        raise ConfigurationError(f"{key}: expected a function at {entry.value}, got {found!r}")
    return found  # type: ignore[no-any-return]
