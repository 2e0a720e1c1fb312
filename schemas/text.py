"""Text that others wrote, made safe: for records, whose UTF-8 cannot hold half a surrogate pair as Python strings may,
and for a terminal, which obeys control characters.

In: decoded JSON. Out: the same with `?` for each lone surrogate, in strings and keys. In: text to be shown. Out: the
same with an escape for each control character. Pure.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

MAX_JSON = 1_000_000
"""Characters of a JSON text of somebody's that are parsed; of a longer one nothing is read."""

_CONTROLS = (
    (0x00, 0x08), (0x0B, 0x1F), (0x7F, 0x9F),  # C0 but tab and line feed, DEL, C1
    (0x061C, 0x061C), (0x200E, 0x200F), (0x2028, 0x202E), (0x2066, 0x2069),  # of bidirectional text, and line ends
)  # fmt: skip
_ESCAPES = {code: f"\\u{code:0>4x}" for first, last in _CONTROLS for code in range(first, last + 1)}


def clean(value: Any) -> Any:
    """The value with clean text. May raise RecursionError, as decoding it may."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [clean(item) for item in value]
    if isinstance(value, dict):
        return {clean(key): clean(item) for key, item in value.items()}
    return value


def decode_json(data: bytes | str) -> Any:
    """Decodes JSON into clean text. Raises ValueError or RecursionError."""
    value = json.loads(data)
    # JSON that is UTF-8 can bring a lone surrogate only by its escape, so most values need no walk.
    escape = b"\\ud" if isinstance(data, bytes) else "\\ud"
    return clean(value) if escape in data.lower() else value  # type: ignore[operator]


def json_value(value: object) -> Any:
    """What a JSON text says; other values as they are; None for what is no JSON or too long to be parsed."""
    if not isinstance(value, str):
        return value
    if len(value) > MAX_JSON:
        return None
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return None


def printable(text: str) -> str:
    """The text with `\\u001b` and the like for C0, C1 and bidirectional controls, except tab and line feed; JSON stays
    the JSON that it is."""
    return text.translate(_ESCAPES)


def one_line(text: str) -> str:
    """The same, where a line feed would begin a line that others wrote, as in a table."""
    return printable(text).replace("\t", "\\t").replace("\n", "\\n")
