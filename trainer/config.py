"""What the trainer is told: `[trainer]` of the settings file, and the handles of the run that it works for.

In: compose hands both over. Out: two frozen records. Invariant: bounds stand in the types, so what cannot work fails
at load. Imports nothing heavy: the command line reads it for its help.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from tracegrad.schemas.ids import RunHash
from tracegrad.schemas.section import Count, Device, Program, Section, Whole

__all__ = ["Aggregation", "Scale", "TrainerConfig", "TrainerHandles"]

Aggregation = Literal["token_mean", "rollout_mean", "constant"]
Scale = Literal["none", "std", "grpo"]


class TrainerConfig(Section, frozen=True, kw_only=True):
    """`[trainer]`: how the policy learns (docs/training.md has the formulas)."""

    steps: Count = 80
    """Batches until the run is done."""
    groups_per_step: Count = 8
    """G, the training groups of one batch."""
    lr: Annotated[float, Meta(ge=0)] = 1e-5
    """AdamW's learning rate after the warm-up."""
    warmup_steps: Whole = 3
    """Linear warm-up: an optimiser's u-th update uses lr * min(1, u / warmup_steps); a rollback begins a new one."""
    clip_low: Annotated[float, Meta(ge=0, lt=1)] = 0.2
    """The ratio may fall to 1 - clip_low."""
    clip_high: Annotated[float, Meta(ge=0)] = 0.28
    """The ratio may rise to 1 + clip_high (arXiv:2503.14476)."""
    clip_dual: Annotated[float, Meta(gt=1)] = 3.0
    """Greatest weight of a token with a negative advantage (dual clip, arXiv:1912.09729)."""
    clip_norm: Annotated[float, Meta(gt=0)] = 1.0
    """Gradient norm clip."""
    weight_decay: Annotated[float, Meta(ge=0)] = 0.0
    """AdamW's."""
    lora_rank: Count | None = None
    """Rank of a low-rank adapter; None: every weight is trained. Not for mixtures of experts."""
    lora_alpha: Count = 32
    """Scale of the adapter."""
    baseline: str = "leave_one_out"
    """What a return is compared with: a name in `BASELINES` (trainer/algorithm/recipe.py)."""
    aggregation: Aggregation = "token_mean"
    """What one token weighs in the loss: `token_mean` 1/N, `rollout_mean` 1/(R n_r), `constant` 1/(R L)."""
    constant_tokens: Count = 1024
    """L of `constant`: the greatest length of a rollout, say."""
    max_staleness: Whole = 8
    """Versions that a trained token may be behind; beyond it the group is excluded as `stale`. A safety net, for
    `[pace]` bounds admission."""
    scale: Scale = "none"
    """What advantages are divided by: `none` (with leave-one-out: RLOO), `grpo` (then exactly GRPO), or `std`, the
    population std of the peers' returns, which is GRPO * (k / (k - 1))^1.5."""
    device: Device = "auto"
    """`cpu`, `cuda`, `cuda:N`, the N-th visible GPU from 0, or `auto`: the first GPU when there is one, else `cpu`."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the model's weights; `auto`: float32 on CPU, bfloat16 on an accelerator. What is optimised is float32.
    bfloat16 is for accelerators and CPUs with its instructions: it halves the weights."""
    publish_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the published files; `auto`: `dtype`, whatever the model came in."""
    threads: Count = 1
    """CPU threads; two intra-op threads on a busy two-core machine are 15 to 30 times slower than one."""
    micro_batch_tokens: Whole = 0
    """Padded tokens of a forward pass, which bounds memory; a longer row goes alone. 0: 1,024 on a CPU (measured the
    fastest for small models), 16,384 on an accelerator."""
    micro_batch_logits: Count = 1 << 28
    """Logits (tokens x vocabulary) that exist at once: beyond, the head is computed in pieces, each again in the
    backward pass. Of the default a copy takes 1 GiB in float32, and the backward pass has about four."""
    max_row_tokens: Count = 32768
    """A longer row makes its group malformed (`too_long`)."""
    keep_versions: Whole = 20
    """Newest version folders kept; version 0 always is; 0 keeps all. A rollback can reach these only."""
    keep_checkpoints: Count = 2
    """Newest checkpoints kept: where the newest cannot be read, an older one is resumed and the log replayed."""
    checkpoint_every: Count = 1
    """Steps from one checkpoint to the next; what a kill undoes is replayed from the log. A stop always leaves one."""
    python: Program | None = None
    """The interpreter that has `tracegrad[trainer]`; None: the one that runs tracegrad."""


class TrainerHandles(msgspec.Struct, frozen=True, kw_only=True):
    """One policy of one run; its weights lie under `work_dir`."""

    run_hash: RunHash
    policy: str
    model: str
    """Folder of the base model (config, tokenizer, safetensors); version 0."""
    work_dir: str
    """Holds `checkpoints/`, `weights/` (the root that engines may load from) and `adapters/`."""
    seed: int
