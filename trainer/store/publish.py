"""Which weights become a version, under which number; its folder, which transformers and vLLM open, and its manifest.

In: the learner, where training stands, the base model's folder (config, tokenizer). Out: `weights/7c1f3e9a-v18-e4/`,
whole or not there, and its VersionManifest. Invariant: the manifest's files are all there when it is made; the caller
appends it after the checkpoint that holds the same weights. On failure: OSError (disk full, say) leaves no half folder.

No number ever has two contents: where the log is replayed (resumed from an older checkpoint, or from one between two of
which steps lay) a number that is published already is announced again if the weights are equal, else training goes on
above the newest number.
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace
from torch import Tensor

from tracegrad.schemas.beat import busy
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.records.versions import Version, parse_label
from tracegrad.schemas.records.weights import WEIGHTS_FILE, VersionManifest

from ..batch.batches import Batch
from ..config import TrainerConfig, TrainerHandles
from ..learner import Learner
from ..rating_drop import held_from
from ..source import Source
from .checkpoint import CheckpointState, Progress
from .durable import describe_files, remove_half_written, whole_folder
from .policy_log import PolicyLog
from .tensor_file import describe_tensors, write_tensors

_log = logging.getLogger(__name__)

_COPIED = (".json", ".txt", ".model", ".jinja", ".tiktoken")
"""Config, tokenizer, templates. Weights are ours to write; code is never copied."""
_METADATA = {"format": "pt"}
_ADAPTERS = "adapters.safetensors"
_TEMPLATE = "chat_template.jinja"
"""The first that transformers, vLLM and the gateway look for."""


@dataclass(frozen=True)
class UnwrittenVersion:
    """What a version's folder is to hold, in host memory."""

    manifest: VersionManifest
    """Without files."""
    weights: Mapping[str, Tensor]
    adapters: Mapping[str, Tensor]
    """The folder holds the merged model, from which adapters cannot be taken back; kept for rollbacks."""
    dtype: str


