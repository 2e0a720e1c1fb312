"""Keeps one engine on the newest version of its policy, and tells when it serves it.

In: `weights`, from the beginning (schemas/records/weights.py Lineage). Out: the engine's weights and label; one
record on `weight_acks` per version served.

    newest survivor -> verify its files -> pause (keep, clear cache) -> load -> label -> acknowledge -> resume
         ^                    | refused: counted, the next older one that is sound
         +--------------------+--------- look again each poll: a label that is not the newest, a pause that is ours

Invariants: level-triggered, so a killed weight sync, a restarted engine (it says `default`) or a missed record are
all the same case; only complete, verified versions are served; what is paused is resumed only after a load that
succeeded; versions in between are skipped; a version samples nothing before its acknowledgement is on the log.
Failure: engine or broker away: looked at again, for ever; a newest version that stays damaged: ConfigurationError.
Not to be combined with a second one on the same engine.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec

from tracegrad.schemas.beat import acknowledged, beat
from tracegrad.schemas.credentials import bearer
from tracegrad.schemas.errors import ConfigurationError, OverloadedError, RecordError, UnavailableError
from tracegrad.schemas.keys import engine_key
from tracegrad.schemas.log.follow import decoded, follow
from tracegrad.schemas.log.protocol import AWAY_S, Log, LogWriter, Record
from tracegrad.schemas.log.refusals import Refusals
from tracegrad.schemas.metrics import ENGINE_AWAY, VERSIONS_REFUSED, VERSIONS_SERVED, VERSIONS_SKIPPED, Metrics
from tracegrad.schemas.reasons import Reason
from tracegrad.schemas.records.weights import (
    WEIGHT_ACKS,
    WEIGHTS,
    Lineage,
    VersionManifest,
    WeightAck,
    WeightFile,
    digest,
    folder_of,
)
from tracegrad.schemas.topics import Topic, Topics

from .engine_control import EngineControl, VllmControl

_TOLD_CHARS = 500
"""Of a manifest's own words in an error: it may be of megabytes."""
_logger = logging.getLogger(__name__)


class WeightSyncHandles(msgspec.Struct, frozen=True, kw_only=True):
    """Which engine follows which policy."""

    policy: str
    """The policy whose versions the engine serves."""
    engine_id: str
    """The engine's name on `weight_acks`."""
    engine_url: str
    """http://host:port of the engine; its development routes must be reachable."""
    engine_token: str | None = None
    """What the engine asks for, as a Bearer key; None: nothing."""
    weight_root: str
    """Version folders outside it are refused."""


