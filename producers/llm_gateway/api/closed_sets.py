"""Which values a field of a closed set may have: for the 400 that names them. Pure.

In: a type of one API and the place in a body at which msgspec found a value outside the set. Out: the values that stand
there, in the API's own words; none where the place holds no closed set.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import inspect

__all__ = ["allowed_values"]

_STEP = re.compile(r"\.(\w+)|\[([^\]]*)\]")


def allowed_values(type_: Any, body: Any, path: str) -> list[str]:
    """The values at a path such as `.messages[1].role` of this body; a `type` that tells structs apart is a closed set
    too."""
    kinds = [*_flat(inspect.type_info(type_))]
    value, found = body, list[str]()
    for step in _STEP.finditer(path):
        name, index = step.groups()
        if name is None:
            kinds, found = [*_items(kinds)], []
            value = value[int(index)] if isinstance(value, list) and index.isdecimal() else None
            continue
        said = value if isinstance(value, dict) else {}
        found = [str(kind.tag) for kind in _structs(kinds) if kind.tag_field == name]
        kinds = [*_fields((kind for kind in _structs(kinds) if said.get(kind.tag_field, kind.tag) == kind.tag), name)]
        value = said.get(name)
    for kind in kinds:
        if isinstance(kind, inspect.LiteralType):
            found += map(str, kind.values)
        elif isinstance(kind, inspect.EnumType):
            found += [str(member.value) for member in kind.cls]
    return [*dict.fromkeys(found)]


def _structs(kinds: Iterable[Any]) -> Iterator[inspect.StructType]:
    return (kind for kind in kinds if isinstance(kind, inspect.StructType))


def _flat(kind: Any) -> Iterator[Any]:
    """The types that a value may have."""
    if isinstance(kind, inspect.UnionType):
        for one in kind.types:
            yield from _flat(one)
    elif isinstance(kind, inspect.Metadata):
        yield from _flat(kind.type)
    else:
        yield kind


def _items(kinds: Iterable[Any]) -> Iterator[Any]:
    for kind in kinds:
        if isinstance(kind, inspect.ListType | inspect.VarTupleType):
            yield from _flat(kind.item_type)


def _fields(kinds: Iterable[Any], name: str) -> Iterator[Any]:
    for kind in _structs(kinds):
        for field in kind.fields:
            if field.encode_name == name:
                yield from _flat(field.type)
