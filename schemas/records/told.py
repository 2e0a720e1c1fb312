"""A model call as spans, log events or files tell it: what was said, not which tokens it was.

In: what normalize reads of a history that did not pass our gateway. Out: facts, and what episodes hold of them.
Invariant: texts are the teller's own, never mended; what is not told is None, and why is in `lacks`.
"""

from __future__ import annotations

import msgspec

from .calls import ToolCall


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message, as chat completions have it.

    Example: ChatMessage(role="tool", tool_call_id="call_0", content="42").
    """

    role: str
    """`system`, `user`, `assistant`, `tool`; another word as it is told."""
    content: str | None = None
    """Its text, parts joined; None: it has none, as when an assistant only calls tools."""
    tool_calls: tuple[ToolCall, ...] = ()
    """What an assistant asked for; `id` is empty where none is told, `arguments` is JSON text."""
    tool_call_id: str | None = None
    """Which call a tool's result answers."""
    name: str | None = None
    reasoning: str | None = None
    num_other_parts: int = 0
    """Parts that are no text (images, audio, files), which are not kept: a prompt with some is not known."""


class ToolDefinition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A function that the model could call."""

    name: str
    description: str | None = None
    parameters: str | None = None
    """JSON schema of its arguments, as text: templates write its keys in their order, which records do not keep."""


class ToldSampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the span says that it was sampled; None: it does not say."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    max_tokens: int | None = None


class ToldIds(msgspec.Struct, frozen=True, kw_only=True):
    """Token ids that the engine gave with its answer; bytes as in CallRecord."""

    prompt: bytes
    sampled: bytes
    logprobs: bytes = b""
    """One for each sampled id; empty: none are told."""


class ToldCall(msgspec.Struct, frozen=True, kw_only=True, tag="told_call"):
    """One generation of a model, by a span; its prompt and answer where the span holds them."""

    trace_id: str
    span_id: str
    scope: str
    """Name of the instrumentation that made the span; it decides what an absent attribute says (`lacks`)."""
    response_id: str | None = None
    """The provider's."""
    model: str = ""
    """As it was asked for; the answering one's name where only that is told."""
    messages: tuple[ChatMessage, ...] | None = None
    """The prompt; None: not told, or not whole (`lacks`)."""
    tools: tuple[ToolDefinition, ...] | None = None
    """None: not told. Empty: told that there are none."""
    answer: ChatMessage | None = None
    finish_reason: str | None = None
    """`stop`, `length`, `tool_calls`, or as it is told."""
    sampling: ToldSampling = ToldSampling()
    input_tokens: int | None = None
    output_tokens: int | None = None
    ids: ToldIds | None = None
    lacks: tuple[str, ...] = ()
    """Reasons (schemas/reasons.py) why it cannot train as it stands, in order."""
    started_ns: int = 0
    ended_ns: int = 0
    is_event: bool = False
    """What log events tell of the call of that span."""
    rewards: tuple[tuple[str, float], ...] = ()
    """Evaluations among its span's events: name and score."""
