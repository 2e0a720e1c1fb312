"""The trainer's signs of life: each micro-batch, and each time that it looks for records."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from safetensors.torch import load_file

from tests.trainer.run_loop import config_of, new_log, train
from tracegrad.schemas.beat import FIRST_S, START_S, WITHIN_S, Beat, kept

pytestmark = pytest.mark.torch


def test_each_micro_batch_gives_a_beat_and_promises_the_next(untied: Path, tmp_path: Path) -> None:
    """Not the step as a whole: the first may take long, the others about as long as it took."""
    told: list[Beat] = []
    with kept(told.append):
        train(new_log(), config_of(untied, tmp_path, steps=1, micro_batch_tokens=16))
    computed = [beat for beat in told if beat.doing == "a micro-batch"]
    begun = [beat for beat in computed if beat.within_s > WITHIN_S]
    assert len(begun) >= 4 and len(computed) == 2 * len(begun)
    assert begun[0].within_s == pytest.approx(FIRST_S, abs=1.0)
    assert all(WITHIN_S < beat.within_s < WITHIN_S + 300.0 for beat in begun[1:])
    assert {"saving a checkpoint", "publishing a version"} <= {beat.doing for beat in told}
    assert told[-1].num_turns > 0


def test_a_model_and_a_checkpoint_load_with_a_beat_for_each_tensor(untied: Path, tmp_path: Path) -> None:
    """A trainer that is frozen meanwhile is seen within START_S; it was an hour."""
    log = new_log()
    train(log, config_of(untied, tmp_path, steps=1))
    told: list[Beat] = []
    with kept(told.append):
        train(log, config_of(untied, tmp_path, steps=1))
    num_tensors = len(load_file(untied / "model.safetensors"))
    for doing in ("loading the model", "loading a checkpoint"):
        beats = [beat for beat in told if beat.doing == doing]
        assert len(beats) > num_tensors, doing
        assert max(beat.within_s for beat in beats) <= START_S
