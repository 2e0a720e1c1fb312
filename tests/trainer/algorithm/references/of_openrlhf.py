"""Cases of OpenRLHF, whose authors wrote REINFORCE++: PolicyLoss, SFTLoss, advantages."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
from openrlhf.models.loss import PolicyLoss, SFTLoss  # type: ignore[import-not-found]
from openrlhf.models.utils import compute_approx_kl  # type: ignore[import-not-found]
from openrlhf.trainer.ppo_utils import experience_maker  # type: ignore[import-not-found]
from torch import Tensor

from .batches import Batch, digits, gradient

Case = dict[str, Any]


def _loss(name: str, batches: Mapping[str, Batch], batch_name: str, arguments: Case, **axes: Any) -> Case:
    batch = batches[batch_name]

    def loss_of(logprobs_RT: Tensor) -> Tensor:
        mask, advantages = batch.mask_RT, batch.advantages_RT
        if name == "sft":
            loss: Tensor = SFTLoss()(logprobs_RT, mask)
        else:
            loss = PolicyLoss(**arguments)(logprobs_RT, batch.old_RT, advantages, mask, batch.sampler_RT)[0]
        return loss

    return {
        "name": f"openrlhf_{name}",
        "call": f"openrlhf.models.loss.{'SFT' if name == 'sft' else 'Policy'}Loss({arguments})",
        "axes": {"anchor": "none", "level": "token", **axes},
        "batch": batch_name,
        "compare": ["loss", "gradient"],
        **gradient(batch, loss_of),
    }


def _losses(batches: Mapping[str, Batch]) -> list[Case]:
    clip: Case = {"surrogate": "clip", "low": 0.2, "high": 0.2}
    mean: Case = {"aggregation": "token_mean"}
    rows: Case = {"aggregation": "rollout_mean"}
    return [
        _loss("clip", batches, "far", {}, **clip, **mean),
        _loss("clip_dual", batches, "tokens", {"dual_clip": 1.5}, **clip, dual=1.5, **mean),
        _loss("clip_rollout_mean", batches, "far", {"token_level_loss": False}, **clip, **rows),
        _loss(
            "gspo",
            batches,
            "near",
            {"policy_loss_type": "gspo", "clip_eps_low": 3e-4, "clip_eps_high": 4e-4},
            **({"level": "row", "surrogate": "clip", "low": 3e-4, "high": 4e-4} | rows),
        ),
        _loss(
            "icepop",
            batches,
            "far",
            {"is_correction_mode": "mask", "is_correction_level": "token", "is_correction_threshold": [0.7, 1.4]},
            **(clip | mean | {"correction": "icepop", "correction_low": 0.7, "correction_high": 1.4}),
        ),
        _loss(
            "tis_both",
            batches,
            "far",
            {"is_correction_mode": "clip", "is_correction_level": "token", "is_correction_threshold": [0.0, 1.4]},
            **clip,
            **mean,
            correction="tis_token",
            cap=1.4,
        ),
        _loss("sft", batches, "tokens", {}, **mean, surrogate="nll", advantages=1.0),
    ]


def _maker() -> Any:
    """The class, whatever its release calls it."""
    return next(value for value in vars(experience_maker).values() if hasattr(value, "get_cumulative_returns"))


def _estimated(batch: Batch, estimator: str) -> Tensor:
    """`compute_advantages_and_returns` on one experience that holds the batch."""
    kind = _maker()
    arguments = SimpleNamespace(
        rollout=SimpleNamespace(n_samples_per_prompt=batch.group_R.count(0)),
        reward=SimpleNamespace(clip_range=None),
        algo=SimpleNamespace(advantage=SimpleNamespace(estimator=estimator, gamma=1.0, lambd=1.0, no_std_norm=False)),
    )
    maker = SimpleNamespace(
        strategy=SimpleNamespace(args=arguments),
        kl_ctl=SimpleNamespace(value=0.0),
        advantage_estimator=estimator,
        get_cumulative_returns=lambda *told: kind.get_cumulative_returns(None, *told),
    )
    experience = SimpleNamespace(
        index=list(range(len(batch.group_R))),
        rewards=batch.rewards_R.clone(),
        kl=compute_approx_kl(batch.old_RT, batch.reference_RT) * batch.mask_RT,
        action_mask=batch.mask_RT,
        values=None,
        info={},
    )
    kind.compute_advantages_and_returns(maker, [experience])
    found: Tensor = experience.advantages
    return found


def _advantages(batches: Mapping[str, Batch]) -> list[Case]:
    batch = batches["far"]
    made = []
    for estimator, axes in [
        ("reinforce", {"baseline": "none", "scale": "whiten", "ddof": 0}),
        ("reinforce_baseline", {"baseline": "mean", "scale": "whiten", "ddof": 0}),
        ("rloo", {"baseline": "leave_one_out", "scale": "none"}),
        ("dr_grpo", {"baseline": "mean", "scale": "none"}),
        ("group_norm", {"baseline": "mean", "scale": "std", "ddof": 1, "epsilon": 1e-9}),
        ("flash_reinforce", {"baseline": "mean", "over": "batch", "scale": "none"}),
    ]:
        made.append(
            {
                "name": f"openrlhf_{estimator}",
                "call": f"openrlhf...experience_maker.compute_advantages_and_returns({estimator=}, kl_beta=0.0)",
                "axes": axes,
                "batch": "far",
                "dtype": "float32",
                "advantages_N": batch.flat(_estimated(batch, estimator)),
            }
        )
    return made


def _gae(batches: Mapping[str, Batch]) -> list[Case]:
    batch, kind = batches["far"], _maker()
    rewards_RT = torch.zeros_like(batch.mask_RT)
    rewards_RT[:, -1] = batch.rewards_R
    every_RT = torch.ones_like(batch.mask_RT)
    found = kind.get_advantages_and_returns(None, batch.values_RT, rewards_RT, every_RT, 0.99, 0.9)[0]
    return [
        {
            "name": "openrlhf_gae",
            "call": "openrlhf...get_advantages_and_returns(gamma=0.99, lambd=0.9), each position a step",
            "axes": {"gamma": 0.99, "lam": 0.9},
            "batch": "far",
            "inputs": {"values_RK": [digits(row) for row in batch.values_RT], "rewards_R": digits(batch.rewards_R)},
            "advantages_RK": [digits(row) for row in found],
        }
    ]


def cases(batches: Mapping[str, Batch]) -> dict[str, list[Case]]:
    """By kind."""
    return {"losses": _losses(batches), "advantages": _advantages(batches), "gae": _gae(batches)}
