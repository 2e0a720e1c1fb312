"""Which headers travel to an upstream and back. Pure.

In: the headers of the agent's request, and of the upstream's answer. Out: those that go on. Invariants: no credential
of the agent's and no identity of ours reaches an upstream, whatever their header is called, for only headers that are
listed here do; the upstream's own key is added by route. Nothing of the connection itself goes back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

__all__ = ["answered_with", "asked_with"]

_PASSED_ON = frozenset(
    {
        *("content-type", "accept", "accept-language", "user-agent", "idempotency-key"),
        *("anthropic-version", "anthropic-beta", "openai-beta", "http-referer", "x-title"),
    }
)
"""What changes an answer or says which program asks. Not `openai-organization` and `openai-project`: they belong to the
agent's key."""
_PASSED_ON_PREFIX = "x-stainless-"
"""By which the official clients tell their version and the count of their tries."""
_KEPT_BACK = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-connection", "te", "trailer", "transfer-encoding"),
        *("upgrade", "content-length", "content-encoding", "set-cookie", "server", "date"),
        *("alt-svc", "strict-transport-security"),
    }
)
"""Of a connection or of a browser. The bytes are decoded on the way, so their length and coding are others."""
_ANTHROPIC = "/v1/messages"


def asked_with(headers: Mapping[str, str], route: str, key: str | None) -> dict[str, str]:
    """What an upstream is sent; Anthropic's routes take their key otherwise than the others."""
    own = {name: value for name, value in headers.items() if name in _PASSED_ON or name.startswith(_PASSED_ON_PREFIX)}
    # What is read of an answer stands in its bytes, so they are asked for as they are.
    own["accept-encoding"] = "identity"
    if key is not None:
        own |= {"x-api-key": key} if route.startswith(_ANTHROPIC) else {"authorization": f"Bearer {key}"}
    return own


def answered_with(headers: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    """What the agent is sent, as ASGI wants it."""
    return [
        (name.lower().encode("latin-1"), value.encode("latin-1", "replace"))
        for name, value in headers
        if name.lower() not in _KEPT_BACK
    ]