@dataclass(kw_only=True)
class WeightSync:
    """The decisions, without the waiting. Not thread-safe."""

    handles: WeightSyncHandles
    control: EngineControl
    writer: LogWriter
    """Where acknowledgements go."""
    topics: Topics
    metrics: Metrics
    clock: Callable[[], float] = time.monotonic
    """For the retry of refused versions."""
    retry_refused_s: float = 30.0
    """A refused version is looked at again after this, in case its storage was only slow."""
    refused_patience_s: float = 1800.0
    """The newest version, refused for so long with none after it, is one that the run waits for, and would for ever."""

    def __post_init__(self) -> None:
        self._lineage = Lineage(self.handles.policy)
        self._codecs = {self.topics.name(Topic.WEIGHTS): WEIGHTS}
        self._refusals = Refusals(self.topics, self.metrics)
        self._refused_until: dict[str, float] = {}
        self._refused_since: dict[str, float] = {}
        self._acknowledged = ""
        self._served: VersionManifest | None = None
        self._load_s = 0.0
        self._loaded = ""
        """The label of what was loaded and not resumed yet: it is acknowledged first."""

    def fold(self, records: Iterable[Record]) -> None:
        """Takes the next records of `weights`. Never raises for a bad one."""
        for _, weight in decoded(records, self._codecs, self._refusals):
            self._lineage.fold(weight)

    def reconcile(self) -> None:
        """One look at the engine, and whatever it takes to have it serve the newest sound version.

        Raises UnavailableError when engine or broker is away; the next look starts afresh. ConfigurationError when the
        newest version stays one that cannot be served.
        """
        candidates = sorted(self._lineage.versions.values(), key=lambda manifest: manifest.version, reverse=True)
        if not candidates:
            return
        status = self.control.status()
        for manifest in candidates:
            is_paused = status.is_paused
            if manifest.label != status.label or (is_paused and manifest.label != self._loaded):
                if self.clock() < self._refused_until.get(manifest.label, 0.0):
                    continue
                try:
                    self._load(manifest)
                except RecordError as error:
                    self._refuse(manifest, error, is_newest=manifest is candidates[0])
                    status = self.control.status()
                    continue
                is_paused = True
            self._acknowledge(manifest)
            if is_paused:
                self.control.resume()
                self._loaded = ""
            return

    def _load(self, manifest: VersionManifest) -> None:
        if manifest.kind not in self.control.kinds:
            raise RecordError(
                f"expected a version of kind {' or '.join(sorted(self.control.kinds))}, which the engine loads, got "
                f"{manifest.kind!r}, version {manifest.label}: have its trainer publish one that the engine loads, or "
                "start an engine that loads this one",
                reason=Reason.KIND,
            )
        folder = verify_version(manifest, self.handles.weight_root)
        started = time.monotonic()
        self.control.load(manifest, str(folder))
        self._load_s = time.monotonic() - started
        label = self.control.status().label
        if label != manifest.label:
            raise UnavailableError(f"expected label {manifest.label} after its load, got {label}")
        self._acknowledged, self._loaded = "", manifest.label
        self._refused_since.pop(manifest.label, None)
        if self._served is not None and manifest.version > self._served.version + 1:
            self.metrics.add(VERSIONS_SKIPPED, num=manifest.version - self._served.version - 1)
        self._served = manifest
        engine, load_s = self.handles.engine_id, self._load_s
        _logger.info("engine %s loaded %s of policy %s after %.3f s", engine, manifest.label, manifest.policy, load_s)

    def _refuse(self, manifest: VersionManifest, error: RecordError, *, is_newest: bool) -> None:
        now = self.clock()
        if is_newest and now - self._refused_since.setdefault(manifest.label, now) > self.refused_patience_s:
            mend = "Mend the disk and start the run again: its trainer publishes anew what is damaged"
            remedy = "Then start the run again" if error.reason == Reason.KIND else mend
            raise ConfigurationError(
                f"expected the newest version of policy {manifest.policy!r} to be sound, got {manifest.label} refused "
                f"({error.reason}) for {self.refused_patience_s:g} s and none after it: {error}. {remedy}"
            ) from error
        self._refused_until[manifest.label] = now + self.retry_refused_s
        self.metrics.add(VERSIONS_REFUSED, error.reason)
        _logger.error("version %s of policy %s is not served: %s", manifest.label, manifest.policy, error)

    def _acknowledge(self, manifest: VersionManifest) -> None:
        if manifest.label == self._acknowledged:
            return
        ack = WeightAck(
            engine_id=self.handles.engine_id,
            policy=manifest.policy,
            run=manifest.run,
            version=manifest.version,
            epoch=manifest.epoch,
            load_s=self._load_s,
            at_ms=int(time.time() * 1000),
        )
        try:
            topic, key = self.topics.name(Topic.WEIGHT_ACKS), engine_key(self.handles.engine_id)
            future = self.writer.append(topic, key=key, value=WEIGHT_ACKS.encode(ack))
            acknowledged(future, AWAY_S, f"append to {topic!r}")
        except (OverloadedError, CancelledError) as error:
            raise UnavailableError(f"acknowledgement of {manifest.label} did not reach the log: {error!r}") from error
        self._acknowledged = manifest.label
        self._served = manifest
        self.metrics.add(VERSIONS_SERVED)


