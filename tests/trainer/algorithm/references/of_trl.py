"""Cases of TRL: GRPOTrainer's and RLOOTrainer's losses, called unbound on a trainer that only answers what they ask."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from trl.trainer.grpo_trainer import GRPOTrainer  # type: ignore[import-not-found]
from trl.trainer.rloo_trainer import RLOOTrainer  # type: ignore[import-not-found]

from .batches import Batch, gradient

Case = dict[str, Any]

LENGTH = 32
"""L of `constant`."""
_OPSM_DELTA = 0.1


def _same(values: Any, **_: Any) -> Any:
    return values


def _trainer(batch: Batch, logprobs_RT: Tensor, settings: Case) -> SimpleNamespace:
    """What `_compute_loss` reads of itself: one process, one micro-batch, one generation batch."""
    told: Case = {
        "loss_type": "dapo",
        "importance_sampling_level": "token",
        "epsilon_low": 0.2,
        "epsilon_high": 0.2,
        "beta": 0.0,
        "entropy_coef": 0.0,
        "off_policy_mask_threshold": None,
    } | settings
    arguments = SimpleNamespace(
        delta=None,
        steps_per_generation=1,
        sapo_temperature_pos=told.get("tau_pos", 1.0),
        sapo_temperature_neg=told.get("tau_neg", 1.05),
        use_bias_correction_kl=told.get("use_bias_correction_kl", False),
        max_completion_length=LENGTH,
        report_to=[],
    )
    return SimpleNamespace(
        **told,
        args=arguments,
        accelerator=SimpleNamespace(gather=_same, gather_for_metrics=_same, reduce=_same, num_processes=1),
        model=SimpleNamespace(training=True),
        current_gradient_accumulation_steps=1,
        max_completion_length=LENGTH,
        top_entropy_quantile=1.0,
        use_vllm=False,
        vllm_importance_sampling_correction=False,
        aux_loss_enabled=False,
        use_adaptive_entropy=False,
        _entropy_bonus_enabled=told["entropy_coef"] != 0.0,
        _metrics=defaultdict(lambda: defaultdict(list)),
        _get_per_token_logps_and_entropies=lambda *_, **__: (logprobs_RT, batch.entropies_RT, None),
        get_off_policy_mask=GRPOTrainer.get_off_policy_mask,
    )


def _loss(
    name: str, batches: Mapping[str, Batch], batch_name: str, settings: Case, recipe: str | None = None, **axes: Any
) -> Case:
    """One case of GRPOTrainer."""
    batch = batches[batch_name]
    is_by_row = batch_name != "tokens"

    def loss_of(logprobs_RT: Tensor) -> Tensor:
        trainer = _trainer(batch, logprobs_RT, settings)
        trainer.accelerator.sync_gradients = False
        ids = torch.zeros(batch.mask_RT.shape, dtype=torch.long)
        inputs: Case = {
            "prompt_ids": ids[:, :1],
            "prompt_mask": ids[:, :1],
            "completion_ids": ids,
            "completion_mask": batch.mask_RT,
            "advantages": batch.advantages_RT[:, 0] if is_by_row else batch.advantages_RT,
            "old_per_token_logps": None if axes.get("anchor") == "self" else batch.old_RT,
            "ref_per_token_logps": batch.reference_RT,
            "num_items_in_batch": batch.mask_RT.sum(),
        }
        if "sampler" in settings:
            inputs["sampling_per_token_logps"] = batch.sampler_RT
        loss: Tensor = GRPOTrainer._compute_loss(trainer, None, inputs)
        return loss

    return {
        "name": f"trl_{name}",
        "call": f"trl.GRPOTrainer._compute_loss({', '.join(f'{k}={v!r}' for k, v in settings.items())})",
        "recipe": recipe,
        "axes": {"anchor": "none", "level": "token", **axes},
        "batch": batch_name,
        "compare": ["gradient"] if axes["surrogate"] == "cispo" else ["loss", "gradient"],
        **gradient(batch, loss_of),
    }


def _rloo(batches: Mapping[str, Batch]) -> Case:
    """At the first update: pi_old is pi, and the product of ratios is 1."""
    batch = batches["far"]

    def loss_of(logprobs_RT: Tensor) -> Tensor:
        trainer = _trainer(batch, logprobs_RT, {})
        ids = torch.zeros(batch.mask_RT.shape, dtype=torch.long)
        inputs = {
            "prompt_ids": ids[:, :1],
            "prompt_mask": ids[:, :1],
            "completion_ids": ids,
            "completion_mask": batch.mask_RT,
            "advantages": batch.advantages_RT[:, 0],
            "old_logps": (batch.logprobs_RT * batch.mask_RT).sum(1),
        }
        loss: Tensor = RLOOTrainer._compute_loss(trainer, None, inputs)
        return loss

    return {
        "name": "trl_rloo_first_update",
        "call": "trl.RLOOTrainer._compute_loss(epsilon_low=0.2, epsilon_high=0.2), old_logps its own",
        "recipe": "rloo",
        "axes": {"anchor": "self", "level": "token", "surrogate": "reinforce", "aggregation": "row_sum"},
        "batch": "far",
        "compare": ["gradient"],
        **gradient(batch, loss_of),
    }


def cases(batches: Mapping[str, Batch]) -> dict[str, list[Case]]:
    """By kind."""
    clip: Case = {"surrogate": "clip", "low": 0.2, "high": 0.2}
    rows: Case = {"aggregation": "rollout_mean"}
    mean: Case = {"aggregation": "token_mean"}
    constant: Case = {"aggregation": "constant", "length": LENGTH}
    grpo: Case = {"loss_type": "grpo"}
    kl: Case = {"kl_to": "reference", "beta": 0.04}
    opsm: Case = {"correction": "opsm", "delta": _OPSM_DELTA}
    cispo: Case = {"loss_type": "cispo"}
    unbounded: Case = {"surrogate": "cispo", "low": None}
    fixed: Case = {"use_bias_correction_kl": True}
    drop: Case = {"off_policy_mask_threshold": _OPSM_DELTA}
    far = "far"
    losses = [
        _loss("grpo", batches, far, grpo, **clip, **rows),
        _loss("grpo_k3", batches, far, grpo | {"beta": 0.04}, "grpo", **clip, **rows, kl="k3", **kl),
        _loss("grpo_k3_plus", batches, "tokens", grpo | fixed | {"beta": 0.04}, **clip, **rows, kl="k3*rho", **kl),
        _loss("dr_grpo", batches, far, {"loss_type": "dr_grpo"}, "dr_grpo", **clip, **constant),
        _loss("dapo", batches, "tokens", {"epsilon_high": 0.28}, "dapo", **(clip | {"high": 0.28}), **mean),
        _loss("bnpo", batches, far, {"loss_type": "bnpo"}, **clip, **mean),
        _loss("cispo", batches, far, cispo | {"epsilon_high": 5.0}, "cispo", **unbounded, high=4.0, **mean),
        _loss("cispo_tight", batches, "tokens", cispo | {"epsilon_high": 1.3}, **unbounded, high=0.3, **mean),
        _loss("sapo", batches, far, {"loss_type": "sapo"}, "sapo", surrogate="sapo", tau_pos=1.0, tau_neg=1.05, **rows),
        _loss(
            "gspo",
            batches,
            "near",
            grpo | {"importance_sampling_level": "sequence", "epsilon_low": 3e-4, "epsilon_high": 4e-4},
            "gspo",
            **({"level": "row", "surrogate": "clip", "low": 3e-4, "high": 4e-4} | rows),
        ),
        _loss("opsm", batches, far, grpo | drop | {"sampler": "told"}, **clip, **rows, **opsm),
        _loss(
            "opsm_first_update",
            batches,
            far,
            grpo | drop | {"sampler": "told"},
            **(clip | rows | opsm | {"anchor": "self"}),
        ),
        _loss("entropy", batches, "tokens", {"entropy_coef": 0.01}, **clip, **mean, entropy=0.01),
        _rloo(batches),
    ]
    return {"losses": losses}
