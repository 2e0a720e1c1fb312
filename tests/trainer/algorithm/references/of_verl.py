"""Cases of verl: losses, advantages, and the critic's loss (verl.trainer.ppo)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from verl.trainer.ppo import core_algos  # type: ignore[import-not-found]
from verl.trainer.ppo.rollout_corr_helper import (  # type: ignore[import-not-found]
    compute_rollout_correction_weights,
    compute_rollout_rejection_mask,
)
from verl.workers.config.actor import ActorConfig  # type: ignore[import-not-found]

from .batches import Batch, digits, gradient

Case = dict[str, Any]

LENGTH = 32
"""L of `constant`."""
_AGGREGATIONS = {
    "token_mean": "token-mean",
    "rollout_mean": "seq-mean-token-mean",
    "row_sum": "seq-mean-token-sum",
    "constant": "seq-mean-token-sum-norm",
}
_CORRECTIONS: Mapping[str, tuple[Case, Case]] = {
    "tis_token": ({"rollout_is": "token", "rollout_is_threshold": 2.0}, {"cap": 2.0}),
    "tis_row_product": ({"rollout_is": "sequence", "rollout_is_threshold": 2.0}, {"cap": 2.0}),
    "icepop": (
        {"rollout_is": "token", "rollout_is_threshold": "0.5_5.0"},
        {"correction_low": 0.5, "correction_high": 5.0},
    ),
}
# One number C is [1/C, C] there; their ratio is mu / pi_old, so other bounds would be the reciprocals of ours.
_REJECTIONS: Mapping[str, tuple[Case, Case]] = {
    "reject_row": (
        {"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "1.1"},
        {"correction_low": 1 / 1.1, "correction_high": 1.1},
    ),
}


def _config(batch: Batch, axes: Case) -> Any:
    """verl's settings of a point on the axes; the denominator is told, so that rejection does not shrink it."""
    low, high, dual = axes.get("low"), axes.get("high"), axes.get("dual")
    config = ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        clip_ratio=0.2,
        clip_ratio_low=1.0 if low is None else low,
        clip_ratio_high=high if high is not None else 1e9,
        clip_ratio_c=20.0 if axes.get("surrogate") == "dppo_tv" else dual or 1e9,
        tau_pos=axes.get("tau_pos", 1.0),
        tau_neg=axes.get("tau_neg", 1.05),
    )
    told: Case = {"batch_num_tokens": int(batch.mask_RT.sum()), "global_batch_size": len(batch.rewards_R), "dp_size": 1}
    if axes["aggregation"] == "constant":
        told["loss_scale_factor"] = LENGTH
    config.global_batch_info.update(told)
    return config


def _corrections(batch: Batch, axes: Case) -> tuple[Tensor | None, Tensor]:
    """Weights or None, and what is kept of the mask."""
    name = str(axes.get("correction"))
    log_ratio = batch.old_RT - batch.sampler_RT
    if name in _CORRECTIONS:
        return compute_rollout_correction_weights(log_ratio, batch.mask_RT, **_CORRECTIONS[name][0])[0], batch.mask_RT
    if name in _REJECTIONS:
        return None, compute_rollout_rejection_mask(log_ratio, batch.mask_RT, **_REJECTIONS[name][0])[0]
    return None, batch.mask_RT


