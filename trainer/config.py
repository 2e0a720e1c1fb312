"""What the trainer is told: the batch, the algorithm's axes, the optimiser, where files lie.

In: the resolved configuration (compose builds it from TOML, environment and flags). Out: one frozen record. A run sets
each key that `[trainer]` has, so for those the defaults of compose/run/settings.py count, whose `lr` is lower; the
defaults here are for the rest, and for a trainer built without a file. Invariant: settings that cannot work together
fail here, at load.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.ids import RunHash

__all__ = ["Aggregation", "LoraConfig", "LossConfig", "OptimiserConfig", "TrainerConfig"]

Aggregation = Literal["token_mean", "rollout_mean", "constant"]


class LossConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The algorithm, a point on named axes (docs/training.md has the formulas)."""

    clip_low: float = 0.2
    """The ratio is clipped from below at 1 - clip_low."""
    clip_high: float = 0.28
    """... and from above at 1 + clip_high (arXiv:2503.14476)."""
    aggregation: Aggregation = "token_mean"
    """What one token weighs: 1/N; 1/(R n_r); 1/(R constant_tokens)."""
    constant_tokens: int = 1024
    """L of `constant`: a rollout's greatest length, say."""
    scale_advantages: bool = False
    """Also divide by the population std of the peers' returns (GRPO); off is Dr. GRPO (arXiv:2503.20783)."""
    max_staleness: int = 8
    """Versions that a trained token may be behind. A safety net: tasks paces admission, so drops are rare."""


class OptimiserConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """AdamW with linear warm-up and a bound on the gradient's norm."""

    lr: float = 5e-4
    warmup_steps: int = 3
    """Step s uses lr * min(1, s / warmup_steps)."""
    beta1: float = 0.9
    beta2: float = 0.95
    weight_decay: float = 0.0
    clip_norm: float = 1.0


class LoraConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Low-rank adapters (peft); used when `method` is `lora`."""

    rank: int = 16
    alpha: int = 32
    target_modules: str | tuple[str, ...] = "all-linear"


class TrainerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One policy's trainer. Example: TrainerConfig(run="7c1f3e9a", model="models/tiny", work_dir="runs/a/trainer")."""

    run: RunHash
    policy: str = "policy"
    partition: int = 0
    """The policy's index in the run's policy list: its partition of `transitions`."""
    model: str
    """Folder of the base model (config, tokenizer, safetensors); version 0."""
    work_dir: str
    """Holds `checkpoints/`, `weights/` (the root that engines may load from) and `adapters/`."""
    steps: int = 80
    """Batches after which the trainer is done."""
    groups_per_step: int = 8
    """G: distinct groups in a batch."""
    seed: int = 0
    loss: LossConfig = LossConfig()
    optimiser: OptimiserConfig = OptimiserConfig()
    method: Literal["full", "lora"] = "full"
    lora: LoraConfig = LoraConfig()
    device: str = "auto"
    """`auto`: the accelerator when there is one, else `cpu`."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the model's weights; `auto`: float32 on CPU, bfloat16 on an accelerator. What is optimised is float32.
    bfloat16 is for accelerators and CPUs with its instructions: it halves the weights."""
    publish_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the published files; `auto`: `dtype`. `bfloat16` halves them where the engine serves bfloat16."""
    threads: int = 1
    """torch's intra-op threads. Two on a busy two-core machine are 15-30 times slower than one."""
    micro_batch_tokens: int = 0
    """Padded tokens that one forward pass may take; a longer row goes alone. 0: 1,024 on a CPU (measured the fastest
    for small models), 16,384 on an accelerator."""
    micro_batch_logits: int = 1 << 28
    """Logits (tokens x vocabulary) that one forward pass may take: bounds memory with large vocabularies."""
    max_row_tokens: int = 32768
    """A longer row makes its group malformed (`too_long`)."""
    keep_checkpoints: int = 2
    keep_versions: int = 20
    """Newest version folders kept (version 0 always is); 0 keeps all. A rollback can reach these only."""
    poll_s: float = 0.25
    """Longest wait for records before the stop event and the epoch are looked at again."""
    wait_log_s: float = 30.0
    """A waiting trainer says so, with its lag, this often."""
    append_timeout_s: float = 60.0
    """For one record to be acknowledged by the log."""
    logprob_error_warn: float = 0.1
    """Nats between trainer and sampler, same version, beyond which a warning is logged (stale or wrong weights)."""
    coarse_logprob_error_warn: float = 1.0
    """The same where bfloat16 is published: its rounding alone gave 0.26."""

    def __post_init__(self) -> None:
        for name in ("steps", "groups_per_step", "threads", "keep_checkpoints"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"[trainer] {name}: expected at least 1, got {getattr(self, name)}")
        if not 0.0 <= self.loss.clip_low < 1.0 or self.loss.clip_high < 0.0:
            raise ConfigurationError(
                f"[trainer] clip_low, clip_high: expected 0 <= clip_low < 1 and clip_high >= 0, got "
                f"{self.loss.clip_low}, {self.loss.clip_high}"
            )
        if self.optimiser.lr < 0.0 or self.optimiser.clip_norm <= 0.0:
            raise ConfigurationError("[trainer] lr, clip_norm: expected lr >= 0 and clip_norm > 0, got less")
        if self.loss.aggregation == "constant" and self.loss.constant_tokens < 1:
            raise ConfigurationError("[trainer] constant_tokens: expected at least 1 with `constant`, got less")
