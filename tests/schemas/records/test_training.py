"""Steps on `training_steps`: what a record of one must tell."""

from __future__ import annotations

import msgspec
import pytest

from tests.schemas.released import GOLDEN
from tracegrad.schemas.errors import UndecodableError
from tracegrad.schemas.records.training import TRAINING_STEPS

RELEASED = msgspec.json.decode((GOLDEN / "training_step-1.json").read_bytes())


@pytest.mark.parametrize("name", ["is_updated", "loss", "grad_norm", "learning_rate", "reward", "batch_hash"])
def test_a_step_that_leaves_out_what_it_did_is_refused(name: str) -> None:
    """Else 0 would stand in a curve for what nobody said."""
    TRAINING_STEPS.decode(msgspec.json.encode(RELEASED))
    told = {key: value for key, value in RELEASED.items() if key != name}
    with pytest.raises(UndecodableError, match=name):
        TRAINING_STEPS.decode(msgspec.json.encode(told))
