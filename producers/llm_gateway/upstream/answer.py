"""What the record of a passed-on call says of its answer: ids, tokens, model; read beside the bytes as they pass.

In: an answer's content type and its bytes, piece by piece: a JSON object, or server-sent events that each hold one, of
OpenAI's chat completions, completions, Responses and embeddings or of Anthropic's Messages. Out: `AnswerReader.said`.
Invariants: nothing raises, whatever the upstream sends; memory is bounded; no content is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

_MAX_WHOLE_BYTES = 1024 * 1024
"""Of an answer that comes whole; embeddings of more are only passed on."""
_MAX_LINE_BYTES = 256 * 1024
"""Of one event of a stream; a longer one is not looked into."""
_MAX_TOOL_CALLS = 64
_MAX_CHARS = 200
"""Of an id or a name; a longer one is none."""


class AnswerFacts(msgspec.Struct, kw_only=True):
    """What an answer has told so far; None: nothing of it."""

    response_id: str | None = None
    model: str | None = None
    prompt_tokens: int | None = None
    sampled_tokens: int | None = None
    tool_call_ids: list[str] = []


class AnswerReader:
    """Reads one answer."""

    def __init__(self, content_type: str) -> None:
        self.said = AnswerFacts()
        self._is_stream = content_type.startswith("text/event-stream")
        self._is_json = "json" in content_type
        self._held = bytearray()
        self._is_cut = False
        """What is held lacks its beginning, or would be too long."""

    def read_piece(self, piece: bytes) -> None:
        """Looks at the next bytes."""
        if self._is_stream:
            *lines, rest = piece.split(b"\n")
            for line in lines:
                self._hold(line, _MAX_LINE_BYTES)
                self._end_of_line()
            self._hold(rest, _MAX_LINE_BYTES)
        elif self._is_json:
            self._hold(piece, _MAX_WHOLE_BYTES)

    def close(self) -> AnswerFacts:
        """All that was said; no more comes."""
        if self._is_stream:
            self._end_of_line()
        elif not self._is_cut:
            self._read(bytes(self._held))
        self._held.clear()
        return self.said

    def _hold(self, piece: bytes, limit: int) -> None:
        self._is_cut = self._is_cut or len(self._held) + len(piece) > limit
        if self._is_cut:
            self._held.clear()
        else:
            self._held += piece

    def _end_of_line(self) -> None:
        if not self._is_cut and self._held.startswith(b"data:"):
            self._read(bytes(self._held[5:]))
        self._held.clear()
        self._is_cut = False

    def _read(self, data: bytes) -> None:
        try:
            body = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return  # `[DONE]`, or no JSON at all
        for part in _dicts([body]):
            # Responses' events hold the response, Anthropic's first one the message.
            for inner in (part, *_dicts([part.get("response"), part.get("message")])):
                self._note(inner)

    def _note(self, part: dict[str, Any]) -> None:
        said = self.said
        said.response_id = said.response_id or _word(part.get("id"))
        said.model = said.model or _word(part.get("model"))
        for usage in _dicts([part.get("usage")]):
            # A stream counts on: its last word is the sum.
            said.prompt_tokens = _number(usage, "prompt_tokens", "input_tokens", before=said.prompt_tokens)
            said.sampled_tokens = _number(usage, "completion_tokens", "output_tokens", before=said.sampled_tokens)
        for id_ in _tool_calls(part):
            if id_ not in said.tool_call_ids and len(said.tool_call_ids) < _MAX_TOOL_CALLS:
                said.tool_call_ids.append(id_)


def _tool_calls(part: dict[str, Any]) -> Iterator[str]:
    """Ids of tool calls: in a choice, whole or a delta; an item of Responses; a block of Anthropic's."""
    ids = [
        call.get("id")
        for choice in _dicts(part.get("choices"))
        for message in _dicts([choice.get("message"), choice.get("delta")])
        for call in _dicts(message.get("tool_calls"))
    ]
    ids += [item.get("call_id") for item in (*_dicts(part.get("output")), *_dicts([part.get("item")]))]
    blocks = (*_dicts(part.get("content")), *_dicts([part.get("content_block")]))
    ids += [block.get("id") for block in blocks if block.get("type") == "tool_use"]
    yield from (word for id_ in ids if (word := _word(id_)))


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _word(value: Any) -> str | None:
    return value if isinstance(value, str) and 0 < len(value) <= _MAX_CHARS else None


def _number(usage: dict[str, Any], *names: str, before: int | None) -> int | None:
    found = (value for name in names if type(value := usage.get(name)) is int and 0 <= value < 2**53)
    return next(found, before)
