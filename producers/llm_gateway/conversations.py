"""Conversations that an agent may go on with by naming an answer, instead of sending them again.

In: served requests with their answers. Out: the messages up to an answer, that answer last. One for each episode: no
answer is found from another. Memory: counted in token ids, as the splice's history is, and bounded with it by Sessions;
what is forgotten is told to the agent as unknown, never guessed.
"""

from __future__ import annotations

import msgspec

from tracegrad.schemas.ids import CallId

from .api.chat_request import Message

__all__ = ["Conversations"]

_BYTES_PER_ID = 4
"""Of a token id in the history, and about as much of the text that it stands for."""


class Conversations:
    """Those of one episode. Not thread-safe."""

    def __init__(self) -> None:
        self._by_answer: dict[CallId, tuple[Message, ...]] = {}
        self._scopes: dict[CallId, bytes] = {}
        self.num_ids = 0
        """What is held, as so many token ids."""

    def keep(self, call_id: CallId, messages: tuple[Message, ...], scope: bytes = b"") -> None:
        """Adds a conversation that ends with an answer, and which client got that."""
        self._scopes[call_id] = scope
        self._by_answer[call_id] = messages
        self.num_ids += sum(len(msgspec.json.encode(message)) for message in messages) // _BYTES_PER_ID

    def find(self, call_id: CallId, scope: bytes | None = None) -> tuple[Message, ...] | None:
        """The conversation that ends with this answer, if it is kept here, and for this client, if one is given."""
        return self._by_answer.get(call_id) if scope in (None, self._scopes.get(call_id)) else None
