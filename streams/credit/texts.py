"""Where the token ids of an episode's calls stand: each token once for each path, never each prompt whole.

In: calls in order, their prompts as differences to earlier calls. Out: Prompts, and after each call its `Ids`.
Invariant: work and memory grow with the tokens that calls add, not with their prompts' lengths: a call that goes on
from its parent's end extends the parent's text in place. Failure: a prompt whose parent is missing, or shorter than
what is shared, is None; texts of more than MAX_TEXT_BYTES are a RecordError `too_large`.
"""

from __future__ import annotations

from typing import NamedTuple

from tracegrad.schemas.errors import RecordError
from tracegrad.schemas.records.episodes import EpisodeCall

__all__ = ["MAX_TEXT_BYTES", "Ids", "Prompt", "Texts"]

MAX_TEXT_BYTES = 64 * 1024 * 1024
"""Of all texts of an episode; branches that repeat a long prefix could otherwise unfold without bound."""
_TOKEN_BYTES = 4


class Ids(NamedTuple):
    """Token ids, int32 LE: the first `end` bytes of a text that may go on after them."""

    text: bytearray
    end: int


class Prompt(NamedTuple):
    """A prompt as its call holds it: what it shares with an earlier call, and the rest."""

    shared: Ids
    suffix: bytes

    @property
    def num_bytes(self) -> int:
        """Of all of its ids."""
        return self.shared.end + len(self.suffix)

    def starts_with(self, ids: Ids) -> bool:
        """Whether its first ids are these."""
        if ids.end > self.num_bytes:
            return False
        num_shared = min(ids.end, self.shared.end)
        # A view compares up to the first difference; a slice of a bytearray would be a copy.
        is_same = ids.text is self.shared.text or (
            memoryview(ids.text)[:num_shared] == memoryview(self.shared.text)[:num_shared]
        )
        return is_same and self.suffix.startswith(bytes(ids.text[num_shared : ids.end]))


class Texts:
    """The texts of one episode."""

    def __init__(self) -> None:
        self._calls: dict[str, Ids] = {}
        self._num_bytes = 0

    def prompt(self, call: EpisodeCall) -> Prompt | None:
        """The prompt of the next call; None where its chain of parents is broken (as `rebuild_prompt`)."""
        if len(call.suffix_ids) % _TOKEN_BYTES or len(call.sampled_ids) % _TOKEN_BYTES:
            return None
        parent = Ids(bytearray(), 0) if call.parent_call_id is None else self._calls.get(call.parent_call_id)
        end = call.shared_tokens * _TOKEN_BYTES
        if parent is None or not 0 <= end <= parent.end:
            return None
        return Prompt(Ids(parent.text, end), call.suffix_ids)

    def add(self, call: EpisodeCall, prompt: Prompt) -> Ids:
        """The call's prompt + sampled ids, which later calls may share. Raises RecordError (`too_large`)."""
        text, end = prompt.shared
        new = prompt.suffix + call.sampled_ids
        self._num_bytes += len(new) if end == len(text) else end + len(new)
        if self._num_bytes > MAX_TEXT_BYTES:
            raise RecordError(f"expected ids of at most {MAX_TEXT_BYTES} bytes in all", reason="too_large")
        if end < len(text):
            text = text[:end]
        text += new
        self._calls[call.call_id] = ids = Ids(text, len(text))
        return ids
