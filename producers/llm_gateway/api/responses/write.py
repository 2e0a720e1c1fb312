"""OpenAI Responses: events become a response, or the events of its stream in OpenAI's order. Pure.

In: events. Out: the wire form. The output is reasoning, message, function calls, as far as there are any; an answer
that neither says nor calls anything is an empty message, so that a client which sends its output back sends a turn.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from tracegrad.schemas.records.calls import ToolCall

from ..chat_request import ChatRequest
from ..events import TOO_LONG, Api, Event, Failed, Finished, Problem, Reasoning, Started, Text, ToolCalled
from ..openai_error import write_error
from .item_ids import function_call_id, message_id, reasoning_id, response_id
from .read import read
from .tools import call_item

_Step = dict[str, Any]
_REPEATED: dict[str, Any] = {
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "temperature": 1.0,
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}
"""Fields of the request that the response has too, with what they mean when they are absent."""
_CONTENTS = ("message", "reasoning")
"""Items that have content; all others are calls."""
_PIECES = {
    "function_call": ("function_call_arguments", "arguments"),
    "custom_tool_call": ("custom_tool_call_input", "input"),
}
"""How the text of a call's item is streamed, and its field."""


class _ResponseWriter:
    """See Writer."""

    def __init__(self, request: ChatRequest) -> None:
        asked = request.extra
        self._tools = request.tool_forms
        self._body: _Step = {name: asked.get(name, absent) for name, absent in _REPEATED.items()}
        self._body["text"] = {"format": {"type": "text"}} | asked.get("text", {})
        self._body["reasoning"] = {"effort": asked.get("reasoning_effort"), "summary": None}
        self._number = 0
        self._started: Started | None = None
        self._output: list[_Step] = []
        self._is_open = False
        """The last item is being written."""

    def whole(self, events: Iterable[Event]) -> bytes:
        """See Writer."""
        for event in events:
            collections.deque(self._steps(event), maxlen=0)
        return msgspec.json.encode(self._body)

    def chunks(self, event: Event) -> Iterator[bytes]:
        """See Writer."""
        for step in self._steps(event):
            numbered = {**step, "sequence_number": self._number}
            self._number += 1
            yield b"event: %s\ndata: %s\n\n" % (step["type"].encode(), msgspec.json.encode(numbered))

    def _steps(self, event: Event) -> Iterator[_Step]:
        match event:
            case Started():
                self._start(event)
                yield {"type": "response.created", "response": self._body}
                yield {"type": "response.in_progress", "response": self._body}
            case Reasoning(text) if text:
                yield from self._into("reasoning")
                self._output[-1]["content"][0]["text"] += text
                yield self._piece("reasoning_text.delta", delta=text)
            case Text(text, logprobs) if text or logprobs:
                yield from self._say(text or "", logprobs)
            case ToolCalled(call):
                yield from self._close()
                yield from self._call(call)
            case Finished():
                if not any(item["type"] != "reasoning" for item in self._output):
                    yield from self._into("message")
                yield from self._finish(event)
            case Failed(problem):
                yield self._failure(problem)

    def _start(self, started: Started) -> None:
        self._started = started
        self._body = {
            "id": response_id(started.call_id),
            "object": "response",
            "created_at": started.created_s,
            "status": "in_progress",
            "background": False,
            "error": None,
            "incomplete_details": None,
            "model": started.model,
            "output": [],
            "usage": None,
            **self._body,
        }

    def _into(self, kind: str) -> Iterator[_Step]:
        """Opens an item of a kind, unless it is open."""
        if self._is_open and self._output[-1]["type"] == kind:
            return
        yield from self._close()
        assert self._started is not None
        call_id = self._started.call_id
        if kind == "reasoning":
            item: _Step = {"id": reasoning_id(call_id), "type": kind, "summary": [], "status": "in_progress"}
            part: _Step = {"type": "reasoning_text", "text": ""}
        else:
            item = {"id": message_id(call_id), "type": kind, "role": "assistant", "status": "in_progress"}
            part = {"type": "output_text", "annotations": [], "logprobs": [], "text": ""}
        self._output.append({**item, "content": []})
        yield self._item("added")
        yield self._piece("content_part.added", part=part)
        self._output[-1]["content"].append({**part, **({"logprobs": []} if "logprobs" in part else {})})
        self._is_open = True

    def _say(self, text: str, logprobs: Any) -> Iterator[_Step]:
        yield from self._into("message")
        # The engine's logprobs: a response has the fields of a chat completion.
        part, tokens = self._output[-1]["content"][0], list((logprobs or {}).get("content") or ())
        part["text"] += text
        part["logprobs"] += tokens
        yield self._piece("output_text.delta", delta=text, logprobs=_brief(tokens))

    def _call(self, call: ToolCall) -> Iterator[_Step]:
        assert self._started is not None
        index = sum(item["type"] not in _CONTENTS for item in self._output)
        item = {"id": function_call_id(self._started.call_id, index), "status": "in_progress"}
        item |= call_item(call, self._tools.get(call.name))
        event, field = _PIECES.get(item["type"], ("", ""))
        said = item[field] if field else None
        self._output.append(item if said is None else item | {field: ""})
        yield self._item("added")
        if said is not None:
            yield self._piece(f"{event}.delta", delta=said)
            self._output[-1][field] = said
        self._is_open = True

    def _close(self, status: str = "completed") -> Iterator[_Step]:
        """Ends the item that is open."""
        if not self._is_open:
            return
        self._is_open, item = False, self._output[-1]
        item["status"] = status
        event, field = _PIECES.get(item["type"], ("", ""))
        if field:
            yield self._piece(f"{event}.done", **{field: item[field]})
        elif item["type"] in _CONTENTS:
            part = item["content"][0]
            if item["type"] == "reasoning":
                yield self._piece("reasoning_text.done", text=part["text"])
            else:
                yield self._piece("output_text.done", text=part["text"], logprobs=_brief(part["logprobs"]))
            yield self._piece("content_part.done", part=part)
        yield self._item("done")

    def _finish(self, finished: Finished) -> Iterator[_Step]:
        status = "incomplete" if finished.reason == "length" else "completed"
        yield from self._close(status)
        self._body |= {
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "output": self._output,
            "usage": {
                "input_tokens": finished.prompt_tokens,
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "output_tokens": finished.sampled_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": finished.prompt_tokens + finished.sampled_tokens,
            },
        }
        yield {"type": f"response.{status}", "response": self._body}

    def _failure(self, problem: Problem) -> _Step:
        if self._started is None:
            return {"type": "error", "code": problem.code, "message": problem.message, "param": problem.param}
        code = "invalid_prompt" if problem.status < 500 else "server_error"
        code = TOO_LONG if problem.code == TOO_LONG else code
        failed = {"status": "failed", "error": {"code": code, "message": problem.message}, "output": self._output}
        return {"type": "response.failed", "response": self._body | failed}

    def _item(self, what: str) -> _Step:
        return {
            "type": f"response.output_item.{what}",
            "output_index": len(self._output) - 1,
            "item": {**self._output[-1]},
        }

    def _piece(self, kind: str, **fields: Any) -> _Step:
        """An event within the last item."""
        where: _Step = {"item_id": self._output[-1]["id"], "output_index": len(self._output) - 1}
        if self._output[-1]["type"] in _CONTENTS:
            where["content_index"] = 0
        return {"type": f"response.{kind}", **where, **fields}


def _brief(tokens: list[_Step]) -> list[_Step]:
    """As the events of a stream have them, without bytes."""
    return [
        {name: _brief(value) if name == "top_logprobs" else value for name, value in one.items() if name != "bytes"}
        for one in tokens
    ]


RESPONSES = Api(path="/v1/responses", read=read, read_on=read, write=_ResponseWriter, error=write_error)
"""As OpenAI's own clients speak them."""
