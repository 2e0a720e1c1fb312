"""Errors as OpenAI words them, alike in all of its APIs. Pure."""

from __future__ import annotations

import msgspec

from .events import Problem

_KINDS = {400: "invalid_request_error", 401: "authentication_error", 429: "rate_limit_error"}


def write_error(problem: Problem) -> bytes:
    """The body of an answer that is an error."""
    kind = _KINDS.get(problem.status, "invalid_request_error" if problem.status < 500 else "server_error")
    error = {"message": problem.message, "type": kind, "param": problem.param, "code": problem.code}
    return msgspec.json.encode({"error": error})
