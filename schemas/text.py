"""Text of user code made safe for records: Python strings may hold half a surrogate pair, which UTF-8 cannot.

In: decoded JSON. Out: the same with `?` for each lone surrogate, in strings and keys. Pure.
"""

from __future__ import annotations

import json
from typing import Any

__all__ = ["clean", "decode_json"]


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