class Publisher:
    """Writes the version folders of one policy.

    Args:
        keep: how many of the newest are kept; 0: all.
        is_held: whether a version is kept for another reason.
    """

    def __init__(self, handles: TrainerHandles, *, keep: int, is_held: Callable[[int], bool]) -> None:
        self._handles = handles
        self._root = Path(handles.work_dir).absolute() / "weights"
        self._adapters = Path(handles.work_dir) / "adapters"
        self._keep = keep
        self._is_held = is_held
        remove_half_written(self._root)
        remove_half_written(self._adapters)

    def snapshot(self, learner: Learner, progress: Progress, *, epoch: int) -> UnwrittenVersion:
        """The version that training stands at."""
        state = progress.state
        manifest = VersionManifest(
            policy=self._handles.policy,
            run=state.run,
            version=state.version,
            epoch=epoch,
            base_version=state.base_version,
            kind="full",
            uri=str(self._root / Version(run=state.run, version=state.version, epoch=epoch).label),
            files=(),
            step=state.step,
            next_offset=state.next_offset,
        )
        return UnwrittenVersion(manifest, learner.export(), learner.adapters(), learner.settings["publish_dtype"])

    @busy("publishing a version")
    def write(self, version: UnwrittenVersion) -> VersionManifest:
        """Writes its folder, durable on return; the manifest to append."""
        target = Path(version.manifest.uri)
        if version.adapters:
            with whole_folder(self._adapters / target.name) as temporary:
                write_tensors(temporary / _ADAPTERS, version.adapters)
        with whole_folder(target) as temporary:
            weights = write_tensors(temporary / WEIGHTS_FILE, version.weights, _METADATA)
            self._copy_base(temporary, version.dtype)
            files = describe_files(temporary, weights)
        return replace(version.manifest, files=files, at_ms=time.time_ns() // 1_000_000)

    @busy("comparing a version")
    def is_content(self, learner: Learner, manifest: VersionManifest) -> bool:
        """Whether a version's weights file is, by its sha256, the one that `write` would write now."""
        return describe_tensors(WEIGHTS_FILE, learner.export(), _METADATA) == manifest.weights

    def is_whole(self, manifest: VersionManifest) -> bool:
        """Whether a version's folder has the files that its manifest names, unchanged; seconds a gigabyte."""
        folder = self._root / manifest.label
        return folder.is_dir() and describe_files(folder) == manifest.files

    @busy("recalling a version")
    def recall(self, learner: Learner, manifest: VersionManifest) -> None:
        """`Learner.recall` from the files of an earlier version."""
        learner.recall(self._root / manifest.label / WEIGHTS_FILE, self._adapters / manifest.label / _ADAPTERS)

    def _copy_base(self, folder: Path, dtype: str) -> None:
        for path in sorted(Path(self._handles.model).iterdir()):
            if path.suffix in _COPIED and path.is_file() and not path.name.endswith(".index.json"):
                shutil.copyfile(path, folder / path.name)
        if self._handles.chat_template is not None:
            shutil.copyfile(self._handles.chat_template, folder / _TEMPLATE)
        config = json.loads((folder / "config.json").read_text())
        config.pop("torch_dtype", None)
        config["dtype"] = dtype
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")

    def retire(self, written: int) -> None:
        """Removes versions beyond the newest `keep`, but for the one just written, which is not among the newest where
        the log is replayed."""
        for number in self._removable(self._keep):
            if number != written:
                self._remove(number)

    def make_room(self, num_bytes: int) -> None:
        """Before so many are written: while they do not fit, the oldest version that nothing holds goes.

        Raises ConfigurationError where none is left: a restart would find the disk as full.
        """
        work_dir, removable = self._handles.work_dir, iter(self._removable(1))
        while (free := shutil.disk_usage(work_dir).free) < num_bytes:
            if (number := next(removable, None)) is None:
                raise ConfigurationError(
                    f"expected {num_bytes} bytes free under {work_dir} for a checkpoint or version, got {free}, and no "
                    "version there that may go: free some, or lower [trainer] keep_checkpoints or set keep_versions, "
                    "and start the run again"
                )
            _log.warning("%d bytes are to be written, %d are free: version %d goes", num_bytes, free, number)
            self._remove(number)

    def _removable(self, num_newest: int) -> list[int]:
        """Versions, oldest first, but for the newest ones and those that held-out passes hold; version 0 stays, a run
        can always be compared with its start."""
        numbers = sorted({version.version for path in self._folders() if (version := parse_label(path.name))})
        beyond = numbers[:-num_newest] if self._keep else []
        return [number for number in beyond if number and not self._is_held(number)]

    def _remove(self, number: int) -> None:
        for path in self._folders(number):
            shutil.rmtree(path, ignore_errors=True)

    def _folders(self, number: int | str = "*") -> list[Path]:
        return [path for root in (self._root, self._adapters) for path in root.glob(f"*-v{number}-e*")]


@dataclass
class Versions:
    """One policy's, by the trainer that claimed it; one thread. Its learner holds the weights."""

    config: TrainerConfig
    handles: TrainerHandles
    learner: Learner
    policy_log: PolicyLog
    progress: Progress
    source: Source
    window: int
    """Of a rollback that the ratings call for, in scored conversations; 0: none does."""

    def __post_init__(self) -> None:
        self.publisher = Publisher(self.handles, keep=self.config.keep_versions, is_held=self._is_held)

    @property
    def state(self) -> CheckpointState:
        """Where training stands."""
        return self.progress.state

    def after(self, batch: Batch, *, is_updated: bool) -> tuple[int, int]:
        """The newest version after a batch from which the learner's weights come, and how many updates it lacks."""
        state = self.state
        step, num = state.step + 1, state.num_unpublished + is_updated
        is_due = self.source.is_due(state)
        if is_due is None:
            planned = self.policy_log.lineage.versions.get(state.version + 1)
            # A replay publishes where it was published: later tokens are of that version.
            is_every = num >= self.handles.publish.every
            is_time = is_every if planned is None or planned.step < step else planned.step == step
            is_due = is_time or self.source.is_last(step, batch.next_offset)
        return (self.next_number(), 0) if num and is_due else (state.version, num)

    def next_number(self) -> int:
        """Of the present weights, which just changed: engines must know no other content under it."""
        version, lineage = self.state.version + 1, self.policy_log.lineage
        if lineage.newest is None or lineage.newest.version < version:
            return version
        published = lineage.versions.get(version)
        if published is not None and self.publisher.is_content(self.learner, published):
            return version
        above = lineage.newest.version + 1
        _log.warning("replay: version %d was published with other weights; goes on as version %d", version, above)
        return above

    def snapshot(self) -> UnwrittenVersion:
        """The present weights, which the newest checkpoint holds or a replay gives, as a version of this epoch."""
        return self.publisher.snapshot(self.learner, self.progress, epoch=self.policy_log.epoch)

    def write(self, version: UnwrittenVersion) -> VersionManifest:
        """Its folder; files only, so any thread may."""
        return self.publisher.write(version)

    def announce(self, manifest: VersionManifest) -> None:
        """Tells of a version whose folder is there; older ones go. Raises FencedError."""
        self.policy_log.announce(manifest)
        self.publisher.retire(manifest.version)

    def is_lost(self, published: VersionManifest | None) -> bool:
        """Whether the present version is to be published anew: the newest that is damaged would never be served, and no
        batch comes before it is."""
        is_newest = published is self.policy_log.lineage.newest
        return published is None or (is_newest and not self.publisher.is_whole(published))

    def recall(self, version: int) -> None:
        """Sets the learner to an earlier version. Raises OSError when its folder is gone, ConfigurationError when it
        holds another model's tensors."""
        manifest = self.policy_log.lineage.versions.get(version)
        if manifest is None:
            raise FileNotFoundError(f"version {version} was never published")
        self.publisher.recall(self.learner, manifest)

    def _is_held(self, version: int) -> bool:
        """Whether a version is kept, however old: for a held-out pass, or because a rollback may go to it."""
        may_be_gone_to = self.window > 0 and version >= held_from(self.state.ratings, self.window)
        return may_be_gone_to or self.source.is_needed(version) or self.policy_log.lineage.held_out.is_held(version)
