"""What the gateway asks of the engines that sample a policy: the one seam to another kind of engine.

In: chat requests, token ids, a decision how to sample. Out: ids, messages, samples with their logprobs and labels; no
caller knows a route or a body. `vllm.py` is the one that is there. Failure: EngineRefusal where the request is at
fault, UnavailableError past the call's deadline.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, Protocol

import msgspec

from tracegrad.schemas.records.calls import SamplingParameters
from tracegrad.schemas.records.versions import VersionSpan

from ..api.chat_request import ChatRequest
from ..config import EngineRef

RENDER_TIMEOUT_S = 30.0


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    """Where to send a call's requests, and for how long."""

    sticky: str
    """Whose calls prefer the same engine, for its prefix cache: a rollout's, a conversation's; the same after a
    restart."""
    deadline: float
    """`time.monotonic()` after which waiting for an engine ends."""


def waits_until(sticky: str, wait_s: float) -> Waits:
    """Waits of a call that begins now."""
    return Waits(sticky=sticky, deadline=time.monotonic() + wait_s)


class RenderedIds(msgspec.Struct, frozen=True, kw_only=True):
    """A rendered conversation."""

    ids: list[int]
    grammar: Any = None
    """The grammar that the request asks for; None when it asks for none."""


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """The decision for one call."""

    used: SamplingParameters
    filters: dict[str, Any]
    """Logit filters of a captured agent, passed on as they are; with any, the logprobs are not the policy's own."""
    top_logprobs: int | None
    """None: the agent wants no logprobs."""
    grammar: Any
    """What the engine derived from the request (`structured_outputs`); None when it asks for none."""

    @property
    def is_constrained(self) -> bool:
        """Whether the logprobs are others than the policy's."""
        return self.grammar is not None or bool(self.filters)


class Alternative(msgspec.Struct):
    """A token that might have been sampled, or was."""

    token_id: int
    logprob: float
    rank: int | None = None


class LogprobEntry(msgspec.Struct):
    """Of a sampled token."""

    token_id: int
    logprob: float
    top_logprobs: list[Alternative] = []
    """As many as were asked for, but one at least."""


class LabelSpan(msgspec.Struct, frozen=True):
    """From `start` on the tokens bear this weight label."""

    version: str
    start: int


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine sampled."""

    ids: list[int]
    entries: list[LogprobEntry]
    """Of each id."""
    finish_reason: str
    """`stop` or `length`."""
    stop: str | None
    """The stop string that ended it."""
    labels: tuple[LabelSpan, ...]
    versions: tuple[VersionSpan, ...] = ()
    """Those of the labels, once they are known to be the policy's."""
    engine_id: str = ""

    @property
    def logprobs(self) -> list[float]:
        """Of each id."""
        return [entry.logprob for entry in self.entries]

    @property
    def has_terminal(self) -> bool:
        """The last id is the terminal token."""
        return self.finish_reason == "stop" and self.stop is None


class Hearer(Protocol):
    """Who is told of an answer while it is sampled."""

    begun: threading.Event
    """Somebody has seen a part of the answer: it cannot be sampled again."""

    def restart(self) -> None:
        """An answer begins, instead of any before it."""

    def hear(self, ids: list[int]) -> None:
        """It goes on with these ids, none of which is its terminal token."""


class ParsedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """What sampled ids say, by the model's template and tool parser."""

    content: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[tuple[str, str], ...] = ()
    """(name, arguments)."""
    logprobs: Any = None
    """As the engine words them; None: the request asks for none."""


class PromptRenderer(Protocol):
    """Template and tokenizer of a policy."""

    async def ids(self, request: ChatRequest, waits: Waits, *, to_generate: bool = True) -> RenderedIds:
        """The ids of a conversation; `to_generate` adds the generation prompt and derives the grammar."""


class Renderer(PromptRenderer, Protocol):
    """With a parser: an Engine, or what may stand before it (render/local_render.py)."""

    async def count(self, request: ChatRequest, waits: Waits) -> int:
        """The ids of a conversation, with a generation prompt, however many; also more than an engine would take."""

    async def parse(
        self, request: ChatRequest, prompt_ids: list[int], sampled: Sequence[LogprobEntry], waits: Waits
    ) -> ParsedMessage:
        """The message that sampled ids say: without the terminal token, but one at least."""


class Engine(Renderer, Protocol):
    """The engines of one policy, as one. A session's calls prefer the same of them; one that is away is waited for."""

    num_engines: int
    """All, also those that are away."""

    async def generate(
        self,
        ids: list[int],
        sampling: Sampling,
        waits: Waits,
        *,
        timeout_s: float,
        may_hear: Callable[[EngineRef], Awaitable[bool]],
        hearer: Hearer | None = None,
        avoid: Collection[str] = (),
    ) -> tuple[Generation | Exception, EngineRef]:
        """One sample as the engine gave it, or why it cannot be one, and which engine that was.

        Args:
            timeout_s: for one try.
            may_hear: asked before the hearer is told of the answer of an engine, which it raises UnavailableError for.
            hearer: is told of the answer as it is sampled; what fails after its first word is not tried again.
            avoid: ids of engines that come last.
        """

    async def label(self, engine: EngineRef) -> str | None:
        """The engine's weight label, or None when it does not tell or is away."""

    async def context_length(self) -> int | None:
        """The shortest context window of the engines, or None while one does not tell."""
