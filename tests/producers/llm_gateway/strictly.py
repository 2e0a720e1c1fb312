"""The installed SDKs' types as oracle: an answer has just their fields, each of its type."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter

T = TypeVar("T")


def parsed_as(type_: Any, body: bytes | str) -> Any:
    """The body as that type. AssertionError for a field that the type does not know, ValidationError for a bad one."""
    value = TypeAdapter(type_).validate_json(body, strict=True)
    assert list(_unknown(value, "$")) == []
    return value


def _unknown(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, BaseModel):
        yield from (f"{path}.{name}" for name in value.model_extra or ())
        for name in type(value).model_fields:
            yield from _unknown(getattr(value, name), f"{path}.{name}")
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from _unknown(item, f"{path}[{i}]")


def server_sent(sent: bytes) -> list[tuple[str | None, str]]:
    """(event, data) of a stream's text; the event's name must be its data's type."""
    events = []
    for block in sent.decode().split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        if not lines:
            continue
        fields = dict(line.split(": ", 1) for line in lines)
        if "event" in fields:
            assert json.loads(fields["data"])["type"] == fields["event"]
        events.append((fields.get("event"), fields["data"]))
    return events
