"""Samples from an engine until the answer can be trusted: complete, with finite logprobs, under a label that is known.

In: prompt ids and sampling parameters. Out: a Generation. An answer of any other kind (a restarted engine bears the
label `default`) is refused, counted, and sampled again within the call's wait; then UnavailableError.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from typing import Any

import msgspec

from tracegrad.schemas.errors import UnavailableError
from tracegrad.schemas.metrics import GENERATIONS_REFUSED, Metrics
from tracegrad.schemas.records.calls import Purpose
from tracegrad.schemas.records.versions import VersionSpan

from ..config import EngineRef, LlmConfig
from .client import GENERATE, EngineClient, Waits
from .lineage import KnownVersions

__all__ = ["Generation", "Generator"]

_LOGGER = logging.getLogger(__name__)
_LABEL_POLL_S = 0.1
_NO_LOGPROB = -9000.0
"""vLLM writes -9999 for a logprob that is missing, NaN or minus infinity: nothing can be trained on it."""


class _LogprobEntry(msgspec.Struct):
    token_id: int
    logprob: float


class _Logprobs(msgspec.Struct):
    content: list[_LogprobEntry]


class _Span(msgspec.Struct):
    version: str
    start: int


class _Choice(msgspec.Struct):
    token_ids: list[int]
    finish_reason: str
    logprobs: _Logprobs
    stop_reason: int | str | None = None
    weight_versions: list[_Span] | None = None


class _GenerateAnswer(msgspec.Struct):
    choices: list[_Choice]


_GENERATE_ANSWER = msgspec.json.Decoder(_GenerateAnswer)


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine sampled, checked."""

    ids: list[int]
    logprobs: list[float]
    finish_reason: str
    """`stop` or `length`."""
    stop: str | None
    """The stop string that ended it."""
    has_terminal: bool
    """The last id is the terminal token."""
    versions: tuple[VersionSpan, ...]
    engine_id: str


class Generator:
    """Samples for all calls of a gateway."""

    def __init__(self, config: LlmConfig, client: EngineClient, known: KnownVersions, metrics: Metrics) -> None:
        self._config = config
        self._client = client
        self._known = known
        self._metrics = metrics

    async def generate(self, purpose: Purpose, ids: list[int], parameters: dict[str, Any], waits: Waits) -> Generation:
        """Samples until an answer bears a known label, within the call's wait.

        Args:
            parameters: the request's `sampling_params`.
        Raises:
            EngineRefusal: the engine finds fault with the request.
            UnavailableError: no engine gave a usable answer in time.
        """
        body = {"token_ids": ids, "sampling_params": parameters, "stream": False}
        while True:
            data, engine = await self._client.post(GENERATE, body, waits, timeout_s=self._config.generate_timeout_s)
            try:
                choice = _GENERATE_ANSWER.decode(data).choices[0]
                return await self._check(purpose, choice, engine)
            except (msgspec.MsgspecError, IndexError, UnavailableError) as error:
                self._metrics.add(GENERATIONS_REFUSED)
                _LOGGER.warning("an answer of engine %s is refused, trying again: %s", engine.id, error)
                await self._until_labelled(purpose, engine, waits, error)

    async def _check(self, purpose: Purpose, choice: _Choice, engine: EngineRef) -> Generation:
        """The choice as a Generation. Raises UnavailableError when it cannot be used."""
        logprobs = [entry.logprob for entry in choice.logprobs.content]
        if choice.finish_reason not in ("stop", "length") or not choice.token_ids:
            raise UnavailableError(f"expected finish reason stop or length, got {choice.finish_reason}")
        if [entry.token_id for entry in choice.logprobs.content] != choice.token_ids:
            raise UnavailableError("expected one logprob for each sampled token, got others")
        if not all(math.isfinite(value) and value > _NO_LOGPROB for value in logprobs):
            raise UnavailableError("expected finite logprobs, got others")
        versions = await self._versions(purpose, choice.weight_versions or [])
        stop = choice.stop_reason if isinstance(choice.stop_reason, str) else None
        return Generation(
            ids=choice.token_ids,
            logprobs=logprobs,
            finish_reason=choice.finish_reason,
            stop=stop,
            has_terminal=choice.finish_reason == "stop" and stop is None,
            versions=versions,
            engine_id=engine.id,
        )

    async def _versions(self, purpose: Purpose, spans: list[_Span]) -> tuple[VersionSpan, ...]:
        """The spans' versions; for a rollout each must be known, a captured agent may meet any label."""
        deadline = time.monotonic() + self._config.lineage_lag_s
        while True:
            found = [(span.start, self._known.of(span.version)) for span in spans]
            if spans and all(version for _, version in found):
                break
            if purpose is Purpose.UNKNOWN:
                return ()
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not spans:
                labels = sorted({span.version for span in spans})
                raise UnavailableError(f"expected labels of the policy, got {labels}")
            await self._known.changed(left_s)
        return tuple(VersionSpan(start=start, **msgspec.structs.asdict(version)) for start, version in found if version)

    async def _until_labelled(self, purpose: Purpose, engine: EngineRef, waits: Waits, error: Exception) -> None:
        """Waits until generating again has a chance: the engine bears a known label, or does not tell its label."""
        while time.monotonic() < waits.deadline:
            await asyncio.sleep(_LABEL_POLL_S)
            label = await self._client.label(engine)
            if label is None or purpose is Purpose.UNKNOWN or self._known.of(label):
                return
        raise UnavailableError(f"no engine gave a usable answer in time: {error}") from error
