"""OTLP in JSON, item by item: one that is no span or log record does not cost its neighbours, as in protobuf.

In: a body. Out: a request of every item that can be read, and what could not, by reference. Invariant: unknown fields
are ignored, at every level; an item is taken whole or not at all; of a resource the attributes that can be read are
kept. Failure: UndecodableError: it is no JSON object, nothing of it can be read, or more than a thousand parts cannot.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec
from google.protobuf import json_format  # type: ignore[import-untyped]
from google.protobuf.message import Message  # type: ignore[import-untyped]

from ..errors import UndecodableError
from ..reasons import Reason
from ..text import decode_json
from .salvage import MAX_LOST, LostPart, SalvagedRequest
from .signal import Signal

_ERRORS = (ValueError, TypeError, AttributeError, RecursionError, json_format.Error)
"""What protobuf raises for JSON that is another thing than the message."""
_INTEGER = re.compile(r"-?[0-9]{1,18}")
"""One that surely has 64 bits; of others protobuf judges."""
_IDS = ("trace_id", "span_id", "parent_span_id")


def read_json(signal: Signal, data: bytes) -> SalvagedRequest:
    """Raises UndecodableError."""
    try:
        # JavaScript cuts text between the halves of a pair, and a batch is not lost by it.
        body = msgspec.convert(decode_json(data), dict[str, Any])
    except _ERRORS as error:
        raise _refusal(error) from error
    return _JsonReader(signal).request_of(body)


def _refusal(error: Exception) -> UndecodableError:
    what = f"expected OTLP JSON, got {type(error).__name__}: {str(error)[:200]}"
    return UndecodableError(what, reason=Reason.UNDECODABLE)


class _JsonReader:
    """One pass over a body."""

    def __init__(self, signal: Signal) -> None:
        self._signal = signal
        self._lost: list[LostPart] = []
        self._error: Exception | None = None
        """Why the first of what is lost cannot be read."""

    def request_of(self, body: dict[str, Any]) -> SalvagedRequest:
        """The whole request."""
        signal, num_items = self._signal, 0
        request = signal.request()
        for said, of_resource in self._each(body, request, signal.resources):
            if not self._takes_around(of_resource, said, signal.scopes):
                self._take_attributes(of_resource.resource.attributes, said.get("resource"))
            for said_scope, of_scope in self._each(said, of_resource, signal.scopes):
                self._takes_around(of_scope, said_scope, signal.fields)
                for said_item, item in self._each(said_scope, of_scope, signal.fields):
                    if self._reads(item, said_item):
                        num_items += 1
                    else:
                        del getattr(of_scope, signal.fields)[-1]
                        self._lose(said_item)
        if self._error is not None and num_items == 0:
            raise _refusal(self._error) from self._error
        return SalvagedRequest(request, tuple(self._lost))

    def _each(self, said: dict[str, Any], message: Message, field: str) -> Iterator[tuple[dict[str, Any], Any]]:
        """What is said of each message of a repeated field, and that message, to be filled."""
        name, other = _names(message, field)
        many = said.get(name, said.get(other))
        is_list = many is None or isinstance(many, list)
        for one in many or () if is_list else (many,):
            if is_list and isinstance(one, dict):
                yield one, getattr(message, field).add()
            else:
                self._error = self._error or TypeError(
                    f"{name} is to be a list of objects, {type(one).__name__} is none"
                )
                self._lose(one)

    def _takes_around(self, message: Message, said: dict[str, Any], within: str) -> bool:
        """Whether a resource or scope can be read, without what it holds `within`; else it is empty and lost."""
        names = _names(message, within)
        own = {name: value for name, value in said.items() if name not in names}
        if self._reads(message, own):
            return True
        message.Clear()
        self._lose(own)
        return False

    def _take_attributes(self, pairs: Any, resource: object) -> None:
        """Those of a lost resource that can be read."""
        said = resource.get("attributes") if isinstance(resource, dict) else None
        for one in said if isinstance(said, list) else ():
            if not self._reads(pairs.add(), one):
                del pairs[-1]

    def _reads(self, message: Any, said: object) -> bool:
        try:
            json_format.ParseDict(_without_plain(said, message), message, ignore_unknown_fields=True)
            for named in (message, *getattr(message, "links", ())):
                _read_hex(named)
        except _ERRORS as error:
            self._error = self._error or error
            return False
        return True

    def _lose(self, said: object) -> None:
        self._lost.append(LostPart.of(json.dumps(said).encode()))
        if len(self._lost) > MAX_LOST:
            what = f"expected OTLP JSON, got more than {MAX_LOST} parts that are none"
            raise UndecodableError(what, reason=Reason.UNDECODABLE)


def _without_plain(said: Any, message: Any) -> Any:
    """An item less its attributes, which the message has then; all of it where one of them is more than a plain value.

    Protobuf reads an attribute of JSON in 40 us, and of an item there are twenty.
    """
    attributes = said.get("attributes") if isinstance(said, dict) else None
    if not isinstance(attributes, list) or not hasattr(message, "attributes"):
        return said
    plain = [pair for one in attributes if (pair := _plain(one)) is not None]
    if len(plain) < len(attributes):
        return said
    add = message.attributes.add
    for key, field, value in plain:
        setattr(add(key=key).value, field, value)
    return {name: value for name, value in said.items() if name != "attributes"}


def _plain(said: Any) -> tuple[str, str, Any] | None:
    """Key, field and value of an attribute that is a text, a number or a truth, as nearly all are."""
    value = said.get("value") if isinstance(said, dict) and len(said) == 2 else None
    if not isinstance(value, dict) or len(value) != 1 or type(key := said.get("key")) is not str:
        return None
    ((name, held),) = value.items()
    if name == "stringValue" and type(held) is str:
        return key, "string_value", held
    if name == "intValue" and type(held) is str and _INTEGER.fullmatch(held):
        return key, "int_value", int(held)
    return (key, "bool_value", held) if name == "boolValue" and type(held) is bool else None


def _names(message: Message, field: str) -> tuple[str, str]:
    """What JSON may call a field."""
    return message.DESCRIPTOR.fields_by_name[field].json_name, field


def _read_hex(item: Any) -> None:
    """OTLP JSON writes ids in hex, which protobuf's JSON mapping has just read as if they were base64."""
    for name in _IDS:
        if misread := getattr(item, name, b""):
            setattr(item, name, bytes.fromhex(base64.b64encode(misread).decode()))
