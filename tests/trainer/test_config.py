"""The trainer's settings."""

from __future__ import annotations

import msgspec
import pytest

from tests.versions import RUN
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.trainer.config import LossConfig, OptimiserConfig, TrainerConfig

REQUIRED = {"run": "mine", "model": "m", "work_dir": "w"}


def test_defaults_are_the_measured_recipe() -> None:
    """clip .2/.28, AdamW (.9, .95) without decay, clip-norm 1, three warm-up steps, lr 5e-4."""
    config = msgspec.convert(REQUIRED, TrainerConfig)
    assert (config.loss.clip_low, config.loss.clip_high, config.loss.aggregation) == (0.2, 0.28, "token_mean")
    assert config.optimiser == OptimiserConfig(
        lr=5e-4, warmup_steps=3, beta1=0.9, beta2=0.95, weight_decay=0.0, clip_norm=1.0
    )


def test_config_survives_json() -> None:
    """Compose writes the resolved configuration beside each run."""
    config = TrainerConfig(run=RUN, model="m", work_dir="w", loss=LossConfig(aggregation="constant"))
    assert msgspec.json.decode(msgspec.json.encode(config), type=TrainerConfig) == config


@pytest.mark.parametrize(
    "changes",
    [
        {"steps": 0},
        {"groups_per_step": 0},
        {"loss": LossConfig(clip_low=1.0)},
        {"loss": LossConfig(aggregation="constant", constant_tokens=0)},
        {"optimiser": OptimiserConfig(clip_norm=0.0)},
    ],
    ids=str,
)
def test_settings_that_cannot_work_fail_at_load(changes: dict[str, object]) -> None:
    """With the key's name."""
    with pytest.raises(ConfigurationError, match=r"\[trainer\]"):
        TrainerConfig(**REQUIRED, **changes)  # type: ignore[arg-type]


def test_unknown_keys_are_refused() -> None:
    """A typo must not train with defaults."""
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(REQUIRED | {"learning_rate": 1}, TrainerConfig)
