"""`weights` (epoch claims, version manifests, rollback requests, held-out passes) and `weight_acks`; who owns a policy,
and what serves.

A trainer claims an epoch by a record; the first claim of a number owns it. A record is void for every reader
when a higher claim precedes it on the partition: `Lineage` folds that rule, for all readers alike. A record that was
appended a second time changes nothing either, whoever appended it and wherever it lies by then. `digest` is the one
sha256 of a version's files, `folder_of` the one way to where they lie.
"""

from __future__ import annotations

import hashlib
import os
from functools import partial
from typing import Annotated, BinaryIO, Literal

import msgspec
from msgspec import Meta

from ..beat import units
from ..ids import RunHash
from .codec import Codec
from .held_out import HeldOutPass, HeldOutPasses, Number
from .versions import Version

WEIGHTS_FILE = "model.safetensors"
"""Of a version's folder."""
_PIECE_BYTES = 16 * 1024 * 1024
_Run = Annotated[RunHash, Meta(pattern=r"^[0-9a-f]{8}$")]
_Epoch = Annotated[int, Meta(ge=0, lt=10**9)]
"""What a label can hold (`versions.parse_label`): a greater claim would leave no epoch for any trainer after it."""


WeightKind = Literal["full", "lora", "sharded"]
"""What a version's folder holds: `full`, a model that transformers and vLLM open; `lora`, adapters over the base model;
`sharded`, a file of each of the processes that trained it."""


class EpochClaim(msgspec.Struct, frozen=True, kw_only=True, tag="epoch_claim"):
    """A starting trainer takes the policy."""

    schema: str = "epoch_claim/1"
    policy: str
    run: _Run
    epoch: _Epoch
    trainer_id: str
    """Unique per process start; how a trainer recognises its own claim."""
    at_ms: int = 0


class WeightFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a version, relative to its folder."""

    name: str
    bytes: int
    sha256: str


def digest(file: BinaryIO) -> str:
    """The sha256, hex, of the rest of an open file; a beat every 16 MiB, for it may be of many gigabytes."""
    found = hashlib.sha256()
    for piece in units("reading weights", iter(partial(file.read, _PIECE_BYTES), b"")):
        found.update(piece)
    return found.hexdigest()


def folder_of(uri: str, root: str | os.PathLike[str]) -> str:
    """Where a version's folder lies: under the root of its run's versions, wherever that was moved or copied to, else
    where it was written; an empty root: there."""
    here = os.path.join(root, os.path.basename(uri))
    return here if root and os.path.isdir(here) else uri


class VersionManifest(Version, frozen=True, kw_only=True, tag="version"):
    """A complete version that engines may load. Example: version 18 of epoch 4 under `.../7c1f3e9a-v18-e4`."""

    schema: str = "version/1"
    run: _Run
    version: Number
    epoch: _Epoch
    policy: str
    base_version: int
    """The number of the version that it was trained from; of a rollback, of the one whose content it has. A number
    suffices: of the versions before it on the partition, one survives with that number (`Lineage`)."""
    kind: str
    """A `WeightKind`; a reader shows a word that it does not know as it is, and weight sync refuses it."""
    uri: str
    """Absolute path at which the folder was written; `folder_of` finds one that was moved with its run."""
    files: tuple[WeightFile, ...]
    step: int
    """The number of the last batch before it, 0 without one; a batch that made no version has a number too."""
    next_offset: int
    """The first offset of `transitions` that it has not consumed."""
    metrics: dict[str, float] = msgspec.field(default_factory=dict)
    """Of records of older releases: figures of the step, which `training_steps` has."""
    at_ms: int = 0

    @property
    def weights(self) -> WeightFile | None:
        """The file of its weights, where it has one: equal ones are equal weights."""
        return next((file for file in self.files if file.name == WEIGHTS_FILE), None)


class RollbackRequest(msgspec.Struct, frozen=True, kw_only=True, tag="rollback"):
    """Asks the live trainer to publish an old version's content under a new number."""

    schema: str = "rollback/1"
    policy: str
    run: RunHash
    request_id: Annotated[str, Meta(min_length=1, max_length=64)]
    """Drawn for the request: whatever bears it again is a copy of its record, and asks for nothing."""
    to_version: int
    """A number suffices: it means the version that survives with that number (`Lineage`) when the trainer does it."""
    requested_by: str
    """A person; or the trainer itself, with the step at which it found that raters like the newest versions less."""
    at_ms: int = 0


class WeightAck(Version, frozen=True, kw_only=True):
    """An engine has loaded and labelled a version and is about to go on: from here on it counts as served, and whatever
    it samples comes after this record."""

    schema: str = "weight_ack/1"
    run: _Run
    version: Number
    epoch: _Epoch
    engine_id: str
    policy: str
    load_s: float
    """Seconds from pause to label."""
    at_ms: int = 0


WeightRecord = EpochClaim | VersionManifest | RollbackRequest | HeldOutPass
WEIGHTS: Codec[WeightRecord] = Codec(
    WeightRecord, released=("epoch_claim/1", "version/1", "rollback/1", "held_out_pass/1"), wire="json"
)
WEIGHT_ACKS: Codec[WeightAck] = Codec(WeightAck, released=("weight_ack/1",), wire="json")


class Lineage:
    """The surviving versions of one policy, folded from `weights` in order."""

    def __init__(self, policy: str) -> None:
        self.policy = policy
        self.claim: EpochClaim | None = None
        """The claim in force: the first one of the highest number."""
        self.versions: dict[int, VersionManifest] = {}
        """Surviving manifests by version; a higher epoch's manifest replaces a lower one's."""
        self.held_out = HeldOutPasses()
        """Of whichever epoch: what an older trainer published was served and scored all the same."""
        self._requested: set[str] = set()

    def fold(self, record: WeightRecord) -> bool:
        """Takes the next record. False: it is void, a copy of another, or of another policy, and must be ignored."""
        if record.policy != self.policy:
            return False
        if isinstance(record, HeldOutPass):
            return self.held_out.fold(record)
        if isinstance(record, EpochClaim):
            if self.claim is not None and record.epoch <= self.claim.epoch:
                return False
            self.claim = record
            return True
        if isinstance(record, VersionManifest):
            if self.claim is None or record.epoch != self.claim.epoch:
                return False
            self.versions[record.version] = record
        if isinstance(record, RollbackRequest):
            if record.request_id in self._requested:
                return False
            self._requested.add(record.request_id)
        return True

    def is_requested(self, request_id: str) -> bool:
        """Whether a rollback was asked for under this id."""
        return request_id in self._requested

    @property
    def newest(self) -> VersionManifest | None:
        """The highest surviving version, of whichever epoch, or None."""
        return self.versions[max(self.versions)] if self.versions else None