def _loss(name: str, function: str, batches: Mapping[str, Batch], batch_name: str, **axes: Any) -> Case:
    """One case; `function` is the end of verl's name."""
    batch = batches[batch_name]
    axes = {"anchor": "none", "level": "token", **axes}
    for table in (_CORRECTIONS, _REJECTIONS):
        axes |= table.get(axes.get("correction", ""), ({}, {}))[1]
    config = _config(batch, axes)
    weights, mask = _corrections(batch, axes)
    mode = _AGGREGATIONS[axes["aggregation"]]
    first = "rollout_log_prob" if function == "reinforce" else "old_log_prob"
    anchor = batch.sampler_RT if axes["anchor"] == "bypass" else batch.old_RT

    def loss_of(logprobs_RT: Tensor) -> Tensor:
        loss: Tensor = getattr(core_algos, f"compute_policy_loss_{function}")(
            **{first: anchor},
            log_prob=logprobs_RT,
            advantages=batch.advantages_RT,
            response_mask=mask,
            loss_agg_mode=mode,
            config=config,
            rollout_is_weights=weights,
        )[0]
        if "kl" in axes:
            kl = core_algos.kl_penalty(logprobs_RT, batch.reference_RT, axes["kl"])
            loss = loss + axes["beta"] * core_algos.agg_loss(kl, batch.mask_RT, mode, **config.global_batch_info)
        if "entropy" in axes:
            entropy = core_algos.agg_loss(batch.entropies_RT, batch.mask_RT, mode, **config.global_batch_info)
            loss = loss - axes["entropy"] * entropy
        return loss

    # REINFORCE, CISPO and DPPO of verl are written with log pi: the gradient is the definition.
    is_by_gradient = function in ("reinforce", "cispo") or function.startswith("dppo")
    return {
        "name": f"verl_{name}",
        "call": f"verl.trainer.ppo.core_algos.compute_policy_loss_{function}",
        "axes": axes | ({"length": LENGTH} if axes["aggregation"] == "constant" else {}),
        "batch": batch_name,
        "compare": ["gradient"] if is_by_gradient else ["loss", "gradient"],
        **gradient(batch, loss_of),
    }


def _clips(batches: Mapping[str, Batch]) -> list[Case]:
    clip: Case = {"surrogate": "clip", "low": 0.2, "high": 0.2}
    higher: Case = {"surrogate": "clip", "low": 0.2, "high": 0.28}
    mean: Case = {"aggregation": "token_mean"}
    rows: Case = {"aggregation": "rollout_mean"}
    return [
        _loss("clip", "vanilla", batches, "far", **clip, **mean),
        _loss("clip_higher_dual", "vanilla", batches, "far", **higher, dual=3.0, **mean),
        _loss("clip_higher_dual_by_token", "vanilla", batches, "tokens", **higher, dual=1.5, **mean),
        _loss("clip_rollout_mean", "vanilla", batches, "far", **clip, **rows),
        _loss("clip_row_sum", "vanilla", batches, "tokens", **clip, aggregation="row_sum"),
        _loss("clip_constant", "vanilla", batches, "far", **clip, aggregation="constant"),
        _loss("clip_sampler", "vanilla", batches, "far", **(higher | {"anchor": "bypass"}), dual=3.0, **mean),
        _loss("grpo_k3", "vanilla", batches, "tokens", **clip, **rows, kl="k3", kl_to="reference", beta=0.04),
        _loss("clip_k2", "vanilla", batches, "tokens", **clip, **mean, kl="k2", kl_to="reference", beta=0.01),
        _loss("clip_entropy", "vanilla", batches, "tokens", **clip, **mean, entropy=0.01),
        _loss("tis_token", "vanilla", batches, "far", **clip, **mean, correction="tis_token"),
        _loss("tis_row_product", "vanilla", batches, "far", **clip, **mean, correction="tis_row_product"),
        _loss("icepop", "vanilla", batches, "far", **clip, **rows, correction="icepop"),
        _loss("reject_row", "vanilla", batches, "far", **clip, **mean, correction="reject_row"),
    ]


def _others(batches: Mapping[str, Batch]) -> list[Case]:
    mean: Case = {"aggregation": "token_mean"}
    rows: Case = {"aggregation": "rollout_mean"}
    gspo: Case = {"level": "row", "surrogate": "clip"}
    tv: Case = {"surrogate": "dppo_tv", "low": 0.2, "high": 0.2}
    return [
        _loss("gspo", "gspo", batches, "near", **gspo, low=3e-4, high=4e-4, **rows),
        _loss("gspo_far", "gspo", batches, "far", **gspo, low=0.2, high=0.2, **mean),
        _loss("sapo", "sapo", batches, "far", surrogate="sapo", tau_pos=1.0, tau_neg=1.05, **rows),
        _loss("sapo_by_token", "sapo", batches, "tokens", surrogate="sapo", tau_pos=0.7, tau_neg=2.0, **rows),
        _loss("cispo", "cispo", batches, "far", surrogate="cispo", low=None, high=0.5, **mean),
        _loss("cispo_both", "cispo", batches, "tokens", surrogate="cispo", low=0.2, high=0.28, **mean),
        _loss("dppo_tv", "dppo_tv", batches, "far", **tv, **mean),
        _loss("reinforce", "reinforce", batches, "tokens", surrogate="nll", **mean),
        _loss("reinforce_row_sum", "reinforce", batches, "far", surrogate="nll", aggregation="row_sum"),
    ]


