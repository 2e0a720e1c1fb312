"""What one store writes: as training holds it, or copies, which a thread may write while the loop trains the next step.

    snapshot    the loop: what training holds now, or copies of it in host memory
    write       the loop or the thread, files only: the checkpoint, then the version's folder, each whole or not there
    announce    the loop: the version's manifest, then the records of the steps that waited for these files

In: progress, tensors. Out: what store.py has written and then announces. Invariant: one is under way at a time, and the
thread reads copies alone and appends nothing. On failure: what the thread raised, OSError say, is raised in the loop
when it takes the result: before the next store, or as soon as it has nothing to train on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from .checkpoint import Progress
from .publish import UnwrittenVersion

_SHARE = 0.8
"""Of the host's free memory that copies may take: the next step takes some too."""


@dataclass(frozen=True)
class Snapshot:
    """A checkpoint, a version or both."""

    progress: Progress | None
    """To be checkpointed, with `tensors`; None: nothing is."""
    tensors: Mapping[str, Tensor]
    version: UnwrittenVersion | None

    @property
    def num_bytes(self) -> int:
        """Of all tensors."""
        parts = [self.tensors] + ([self.version.weights, self.version.adapters] if self.version else [])
        return sum(tensor.nbytes for part in parts for tensor in part.values())

    @property
    def fits_memory(self) -> bool:
        """Whether the host has room for copies."""
        return self.num_bytes < _SHARE * _available_bytes()

    def copied(self, *, is_exported: bool) -> Snapshot:
        """One that no later step moves. `is_exported`: the version's tensors are copies of another device's already."""
        progress, version = self.progress, self.version
        if version is not None and not is_exported:
            version = replace(version, weights=_copied(version.weights), adapters=_copied(version.adapters))
        progress = progress and replace(progress, consumed=dict(progress.consumed))
        return Snapshot(progress, _copied(self.tensors), version)


def _copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}


def _available_bytes() -> int:
    """Of host memory, within the limit of a container (cgroup v2)."""
    meminfo = Path("/proc/meminfo").read_text().split()
    free = 1024 * int(meminfo[meminfo.index("MemAvailable:") + 1])
    limit, stat = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.stat")
    if limit.exists() and stat.exists() and (most := limit.read_text().strip()) != "max":
        used = stat.read_text().split()
        free = min(free, int(most) - int(used[used.index("anon") + 1]))
    return free
