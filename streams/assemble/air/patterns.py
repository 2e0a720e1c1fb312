"""Regular expressions of rules, by an engine whose time is linear in the text (RE2, which pyarrow brings).

In: a pattern of the settings file, texts that a tool or a model wrote. Out: which texts match. A hostile text can make
Python's own engine run for ever, and assemble with it. Invariant: a text is read up to MAX_TEXT characters. Failure:
ConfigurationError with RE2's reason, at load where pyarrow is installed, else when assemble starts.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracegrad.schemas.errors import ConfigurationError

__all__ = ["MAX_TEXT", "check_pattern", "matching"]

MAX_TEXT = 100_000


def check_pattern(pattern: str) -> None:
    """Raises ConfigurationError unless RE2 can read it."""
    try:
        import pyarrow  # noqa: F401 - settings are read by programs that are installed without it too
    except ImportError:
        return
    try:
        matching(pattern, [""])
    except ValueError as error:
        raise ConfigurationError(
            f"regex: {error}; expected RE2's syntax, which has no lookaround and no backreferences"
        ) from error


def matching(pattern: str, texts: Sequence[str]) -> list[bool]:
    """Of each text whether the pattern is found in it. Raises ValueError for a bad pattern."""
    import pyarrow as pa
    import pyarrow.compute as pc

    cut = [text[:MAX_TEXT].encode("utf-8", "replace").decode() for text in texts]
    found: list[bool] = pc.match_substring_regex(pa.array(cut, pa.utf8()), pattern).to_pylist()
    return found