def _token_rewards(batch: Batch) -> Tensor:
    """The reward at a rollout's last trained token."""
    rewards_RT = torch.zeros_like(batch.mask_RT)
    for row, mask in enumerate(batch.mask_RT):
        rewards_RT[row, int(mask.nonzero()[-1])] = batch.rewards_R[row]
    return rewards_RT


def _estimators(batch: Batch) -> list[tuple[str, Case, str, Case]]:
    """Name, axes, the middle of verl's name, and what it takes besides the rewards."""
    mean: Case = {"baseline": "mean"}
    group: Case = {"index": np.array(batch.group_R)}
    # The group without spread divides 0 by epsilon.
    small: Case = {"epsilon": 1e-12}
    return [
        ("grpo", mean | {"scale": "std"}, "grpo", group | small),
        ("dr_grpo", mean | {"scale": "none"}, "grpo", group | {"norm_adv_by_std_in_grpo": False}),
        ("rloo", {"baseline": "leave_one_out", "scale": "none"}, "rloo", group),
        ("opo", {"baseline": "length", "scale": "none"}, "opo", group),
    ]


def _advantages(batches: Mapping[str, Batch]) -> list[Case]:
    batch = batches["far"]
    made = []
    for name, axes, function, arguments in _estimators(batch):
        call = f"compute_{function}_outcome_advantage"
        found_RT = getattr(core_algos, call)(
            token_level_rewards=_token_rewards(batch), response_mask=batch.mask_RT, **arguments
        )[0]
        made.append(
            {
                "name": f"verl_{name}",
                "call": f"verl.trainer.ppo.core_algos.{call}",
                "axes": axes,
                "batch": "far",
                "advantages_N": batch.flat(found_RT),
            }
        )
    return made


def _gae(batches: Mapping[str, Batch]) -> list[Case]:
    batch = batches["far"]
    rewards_RT = _token_rewards(batch)
    _, returns_RT = core_algos.compute_gae_advantage_return(rewards_RT, batch.values_RT, batch.mask_RT, 0.99, 0.95)
    return [
        {
            "name": "verl_gae_token",
            "call": "verl.trainer.ppo.core_algos.compute_gae_advantage_return",
            "axes": {"gamma": 0.99, "lam": 0.95},
            "batch": "far",
            "returns_N": batch.flat(returns_RT),
        }
    ]


def _critic(batches: Mapping[str, Batch]) -> list[Case]:
    batch = batches["far"]
    predicted_RT = batch.logprobs_RT.clone().requires_grad_(True)
    loss = core_algos.compute_value_loss(predicted_RT, batch.entropies_RT, batch.values_RT, batch.mask_RT, 0.5)[0]
    loss.backward()
    return [
        {
            "name": "verl_value_loss",
            "call": "verl.trainer.ppo.core_algos.compute_value_loss(cliprange_value=0.5)",
            "axes": {"clip_value": 0.5, "aggregation": "token_mean"},
            "batch": "far",
            "note": "predicted: logprobs_N; targets: entropies_N; values before the update: values_N",
            "loss": digits([float(loss)])[0],
            "gradient_N": batch.flat(predicted_RT.grad),  # type: ignore[arg-type]
        }
    ]


def cases(batches: Mapping[str, Batch]) -> dict[str, list[Case]]:
    """By kind."""
    return {
        "losses": [*_clips(batches), *_others(batches)],
        "advantages": _advantages(batches),
        "gae": _gae(batches),
        "value_losses": _critic(batches),
    }