def verify_version(manifest: VersionManifest, weight_root: str) -> Path:
    """The version's real folder, once each of its files was found complete and unchanged.

    Blocks for as long as hashing takes (about a second per gigabyte); call it before the engine is paused.

    Raises:
        RecordError: it must not be served; the message says which file, expected and got, the reason is `uri`,
            `missing`, `files`, `size`, `sha256` or `unreadable`.
    """
    if not any(file.name.endswith(".safetensors") for file in manifest.files):
        raise RecordError(f"expected safetensors files, got none, version {manifest.label}", reason=Reason.FILES)
    root = Path(os.path.realpath(weight_root))
    try:
        folder = Path(os.path.realpath(folder_of(manifest.uri, root)))
        if not os.path.isabs(manifest.uri) or root not in folder.parents:
            raise RecordError(
                f"expected a folder under {root}, got {folder}, version {manifest.label}", reason=Reason.URI
            )
        if not folder.is_dir():
            raise RecordError(
                f"expected a folder at {folder}, got none, version {manifest.label}", reason=Reason.MISSING
            )
        for file in manifest.files:
            _verify_file(folder, file)
    except RecordError:
        raise
    except (OSError, ValueError) as error:
        # A name that is too long, a NUL in it, a disk that fails: of whichever call, the version cannot be read.
        told = str(error)[:_TOLD_CHARS]
        raise RecordError(f"cannot read {manifest.uri[:_TOLD_CHARS]!r}: {told}", reason=Reason.UNREADABLE) from error
    return folder


def _verify_file(folder: Path, file: WeightFile) -> None:
    path = Path(os.path.realpath(folder / file.name))
    if folder not in path.parents:
        raise RecordError(f"expected {file.name} inside {folder}, got {path}", reason=Reason.FILES)
    if not path.is_file():
        raise RecordError(f"expected file {path}, got none", reason=Reason.MISSING)
    with path.open("rb") as opened:
        size = os.fstat(opened.fileno()).st_size
        if size != file.bytes:
            raise RecordError(f"expected {file.bytes} bytes, got {size}, in {path}", reason=Reason.SIZE)
        sha256 = digest(opened)
    if sha256 != file.sha256:
        raise RecordError(
            f"expected sha256 {file.sha256[:16]}..., got {sha256[:16]}..., in {path}", reason=Reason.SHA256
        )


def run(
    handles: WeightSyncHandles,
    *,
    topics: Topics,
    log: Log,
    stop: threading.Event,
    metrics: Metrics,
    poll_s: float = 1.0,
) -> None:
    """Reads, folds, reconciles until `stop` is set; the first look at the engine waits until all that lay on the log
    was folded. An engine that is away is looked at again after `poll_s` or at the next record.

    Raises FatalError only (the log lost records, a topic is missing, the newest version cannot be served).
    """
    with (
        httpx.Client(base_url=handles.engine_url.rstrip("/"), headers=bearer(handles.engine_token)) as client,
        closing(follow(log, [topics.name(Topic.WEIGHTS)], poll_s=poll_s, stop=stop)) as chunks,
    ):
        writer = log.writer()
        sync = WeightSync(handles=handles, control=VllmControl(client), writer=writer, topics=topics, metrics=metrics)
        was_away = False
        try:
            for chunk in chunks:
                beat()
                sync.fold(chunk.records)
                if not chunk.is_caught_up:
                    continue
                try:
                    sync.reconcile()
                except UnavailableError as error:
                    metrics.add(ENGINE_AWAY)
                    if not was_away:
                        _logger.warning("waiting for engine %s or the log: %s", handles.engine_id, error)
                    was_away = True
                else:
                    if was_away:
                        _logger.info("engine %s and the log answer again", handles.engine_id)
                    was_away = False
        finally:
            try:
                writer.close()
            except UnavailableError as error:
                _logger.warning("the last acknowledgements may be missing: %s", error)
            _logger.info("weight sync of engine %s ends: %s", handles.engine_id, metrics.snapshot())
