"""Steps of recorded runs (tests/schemas/recorded_steps says of which)."""

from __future__ import annotations

import gzip
from pathlib import Path

from tracegrad.schemas.records.training import TRAINING_STEPS, TrainingStep

_FOLDER = Path(__file__).parent / "schemas" / "recorded_steps"


def recorded_steps(name: str) -> list[TrainingStep]:
    """Of one run, in order."""
    with gzip.open(_FOLDER / f"{name}.jsonl.gz") as lines:
        steps = [TRAINING_STEPS.decode(line) for line in lines]
    return [step for step in steps if isinstance(step, TrainingStep)]
