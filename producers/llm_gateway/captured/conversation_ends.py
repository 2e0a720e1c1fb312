"""The ends of captured conversations of which nobody says what they belong to, so that the next request finds its own.

In: after each answer to a request that named no rollout, conversation or trace, whose client still waits for it, a
digest of all that was said; before the next such request, the digest up to its last answer. Out: the key of the
conversation that it continues, or None.
Invariant: a request joins only what the same client was answered, word for word, and only if exactly one such end is
remembered that nothing has continued; two users who say the same and get the same stay apart. Tool-call ids, which the
gateway drew, tell equal answers apart. Bounded: equal ends are forgotten together, or the last one left would look like
the only one. One event loop; not thread-safe.
"""

from __future__ import annotations

from typing import NamedTuple

from tracegrad.schemas.bounded import BoundedMap

_MAX_ENDS = 20_000
_MAX_EQUAL = 16
"""Of one end; from two on nobody joins any, whatever their number."""


class ConversationDigest(NamedTuple):
    """A conversation up to an answer, by one client."""

    scope: bytes
    """Which client: a digest of its credential and address."""
    digest: bytes
    tool_call_ids: tuple[str, ...]
    """Of the last answer."""


class ConversationEnd(NamedTuple):
    """An end that nothing has continued."""

    said: ConversationDigest
    key: str
    """Of its conversation."""


class ConversationEnds:
    """All remembered ends of one gateway."""

    def __init__(self, max_ends: int = _MAX_ENDS) -> None:
        self._keys: BoundedMap[ConversationDigest, list[str]] = BoundedMap(max_ends)

    def add_end(self, end: ConversationEnd) -> None:
        """Remembers an end: of an answer, or one whose continuation comes to nothing, as far as its client knows."""
        keys = self._keys.renew(end.said, [])
        # Equal choices, or a retry that is answered alike, are one conversation's still.
        if end.key not in keys and len(keys) < _MAX_EQUAL:
            keys.append(end.key)

    def take_end(self, said: ConversationDigest) -> ConversationEnd | None:
        """The only end like this, which is continued now; None: there is none, or several."""
        if len(self._keys.get(said, ())) != 1:
            return None
        return ConversationEnd(said, self._keys.pop(said)[0])
