"""Checkpoints: all that the next batch depends on, in one folder that appears by one rename.

    checkpoints/step-00000003-v3-e1/   state.json           step, version, epoch, one offset, accounting, files
                                       tensors.safetensors  weights/*, optimiser/*, reference/*, critic/*, rng/*
                                       consumed.txt         ids of all groups consumed, in order
                                       training_step.json   the record of that step, as emitted (absent at step 0)

Invariant: resuming from the newest one and reading from its offset gives the batch, loss and weights that an
undisturbed run gives. On failure: a half-written folder is removed. One that cannot be read is read again; then the one
before it is used and it is set aside under the prefix `unread-`, never deleted, and tried in its turn at each start: a
network file system's bad moment must not cost a run. No pickle, no torch.load.
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tracegrad.schemas.beat import busy, units
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.ids import RunHash
from tracegrad.schemas.records.training import TRAINING_STEPS, Accounting
from tracegrad.schemas.records.weights import VersionManifest, WeightFile
from tracegrad.schemas.retry import retry

from ..rating_drop import VersionRatings
from .durable import describe_files, remove_half_written, whole_folder
from .tensor_file import write_tensors

_log = logging.getLogger(__name__)
_UNREAD = "unread-"
_FOLDER = re.compile(rf"(?:{_UNREAD})?step-(\d{{8,}})-v(\d+)-e(\d+)")
_TRIES = 3
"""Reads of a checkpoint whose file system says no (ESTALE, EIO, EACCES): most such moments are short."""
_STATE, _TENSORS, _CONSUMED, _STEP = "state.json", "tensors.safetensors", "consumed.txt", "training_step.json"


class CheckpointState(msgspec.Struct, frozen=True, kw_only=True):
    """The small facts. Example: CheckpointState(policy="policy", run="7c1f3e9a", step=3, version=3, epoch=1, ...)."""

    schema: str = "checkpoint/1"
    policy: str
    run: RunHash
    step: int = 0
    """Batches done."""
    version: int = 0
    """The newest one that these weights come from."""
    num_unpublished: int = 0
    """Updates since; 0: they are that version's weights."""
    base_version: int = 0
    """The version that it was trained (or rolled back) from."""
    epoch: int = 0
    """Of the trainer that wrote it."""
    next_offset: int = 0
    """The first offset of the policy's partition of `transitions` that is not consumed."""
    topic_id: str = ""
    """Of the `transitions` that this is an offset of; empty where the log has none."""
    running: dict[str, float] = {}
    """Mean return of the batches so far, by `peers`: the baseline `running_mean`."""
    weights_offset: int = 0
    """Rollback requests below this offset of `weights` are done."""
    rollbacks: int = 0
    """Of the history that is repeated, done so far."""
    accounting: Accounting = Accounting()
    ratings: VersionRatings = msgspec.field(default=VersionRatings(), name="guard")
    """How the versions so far are rated."""
    seconds: dict[str, float] = {}
    """Of `checkpoint` and `publish`, the step before."""
    files: tuple[WeightFile, ...] = ()
    settings: dict[str, str] = {}
    """What its steps depended on (`Learner.settings`): what a restart changed is said."""

    @property
    def folder(self) -> str:
        """Its folder's name."""
        return f"step-{self.step:08d}-v{self.version}-e{self.epoch}"


@dataclass(slots=True)
class Progress:
    """What changes from batch to batch, apart from tensors."""

    state: CheckpointState
    consumed: dict[str, None] = field(default_factory=dict)
    """All groups consumed, in order (a dictionary: an ordered set)."""
    training_step: bytes | None = None
    """The newest step's record, encoded: a missing one is emitted again byte for byte. None before the first."""
    is_saved: bool = False
    """Whether a checkpoint holds all this, or is being written."""
    unannounced: Mapping[int, VersionManifest] = field(default_factory=dict)
    """The version that is being written, by its number, as far as it is known."""

    def advance(self, **changes: Any) -> None:
        """To the state with these changes, which no checkpoint holds yet."""
        self.state = msgspec.structs.replace(self.state, **changes)
        self.is_saved = False


