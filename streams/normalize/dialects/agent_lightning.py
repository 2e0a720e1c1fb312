"""Agent Lightning 0.3 (`agentlightning.*`): rewards, messages, objects, links and operations, each a span of its own.

None of them is an agent, a tool or a model; they keep their place in the tree, and whatever such a span holds of
another convention is read by that one. Whether its rewards count is not decided here.
"""

from __future__ import annotations

from ..reading.span_view import SpanView
from .dialect import OTHER, Dialect, SpanReading

_PREFIX = "agentlightning."


def _read(_: SpanView) -> SpanReading:
    return OTHER


AGENT_LIGHTNING = Dialect("agent_lightning", frozenset(), frozenset(), _read, names=(_PREFIX,))
