"""A source run that met everything, its record, and a log on which another run has its history."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from tests.memory_log import MemoryLog
from tests.trainer.material import group_bytes, segment, summary, turn
from tests.trainer.run_loop import (
    STEPS,
    TRANSITIONS,
    WEIGHTS_TOPIC,
    config_of,
    killed_in,
    log_of,
    request_rollback,
    train,
)
from tests.versions import OTHER_RUN, RUN
from tracegrad.schemas.records.transitions import encode_group, group_id_of
from tracegrad.trainer.config import AlarmsConfig, AlgorithmConfig, TrainerConfig, TrainerHandles
from tracegrad.trainer.history.config import History, ReplayConfig
from tracegrad.trainer.store.publish import Versions

Settings = tuple[TrainerConfig, AlgorithmConfig, AlarmsConfig, TrainerHandles]
SOURCE: dict[str, Any] = {"steps": 6, "max_staleness": 1, "keep_checkpoints": 9}
"""What the source says in `[trainer]`, beside `config_of`'s."""


def _transitions() -> list[bytes | None]:
    """Six batches of two: stale, repeated, malformed, unreadable and useless ones among them."""
    bad = encode_group(summary("bad", ["r0"]), [segment("r0", [turn(0, 3)])])
    versions = {0: 0, 1: 0, 2: 1, 3: 0, 4: 0, 5: 2, 6: 3, 7: 4, 10: 4}
    good: dict[int, bytes | None] = {index: group_bytes(index, version=v) for index, v in versions.items()}
    good |= {index: group_bytes(index, version=4, spread=0.0) for index in (8, 9)}
    return [*map(good.get, (0, 1)), b"garbage", good[0], *map(good.get, (2, 3, 4, 5, 6, 7)), good[5],
            *map(good.get, (8, 9)), bad, good[10]]  # fmt: skip


def train_source(model: Path, work_dir: Path, **changes: Any) -> MemoryLog:
    """Six steps: killed after the second, rolled back after the third, a checkpoint lost after the fifth."""
    log = log_of(_transitions())

    def settings(steps: int) -> Settings:
        return config_of(model, work_dir, **SOURCE | changes | {"steps": steps})

    with killed_in(Versions, "write", step=2):
        train(log, settings(3))
    train(log, settings(3))
    request_rollback(log, 1)
    train(log, settings(5))
    for path in (work_dir / "checkpoints").glob("step-00000005-*"):
        shutil.rmtree(path)
    train(log, settings(6))
    return log


def write_record(source: MemoryLog, path: Path) -> str:
    """As compose does: the values of two topics, one a line."""
    records = [*source.records(WEIGHTS_TOPIC), *source.records(STEPS)]
    path.write_bytes(b"".join((record.value or b"") + b"\n" for record in records))
    return str(path)


def replay_of(
    source: MemoryLog,
    model: Path,
    work_dir: Path,
    *,
    mode: Any = "same",
    without: Sequence[str] = (),
    rules: ReplayConfig | None = None,
    **changes: Any,
) -> tuple[MemoryLog, Settings]:
    """A log that has each group of the source once, in its order, but those left out and what no fold writes; and how
    another run is to be trained on it."""
    values = {group_id_of(record.value): record.value for record in reversed(source.records(TRANSITIONS))}
    first = dict.fromkeys(group_id_of(record.value) for record in source.records(TRANSITIONS))
    kept = [values[id_] for id_ in first if id_ is not None and id_ not in ("bad", *without)]
    config, algorithm, alarms, handles = config_of(model, work_dir, OTHER_RUN, **SOURCE | changes)
    work_dir.mkdir(exist_ok=True)
    history = History(
        mode=mode,
        run=RUN,
        end_offset=len(kept),
        record=write_record(source, work_dir / "record.jsonl") if mode == "same" else "",
        config=rules or ReplayConfig(),
    )
    return log_of(kept), (config, algorithm, alarms, replace(handles, history=history))