class Checkpoints:
    """The checkpoints of one run and policy under a folder."""

    def __init__(self, folder: Path, *, keep: int, retry_s: float = 1.0) -> None:
        """`retry_s`: the first pause before one that cannot be read is read again; each doubles."""
        self._folder = folder
        self._keep = keep
        self._retry_s = retry_s

    @busy("saving a checkpoint")
    def save(self, progress: Progress, tensors: Mapping[str, Tensor]) -> None:
        """Writes one, durable on return, and removes the oldest ones. Its state then names the files."""
        with whole_folder(self._folder / progress.state.folder) as temporary:
            on_host = {name: tensor.detach().to("cpu") for name, tensor in tensors.items()}
            written = write_tensors(temporary / _TENSORS, on_host)
            (temporary / _CONSUMED).write_text("".join(f"{group}\n" for group in progress.consumed))
            if progress.training_step is not None:
                (temporary / _STEP).write_bytes(progress.training_step)
            progress.state = msgspec.structs.replace(progress.state, files=describe_files(temporary, written))
            (temporary / _STATE).write_bytes(msgspec.json.encode(progress.state))
        progress.is_saved = True
        kept = [path for path in self._ordered() if not path.name.startswith(_UNREAD)]
        for path in kept[: -self._keep]:
            shutil.rmtree(path, ignore_errors=True)

    def load_newest(self) -> tuple[Progress, dict[str, Tensor]] | None:
        """The newest one that can be read, or None where none was ever written. Newest: highest epoch, then step, then
        version: a trainer that lost its policy may still write, but only under its lower epoch.

        Raises:
            OSError: there are some, none can be read now. ConfigurationError: all are damaged.
        """
        if remove_half_written(self._folder):
            _log.info("removed half-written checkpoints under %s", self._folder)
        failures: dict[Path, Exception] = {}
        for path in reversed(self._ordered()):
            try:
                read, doing = partial(_load, path), f"reading checkpoint {path.name}"
                loaded = retry(read, doing=doing, on=OSError, max_tries=_TRIES, first_s=self._retry_s, quiet_s=0.0)
            except (OSError, ValueError, KeyError, msgspec.MsgspecError, SafetensorError) as error:
                failures[path] = error
                _log.warning("checkpoint %s cannot be read: %s", path.name, str(error)[:300])
                continue
            _set_aside(failures)
            return loaded
        if not failures:
            return None
        told = "; ".join(f"{path.name}: {str(error)[:200]}" for path, error in failures.items())
        if any(isinstance(error, OSError) for error in failures.values()):
            raise OSError(f"expected a checkpoint under {self._folder} that can be read, got {told}")
        raise ConfigurationError(
            f"expected a whole checkpoint under {self._folder}, got {told}: restore the folder, or start a new run"
        )

    def _ordered(self) -> list[Path]:
        """Complete folders and those set aside, oldest first."""
        # Not by `glob`, which takes a folder that may not be read for an empty one: a run without checkpoints.
        paths = self._folder.iterdir() if self._folder.exists() else ()
        found = [(match, path) for path in paths if (match := _FOLDER.fullmatch(path.name))]
        return [path for _, path in sorted((tuple(map(int, match.group(3, 1, 2))), path) for match, path in found)]


def _set_aside(paths: Iterable[Path]) -> None:
    """So that they count for nothing in `keep`, and their names are free for what is written next."""
    for path in paths:
        target = path.with_name(_UNREAD + path.name.removeprefix(_UNREAD))
        try:
            path.rename(target)
        except OSError as error:
            _log.warning("checkpoint %s cannot be set aside: %s", path.name, str(error)[:300])


def _load(path: Path) -> tuple[Progress, dict[str, Tensor]]:
    state = msgspec.json.decode((path / _STATE).read_bytes(), type=CheckpointState)
    found = tuple(file for file in describe_files(path) if file.name != _STATE)
    if found != state.files or state.folder != path.name.removeprefix(_UNREAD):
        raise ValueError("expected the files that state.json names, with their sha256, got others")
    step = path / _STEP
    training_step = step.read_bytes() if step.exists() else None
    if training_step is not None:
        TRAINING_STEPS.decode(training_step)
    consumed = dict.fromkeys((path / _CONSUMED).read_text().split())
    with safe_open(path / _TENSORS, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in units("loading a checkpoint", file.keys())}
    return Progress(state, consumed, training_step, is_saved=True), tensors
