"""Samples from an engine until the answer can be trusted: complete, with finite logprobs, under a label that is known.

In: prompt ids and sampling parameters; records of `weights` from the beginning, which say what labels an engine may
bear. Out: a Generation. An answer of any other kind (a restarted engine bears the label `default`) is refused, counted,
and sampled again within the call's wait; then UnavailableError. An undecodable record of `weights` is counted and
passed over; a broker that is away is waited for. A fatal error is kept in
`KnownVersions.fatal` and ends the gateway: the log's, or a version of the policy under which answer after answer has no
finite logprobs, with which the run could only exclude group after group and end as if it had trained.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
import threading
import time
from collections.abc import Sequence

import msgspec

from tracegrad.schemas.errors import DivergedError, FatalError, UnavailableError
from tracegrad.schemas.log.follow import decoded, follow, in_thread
from tracegrad.schemas.log.protocol import Log
from tracegrad.schemas.log.refusals import Refusals
from tracegrad.schemas.metrics import GENERATIONS_REFUSED, LABELS_REFUSED, Metrics
from tracegrad.schemas.records.calls import Purpose
from tracegrad.schemas.records.versions import Version, VersionSpan, parse_label
from tracegrad.schemas.records.weights import WEIGHTS, Lineage, folder_of
from tracegrad.schemas.topics import Topic, Topics

from ..config import EngineRef, LlmConfig, Timings
from .engine import Engine, Generation, Hearer, LabelSpan, Sampling, Waits

_LOGGER = logging.getLogger(__name__)
_NO_LOGPROB = -9000.0
"""vLLM writes -9999 for a logprob that is missing, NaN or minus infinity: nothing can be trained on it."""
_MAX_NOT_FINITE = 64
"""Answers in a row, under labels of the policy, without finite logprobs: about one from each rollout that runs."""


class KnownVersions:
    """The surviving versions of the policy, followed in the gateway's event loop."""

    def __init__(self, policy: str, *, topics: Topics, log: Log, metrics: Metrics, poll_s: float = 0.05) -> None:
        self.fatal: FatalError | None = None
        self._lineage = Lineage(policy)
        self._topic = topics.name(Topic.WEIGHTS)
        self._log = log
        self._poll_s = poll_s
        self._refusals = Refusals(topics, metrics)
        self.stop = threading.Event()
        """Ends reading, within a poll."""
        self._changed = asyncio.Event()

    def of(self, label: str) -> Version | None:
        """The version of a label that survives in the policy's lineage; None for any other, as of another run."""
        version = parse_label(label)
        manifest = self._lineage.versions.get(version.version) if version else None
        return version if manifest is not None and manifest.label == label else None

    def folder(self, root: str = "") -> str | None:
        """Where the newest of the versions under a root lies; its tokenizer and template are every version's."""
        newest = self._lineage.newest
        return folder_of(newest.uri, root) if newest else None

    async def changed(self, timeout_s: float) -> None:
        """Returns at the next change or after the time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()

    async def follow(self) -> None:
        """Reads until `stop`, in the event loop that `changed` is awaited in."""
        steps = follow(self._log, [self._topic], poll_s=self._poll_s, stop=self.stop)
        try:
            async with contextlib.aclosing(in_thread(steps)) as chunks:
                async for chunk in chunks:
                    weights = decoded(chunk.records, {self._topic: WEIGHTS}, self._refusals)
                    if sum(self._lineage.fold(weight) for _, weight in weights):
                        self._changed.set()
                        self._changed = asyncio.Event()
        except FatalError as error:
            self.fatal = error


class Generator:
    """Samples for all calls of a gateway."""

    def __init__(
        self, config: LlmConfig, engine: Engine, known: KnownVersions, metrics: Metrics, timings: Timings
    ) -> None:
        self._timings = timings
        self._config = config
        self._engine = engine
        self._known = known
        self._metrics = metrics
        self._num_not_finite = 0

    async def generate(
        self,
        purpose: Purpose,
        ids: list[int],
        sampling: Sampling,
        waits: Waits,
        hearer: Hearer | None = None,
    ) -> Generation:
        """Samples until an answer bears a known label, within the call's wait.

        Args:
            hearer: is told of the answer as it is sampled, once the engine's label is known; whatever fails after its
                first word is not tried again.
        Raises:
            EngineRefusal: the engine finds fault with the request.
            UnavailableError: no engine gave a usable answer in time.
        """
        is_last, refused = hearer.begun if hearer is not None else None, set[str]()
        # Not by `retry`: what lies between two tries is no pause, but the wait for an engine whose label is known.
        while True:
            answer, engine = await self._engine.generate(
                ids,
                sampling,
                waits,
                timeout_s=self._config.generate_timeout_s,
                may_hear=functools.partial(self._is_labelled, purpose),
                hearer=hearer,
                avoid=refused,
            )
            try:
                if isinstance(answer, Exception):
                    raise answer
                return await self._checked(purpose, answer, engine)
            except (msgspec.MsgspecError, IndexError, UnavailableError) as error:
                self._metrics.add(GENERATIONS_REFUSED)
                if is_last is not None and is_last.is_set():
                    raise
                _LOGGER.warning("an answer of engine %s is refused, trying again: %s", engine.id, error)
                if engine.id in refused or self._engine.num_engines == 1:
                    # Each that is here was asked.
                    await self._until_labelled(purpose, engine, waits, error)
                    refused.clear()
                else:
                    refused.add(engine.id)

    async def _checked(self, purpose: Purpose, given: Generation, engine: EngineRef) -> Generation:
        """With its versions. Raises UnavailableError when it cannot be used."""
        if given.finish_reason not in ("stop", "length") or not given.ids:
            raise UnavailableError(f"expected finish reason stop or length, got {given.finish_reason}")
        if [entry.token_id for entry in given.entries] != given.ids:
            raise UnavailableError("expected one logprob for each sampled token, got others")
        if not all(math.isfinite(value) and value > _NO_LOGPROB for value in given.logprobs):
            self._not_finite(given.labels)
            raise UnavailableError("expected finite logprobs, got others")
        self._num_not_finite = 0
        versions = await self._versions(purpose, given.labels)
        return msgspec.structs.replace(given, versions=versions, engine_id=engine.id)

    async def _is_labelled(self, purpose: Purpose, engine: EngineRef) -> bool:
        """Whether what the engine samples can be told before its label comes, with its end. Raises UnavailableError
        for a label that is not the policy's."""
        label = await self._engine.label(engine)
        if label is not None:
            await self._versions(purpose, [LabelSpan(label, 0)])
        return label is not None or purpose is Purpose.UNKNOWN

    def _not_finite(self, spans: Sequence[LabelSpan]) -> None:
        """Counts an answer of the policy's own versions; one too many is fatal."""
        labels = sorted({span.version for span in spans})
        if not labels or not all(map(self._known.of, labels)):
            return
        self._num_not_finite += 1
        if self._num_not_finite >= _MAX_NOT_FINITE:
            self._known.fatal = DivergedError(
                f"expected finite logprobs from version {labels[-1]}, got none in {self._num_not_finite} answers in a "
                "row: its weights give NaN in the engine. Start a new run from an older version's folder ([policy] "
                "model), with a lower [trainer] lr or with dtype float32 in [engine] and [trainer]"
            )

    async def _versions(self, purpose: Purpose, spans: Sequence[LabelSpan]) -> tuple[VersionSpan, ...]:
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
                self._metrics.add(LABELS_REFUSED)
                raise UnavailableError(f"expected labels of the policy, got {labels}")
            await self._known.changed(left_s)
        return tuple(VersionSpan(start=start, **msgspec.structs.asdict(version)) for start, version in found if version)

    async def _until_labelled(self, purpose: Purpose, engine: EngineRef, waits: Waits, error: Exception) -> None:
        """Waits until generating again has a chance: the engine bears a known label, or does not tell its label."""
        while time.monotonic() < waits.deadline:
            await asyncio.sleep(self._timings.label_poll_s)
            label = await self._engine.label(engine)
            if label is None or purpose is Purpose.UNKNOWN or self._known.of(label):
                return
        raise UnavailableError(f"no engine gave a usable answer in time: {error}") from error
