"""Messages as a template takes them, where it refuses what clients send; no template that takes them sees a difference.

In: a ChatRequest. Out: the same, with

- systems that are not first in the first one, joined by nothing, as vLLM's own Messages endpoint merges them;
- users in a row as one message, where the API says that they are one turn (Anthropic's Messages);
- ids of tool calls as nine letters and digits, as Mistral's templates ask, in the prompt alone.

What a template refuses is asked of it once, by rendering a short conversation, and only when a request has such
messages. Invariant: what is made of the first messages of a conversation is what the whole begins with, unless a system
comes after them. Failure: the renderer's.
"""

from __future__ import annotations

import hashlib
import re
import string
from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec

from tracegrad.schemas.errors import EngineRefusal
from tracegrad.schemas.records.calls import ToolCall

from ..api.chat_request import ChatRequest, Message, OtherPart, TextPart, Tool
from ..engines.engine import PromptRenderer, Waits

_NINE = re.compile(r"[a-zA-Z0-9]{9}")
_LETTERS = string.ascii_letters + string.digits
_USER, _SYSTEM, _SAID = (Message(role=role, content="x") for role in ("user", "system", "assistant"))
_TOOLS = (Tool(name="f", parameters={"type": "object", "properties": {}}),)
_LONG, _SHORT = "call_0123456789abcdef", "abcdefghi"
Content = str | tuple[TextPart | OtherPart, ...]


def _called(call_id: str) -> ChatRequest:
    call = Message(role="assistant", tool_calls=(ToolCall(id=call_id, name="f", arguments="{}"),))
    return ChatRequest(messages=(_USER, call, Message(role="tool", tool_call_id=call_id, content="x")), tools=_TOOLS)


_ONE_SYSTEM = ChatRequest(messages=(_SYSTEM, _USER))
_PROBES = {
    "systems": (ChatRequest(messages=(_SYSTEM, _USER, _SYSTEM, _USER)), _ONE_SYSTEM),
    "systems_in_a_row": (ChatRequest(messages=(_SYSTEM, _SYSTEM, _USER)), _ONE_SYSTEM),
    "systems_after_answers": (ChatRequest(messages=(_SYSTEM, _USER, _SAID, _SYSTEM, _USER)), _ONE_SYSTEM),
    "users": (ChatRequest(messages=(_USER, _USER)), ChatRequest(messages=(_USER,))),
    "long_ids": (_called(_LONG), _called(_SHORT)),
}
"""What a template may refuse -> a conversation that has it, and what would be made of that."""
_SYSTEM_AFTER = {"system": "systems_in_a_row", "assistant": "systems_after_answers"}
"""Templates whose roles alternate (Gemma 3, Cohere) take a system in an answer's place alone."""


class TemplateRefusals:
    """What one template refuses, as far as it was asked."""

    def __init__(self) -> None:
        self._known: dict[str, bool] = {}

    async def has(self, what: str, renderer: PromptRenderer, waits: Waits) -> bool:
        """Whether it refuses this, and takes what would be made of it."""
        if what not in self._known:
            takes = [await _takes(renderer, probe, waits) for probe in _PROBES[what]]
            self._known[what] = takes == [False, True]
        return self._known[what]


async def _takes(renderer: PromptRenderer, probe: ChatRequest, waits: Waits) -> bool:
    try:
        await renderer.ids(probe, waits, to_generate=False)
    except EngineRefusal:
        return False
    return True


async def normalised(
    request: ChatRequest, refused: TemplateRefusals, renderer: PromptRenderer, waits: Waits
) -> tuple[tuple[Message, ...], tuple[str, ...]]:
    """The messages, and what was done to them: `systems`, `users`, `long_ids`."""
    messages, done = request.messages, []
    later = {_SYSTEM_AFTER.get(one.role, "systems") for one, other in pairwise(messages) if other.role == "system"}
    if any([await refused.has(what, renderer, waits) for what in sorted(later)]):
        messages = _with_one_system(messages)
        done.append("systems")
    if request.joins_users and _has_users_in_a_row(messages) and await refused.has("users", renderer, waits):
        messages = tuple(_with_users_joined(messages))
        done.append("users")
    if _has_long_ids(messages) and await refused.has("long_ids", renderer, waits):
        messages = tuple(map(_with_short_ids, messages))
        done.append("long_ids")
    return messages, tuple(done)


def _with_one_system(messages: Sequence[Message]) -> tuple[Message, ...]:
    systems = [message for message in messages if message.role == "system"]
    content = _joined([message.content or "" for message in systems], "")
    return (
        msgspec.structs.replace(systems[0], content=content),
        *(message for message in messages if message.role != "system"),
    )


def _has_users_in_a_row(messages: Sequence[Message]) -> bool:
    return any(one.role == other.role == "user" for one, other in pairwise(messages))


def _with_users_joined(messages: Sequence[Message]) -> Iterator[Message]:
    row: list[Message] = []
    for message in (*messages, None):
        if row and (message is None or message.role != "user"):
            # A line apart, as vLLM writes a message's texts for a template that takes no parts.
            yield msgspec.structs.replace(row[0], content=_joined([one.content or "" for one in row], "\n"))
            row = []
        if message is not None and message.role == "user":
            row.append(message)
        elif message is not None:
            yield message


def _joined(contents: Sequence[Content], between: str) -> Content:
    """One text if all are, else their parts."""
    texts = [content for content in contents if isinstance(content, str)]
    if len(texts) == len(contents):
        return between.join(texts)
    return tuple(part for one in contents for part in ((TextPart(one),) if isinstance(one, str) else one))


def _has_long_ids(messages: Sequence[Message]) -> bool:
    ids = (id_ for message in messages for id_ in (message.tool_call_id, *(call.id for call in message.tool_calls)))
    return any(id_ and not _NINE.fullmatch(id_) for id_ in ids)


def _with_short_ids(message: Message) -> Message:
    calls = tuple(msgspec.structs.replace(call, id=_short(call.id)) for call in message.tool_calls)
    result = message.tool_call_id and _short(message.tool_call_id)
    return msgspec.structs.replace(message, tool_calls=calls, tool_call_id=result)


def _short(id_: str) -> str:
    """Of an id alone, so that each request has the same."""
    if not id_ or _NINE.fullmatch(id_):
        return id_
    number = int.from_bytes(hashlib.sha256(id_.encode("utf-8", "surrogatepass")).digest(), "big")
    return "".join(_LETTERS[number // len(_LETTERS) ** place % len(_LETTERS)] for place in range(9))
