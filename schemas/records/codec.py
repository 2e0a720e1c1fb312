"""How records become bytes: one typed encoder and decoder per record family, built once.

Bytes out are deterministic (equal records, equal bytes). Bytes in are checked: a record names its released
schema in the field `schema`; a reader accepts every released name and refuses others with UndecodableError, which
the caller turns into a dead letter.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Generic, Literal, Self, TypeVar

import msgspec

from ..errors import UndecodableError
from ..reasons import Reason

T = TypeVar("T")
_TOLD_CHARS = 200
"""Of what the record says itself, which may be of megabytes, in an error."""


class OpenEnum(StrEnum):
    """A set of words that later releases may add to; a word that this one does not know is read as `unknown`."""

    @classmethod
    def _missing_(cls, value: object) -> Self:
        return cls("unknown")


class Codec(Generic[T]):
    """Encodes and decodes one record type or tagged union.

    Args:
        record: a msgspec Struct, or a union of tagged ones.
        released: the schema names that may stand in the records' `schema` field.
        wire: JSON where a person reads, msgpack where a machine does.
    """

    def __init__(self, record: Any, *, released: tuple[str, ...], wire: Literal["json", "msgpack"]) -> None:
        self._released = released
        form: Any = msgspec.json if wire == "json" else msgspec.msgpack
        self._encoder = form.Encoder(order="deterministic")
        self._decoder = form.Decoder(record)

    def encode(self, record: T) -> bytes:
        """The record's bytes; equal records give equal bytes."""
        encoded: bytes = self._encoder.encode(record)
        return encoded

    def decode(self, data: bytes | None) -> T:
        """The record of these bytes.

        Raises:
            UndecodableError: no such record (reason `malformed`), an unreleased schema (`unknown_schema`), a tombstone
                (`null_value`).
        """
        if data is None:
            raise UndecodableError("expected a record, got a tombstone (null value)", reason=Reason.NULL_VALUE)
        try:
            record: T = self._decoder.decode(data)
        except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError) as error:
            raise UndecodableError(f"expected one of {self._released}, got {str(error)[:_TOLD_CHARS]}") from error
        schema = getattr(record, "schema", None)
        if schema not in self._released:
            told = str(schema)[:_TOLD_CHARS]
            raise UndecodableError(
                f"expected schema in {self._released}, got {told!r}; this reader is older than the writer",
                reason=Reason.UNKNOWN_SCHEMA,
            )
        return record
