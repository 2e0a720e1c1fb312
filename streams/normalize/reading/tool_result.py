"""What a tool's result says of its outcome: by its fields where it is JSON (or a Python literal), else by its text.

In: the result as the span carries it. Out: a Sign, and whether fields (`result`) or words (`text`) gave it. Fields
are those that results use as envelopes: MCP's `isError`, `error`, `success`, `status`, exit codes. Invariant: what may
be data as well as a report (a job's `error`, a number under `error`, a linter's `errors`) is DOUBTFUL.
Failure: none; what cannot be parsed is text.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

from tracegrad.schemas.text import json_value

from .tool_text import of_text

_MAX_LITERAL = 10_000
"""Python's own parser is slower."""
_MAX_DEPTH = 4
"""Envelopes in envelopes: JSON in a text block of MCP in a framework's own field."""
_MAX_ITEMS = 20
_FAILED = frozenset({"error", "failed", "failure", "fail", "exception", "timeout", "timed_out", "denied", "rejected"})
_SUCCEEDED = frozenset({"success", "succeeded", "ok"})
_ERRORS = ("error", "err", "errormessage", "exception", "traceback", "errors")
_SUCCESSES = ("success", "succeeded", "ok")
_EXIT_CODES = ("exitcode", "returncode", "exitstatus", "rc")
_INNER = ("result", "output", "content", "data", "response", "structuredcontent", "text", "message", "detail", "stderr")
_ENVELOPE = frozenset(
    (
        *_ERRORS,
        *_SUCCESSES,
        *_EXIT_CODES,
        *_INNER,
        "iserror",
        "toolcallid",
        "status",
        "code",
        "type",
        "reason",
        "stdout",
        "metadata",
        "documentationurl",
    )
)
_RECORD = frozenset({"id", "state", "status", "level", "severity", "job", "jobid", "taskid", "runid", "timestamp"})
"""Fields of a thing that the tool looked up; beside them `error` is the thing's own."""
_TELLING = frozenset({"message", "code", "type", "reason", "detail"})
_NOTHING = frozenset({"", "none", "null", "no", "no error", "n/a", "ok"})
_MENTIONS_ERROR = re.compile(r"""["'](?:is_?error|error)["']\s*:\s*(?!null|none|false|0\b|""|'')""", re.IGNORECASE)


class Sign(Enum):
    """What one sign says."""

    FAILED = "failed"
    SUCCEEDED = "succeeded"
    DOUBTFUL = "doubtful"
    """It may report a failure, or something else."""
    NONE = "none"


def of_status(value: object) -> Sign:
    """Of a status in words; one that merely says that the tool ended tells nothing."""
    word = str(value).strip().lower()
    return Sign.FAILED if word in _FAILED else Sign.SUCCEEDED if word in _SUCCEEDED else Sign.NONE


def of_flag(value: object) -> Sign:
    """Of an error flag; false is what most of them are by default, so it proves nothing."""
    return Sign.FAILED if value is True or str(value).lower() == "true" else Sign.NONE


def of_exit_code(value: object) -> Sign:
    """Of a process's exit code."""
    text = str(value)
    if isinstance(value, bool) or not re.fullmatch(r"-?\d{1,10}", text):
        return Sign.NONE
    return Sign.FAILED if int(text) else Sign.SUCCEEDED


def of_result(result: object, *, has_text: bool, depth: int = 0) -> tuple[Sign, str]:
    """(sign, `result` or `text`) of a whole result; without `has_text` only fields tell."""
    value = _parsed(result) if isinstance(result, str) else result
    if depth > _MAX_DEPTH:
        return Sign.NONE, ""
    if isinstance(value, Mapping):
        return _of_mapping(value, has_text, depth)
    if isinstance(value, Sequence) and not isinstance(value, str):
        # Of many items one may have failed and the tool not.
        inner = [of_result(item, has_text=has_text, depth=depth + 1) for item in value[:_MAX_ITEMS]]
        found = worst(inner)
        is_partial = found[0] is Sign.FAILED and len(value) > 1
        return (Sign.DOUBTFUL, found[1]) if is_partial else found
    if not isinstance(value, str):
        return Sign.NONE, ""
    if value != result:
        return of_result(value, has_text=has_text, depth=depth + 1)
    if value[:1] in ("{", "[") and _MENTIONS_ERROR.search(value[:_MAX_LITERAL]):
        return Sign.DOUBTFUL, "result"
    is_failed = of_text(value) if has_text else False
    return (Sign.DOUBTFUL if is_failed is None else Sign.FAILED if is_failed else Sign.NONE), "text"


