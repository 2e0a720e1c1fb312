"""Anthropic Messages: events become a message, or the events of its stream; errors in Anthropic's words. Pure.

In: events. Out: the wire form. Blocks are thinking, text, tool_use, in the order of the answer; an answer that says
nothing has none, for Anthropic's clients refuse empty texts. Arguments keep the letters that were sampled.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from tracegrad.schemas.ids import WirePrefix, wire_id
from tracegrad.schemas.records.calls import ToolCall

from ..chat_request import ChatRequest
from ..events import TOO_LONG, Api, Event, Failed, Finished, Problem, Reasoning, Started, Text, ToolCalled
from .read import UNPARSED, read, read_to_count

_Step = dict[str, Any]
"""An event of the stream."""
_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


_LIMIT = re.compile(r"maximum (?:context|model) length (?:is|of) (\d+)")
_LENGTH = re.compile(r"contains (?:at least )?(\d+) input tokens|length (\d+)\)")
"""In the engine's words, by which it refuses a prompt."""


class _MessageWriter:
    """See Writer."""

    def __init__(self, request: ChatRequest) -> None:
        self._signature = ""
        self._index = -1
        self._open: str | None = None
        """The type of the block that is being written."""
        self._has_called = False

    def whole(self, events: Iterable[Event]) -> bytes:
        """See Writer."""
        body: dict[str, Any] = {}
        blocks: list[dict[str, Any]] = []
        for step in itertools.chain.from_iterable(map(self._steps, events)):
            match step:
                case {"message": message}:
                    body = message | {"content": blocks}
                case {"content_block": block}:
                    blocks.append(block)
                case {"delta": {"partial_json": text}}:
                    blocks[-1]["input"] = msgspec.Raw(text.encode())
                case {"delta": {"type": kind}}:
                    field = kind.removesuffix("_delta")
                    blocks[-1][field] += step["delta"][field]
                case {"delta": ending, "usage": usage}:
                    body |= ending | {"usage": usage}
        return msgspec.json.encode(body)

    def chunks(self, event: Event) -> Iterator[bytes]:
        """See Writer."""
        if isinstance(event, Failed):
            yield b"event: error\ndata: " + _write_error(event.problem) + b"\n\n"
        for step in self._steps(event):
            yield b"event: %s\ndata: %s\n\n" % (step["type"].encode(), msgspec.json.encode(step))

    def _steps(self, event: Event) -> Iterator[_Step]:
        match event:
            case Started():
                yield {"type": "message_start", "message": self._head(event)}
                yield {"type": "ping"}
            case Reasoning(text) if text:
                yield from self._into("thinking", thinking="", signature="")
                yield self._delta("thinking_delta", thinking=text)
            case Text(text) if text:
                yield from self._into("text", text="")
                yield self._delta("text_delta", text=text)
            case ToolCalled(call):
                self._has_called = True
                yield from self._close()
                yield self._start({"type": "tool_use", "id": call.id, "name": call.name, "input": {}})
                yield self._delta("input_json_delta", partial_json=_input(call).decode())
            case Finished():
                yield from self._close()
                usage = {"input_tokens": event.prompt_tokens, "output_tokens": event.sampled_tokens}
                yield {"type": "message_delta", "delta": self._ending(event), "usage": usage}
                yield {"type": "message_stop"}

    def _into(self, kind: str, **empty: str) -> Iterator[_Step]:
        """Opens a block of a kind, unless it is open."""
        if self._open != kind:
            yield from self._close()
            yield self._start({"type": kind, **empty})

    def _start(self, block: dict[str, Any]) -> _Step:
        self._index, self._open = self._index + 1, block["type"]
        return {"type": "content_block_start", "index": self._index, "content_block": block}

    def _close(self) -> Iterator[_Step]:
        if self._open == "thinking":
            yield self._delta("signature_delta", signature=self._signature)
        if self._open is not None:
            yield {"type": "content_block_stop", "index": self._index}
        self._open = None

    def _delta(self, kind: str, **fields: str) -> _Step:
        return {"type": "content_block_delta", "index": self._index, "delta": {"type": kind, **fields}}

    def _head(self, started: Started) -> dict[str, Any]:
        # Nothing checks it, but clients drop thoughts that bear none.
        self._signature = wire_id(started.call_id, WirePrefix.MESSAGE)
        return {
            "id": self._signature,
            "type": "message",
            "role": "assistant",
            "model": started.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": started.prompt_tokens, "output_tokens": 0},
        }

    def _ending(self, finished: Finished) -> dict[str, str | None]:
        reason, stop = "end_turn", None
        if finished.reason == "length":
            reason = "max_tokens"
        elif self._has_called:
            reason = "tool_use"
        elif finished.stop is not None:
            reason, stop = "stop_sequence", finished.stop
        return {"stop_reason": reason, "stop_sequence": stop}


def _input(call: ToolCall) -> bytes:
    """The arguments, JSON of an object: as they were sampled, or as `read` knows them again."""
    try:
        if isinstance(msgspec.json.decode(call.arguments or "{}"), dict):
            return (call.arguments or "{}").encode()
    except (ValueError, RecursionError):
        pass
    return msgspec.json.encode({UNPARSED: call.arguments})


def _write_error(problem: Problem) -> bytes:
    """The body of an answer that is an error."""
    kind = _KINDS.get(problem.status, "invalid_request_error" if problem.status < 500 else "api_error")
    message = problem.message
    if problem.code == TOO_LONG:
        limit, length = _LIMIT.search(message), _LENGTH.search(message)
        # Claude Code cuts its conversation by these numbers before it asks for a summary; else it asks in vain.
        if limit is not None:
            tokens = (length[1] or length[2]) if length else int(limit[1]) + 1
            message = f"prompt is too long: {tokens} tokens > {limit[1]} maximum"
    return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": message}})


MESSAGES = Api(path="/v1/messages", read=read, write=_MessageWriter, error=_write_error)
"""As Anthropic's own clients speak them."""
COUNT_TOKENS = Api(path="/v1/messages/count_tokens", read=read_to_count, write=_MessageWriter, error=_write_error)
"""Nothing is answered, so nothing is written; its path, reader and errors count."""