def _of_mapping(value: Mapping[Any, Any], has_text: bool, depth: int) -> tuple[Sign, str]:
    fields = {re.sub(r"[_\- ]", "", str(key)).lower(): inner for key, inner in value.items()}
    signs = set(_of_fields(fields))
    inner = worst(
        of_result(fields[key], has_text=has_text, depth=depth + 1)
        for key in _INNER
        if isinstance(fields.get(key), str | Mapping | Sequence)
    )
    if Sign.SUCCEEDED in signs:
        # Whatever else speaks of a failure, somebody is wrong.
        return (Sign.DOUBTFUL if Sign.FAILED in signs or inner[0] is Sign.FAILED else Sign.SUCCEEDED), "result"
    for sign in (Sign.FAILED, Sign.DOUBTFUL):
        if sign in signs:
            return sign, "result"
    # The message of a mail, the text of an issue: words of a thing that the tool looked up are the thing's own.
    is_data = inner == (Sign.FAILED, "text") and not fields.keys() <= _ENVELOPE
    return (Sign.DOUBTFUL, "text") if is_data else inner


def _of_fields(fields: Mapping[str, Any]) -> Iterator[Sign]:
    yield of_flag(fields.get("iserror"))
    is_envelope = fields.keys() <= _ENVELOPE
    is_call = "jsonrpc" in fields or is_envelope
    for key in _ERRORS:
        sign = _of_error(fields.get(key))
        if key == "errors" and sign is not Sign.NONE:
            # GraphQL says `data: null` when nothing came of it; a linter's errors are its result.
            sign = Sign.FAILED if "data" in fields and fields["data"] is None else Sign.DOUBTFUL
        is_own = is_call or not fields.keys() & _RECORD or _is_refused(fields.get("status"))
        yield sign if is_own or sign is Sign.NONE else Sign.DOUBTFUL
    for key in _SUCCESSES:
        word = str(fields.get(key)).lower()
        yield Sign.SUCCEEDED if word == "true" else Sign.FAILED if word == "false" else Sign.NONE
    yield from (of_exit_code(fields.get(key)) for key in _EXIT_CODES)
    about = fields.get("metadata")
    if isinstance(about, Mapping):  # of a shell's output, as Codex' tools write it
        yield from (of_exit_code(about.get(key)) for key in ("exit_code", "exitCode"))
    status = of_status(fields.get("status"))
    yield status if is_envelope or status is Sign.NONE else Sign.DOUBTFUL if status is Sign.FAILED else Sign.NONE
    if _is_refused(fields.get("statuscode")) or (_is_refused(fields.get("status")) and is_envelope):
        yield Sign.FAILED


def _of_error(value: object) -> Sign:
    if value is None or value is False or value == 0 or (isinstance(value, list | dict) and not value):
        return Sign.NONE
    if isinstance(value, str):
        return Sign.NONE if value.strip().lower() in _NOTHING else Sign.FAILED
    if isinstance(value, Mapping):
        return Sign.FAILED if {str(key).lower() for key in value} & _TELLING else Sign.DOUBTFUL
    return Sign.FAILED if value is True else Sign.DOUBTFUL


def _is_refused(status: object) -> bool:
    """Of a status as a number, or as a text of one."""
    return isinstance(status, int | str) and re.fullmatch(r"[45]\d\d", str(status)) is not None


def worst(found: Iterator[tuple[Sign, str]] | Sequence[tuple[Sign, str]]) -> tuple[Sign, str]:
    """The one that tells most of a failure; NONE of none."""
    order = (Sign.FAILED, Sign.DOUBTFUL, Sign.SUCCEEDED, Sign.NONE)
    return min(found, key=lambda one: order.index(one[0]), default=(Sign.NONE, ""))


def _parsed(text: str) -> object:
    """The value that a text spells in JSON or as a Python literal (frameworks write `str(dict)`); else the text."""
    stripped = text.strip()
    if stripped[:1] not in ("{", "[", '"'):
        return text
    if (value := json_value(stripped)) is not None:
        return value
    if len(stripped) > _MAX_LITERAL or "\\" in stripped:  # a wrong escape would warn, on standard error
        return text
    try:
        return ast.literal_eval(stripped)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text
