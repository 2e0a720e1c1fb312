"""Cases of AReaL: clipped, decoupled and soft losses, normalisation of returns (areal.utils)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from areal.api.cli_args import NormConfig, RejectionSamplingConfig  # type: ignore[import-not-found]
from areal.utils.data import Normalization  # type: ignore[import-not-found]
from areal.utils.functional import (  # type: ignore[import-not-found]
    ppo_actor_loss_fn,
    reward_overlong_penalty,
    sapo_loss_fn,
)
from torch import Tensor

from .batches import Batch, digits, gradient

Case = dict[str, Any]


def _loss(name: str, batches: Mapping[str, Batch], batch_name: str, arguments: Case, **axes: Any) -> Case:
    """One case; pi_prox is pi_old and pi_behave is mu. Without rejection sampling mu does not enter."""
    batch = batches[batch_name]
    is_soft = "tau_pos" in arguments
    told = {key: value for key, value in arguments.items() if key != "rejection"}
    if "rejection" in arguments:
        told["rejection_sampling"] = RejectionSamplingConfig(**arguments["rejection"])

    def loss_of(logprobs_RT: Tensor) -> Tensor:
        mask, old, advantages = batch.mask_RT.bool(), batch.old_RT, batch.advantages_RT
        if is_soft:
            loss: Tensor = sapo_loss_fn(logprobs_RT, old, advantages, loss_mask=mask, **told)[0]
        else:
            loss = ppo_actor_loss_fn(logprobs_RT, old, batch.sampler_RT, advantages, loss_mask=mask, **told)[0]
        return loss

    return {
        "name": f"areal_{name}",
        "call": f"areal.utils.functional.{'sapo' if is_soft else 'ppo_actor'}_loss_fn({arguments})",
        "axes": {"anchor": "none", "level": "token", "aggregation": "token_mean", **axes},
        "batch": batch_name,
        "compare": ["loss", "gradient"],
        "dtype": "float32" if "rejection" in arguments else "float64",
        **gradient(batch, loss_of),
    }


def _losses(batches: Mapping[str, Batch]) -> list[Case]:
    bounds: Case = {"eps_clip": 0.2, "eps_clip_higher": 0.28}
    clip: Case = {"surrogate": "clip", "low": 0.2, "high": 0.28}
    free: Case = {"level": "token", "action": "mask", "metric": "ratio", "upper": 1e9}
    both: Case = {"level": "token", "metric": "ratio", "upper": 1.3, "lower": 0.7}
    in_both: Case = {"correction_low": 0.7, "correction_high": 1.3}
    decoupled: Case = clip | {"anchor": "decoupled"}
    return [
        _loss("clip", batches, "far", bounds, **clip),
        _loss("clip_dual", batches, "tokens", bounds | {"c_clip": 1.5}, **clip, dual=1.5),
        _loss("gspo", batches, "far", bounds | {"importance_sampling_level": "sequence"}, **(clip | {"level": "row"})),
        _loss("decoupled", batches, "far", bounds | {"rejection": free}, **decoupled, cap=None),
        _loss(
            "decoupled_capped",
            batches,
            "far",
            bounds | {"c_clip": 3.0, "rejection": free | {"action": "clamp", "upper": 1.5}},
            **decoupled,
            dual=3.0,
            cap=1.5,
        ),
        _loss(
            "decoupled_dropped",
            batches,
            "far",
            bounds | {"rejection": free | {"upper": 1.5}},
            **clip,
            correction="icepop",
            correction_low=0.0,
            correction_high=1.5,
        ),
        _loss("icepop", batches, "far", bounds | {"rejection": both}, **clip, correction="icepop", **in_both),
        _loss(
            "sapo", batches, "tokens", {"tau_pos": 1.0, "tau_neg": 1.05}, surrogate="sapo", tau_pos=1.0, tau_neg=1.05
        ),
    ]


def _advantages(batches: Mapping[str, Batch]) -> list[Case]:
    batch = batches["far"]
    size = batch.group_R.count(0)
    made: list[Case] = []
    levels: list[tuple[str, Case, tuple[str, str | None, bool]]] = [
        ("group_group", {"baseline": "mean", "scale": "std"}, ("group", "group", False)),
        ("group_batch", {"baseline": "mean", "scale": "batch_std_of_advantages"}, ("group", "batch", False)),
        ("leave_one_out", {"baseline": "leave_one_out", "scale": "none"}, ("group", None, True)),
    ]
    for name, axes, settings in levels:
        mean, std, leaves_out = settings
        config = NormConfig(mean_level=mean, std_level=std, group_size=size, mean_leave1out=leaves_out, eps=1e-12)
        made.append(
            {
                "name": f"areal_{name}",
                "call": f"areal.utils.data.Normalization({mean=}, {std=}, mean_leave1out={leaves_out}, unbiased)",
                "axes": {**axes, "ddof": 1},
                "batch": "far",
                "dtype": "float32",
                "advantages_R": digits(Normalization(config)(batch.rewards_R)),
            }
        )
    config = NormConfig(mean_level="batch", std_level="batch", group_size=size, eps=1e-12, std_unbiased=False)
    returns_RT = batch.rewards_R[:, None].expand_as(batch.mask_RT)
    made.append(
        {
            "name": "areal_whiten_tokens",
            "call": "areal.utils.data.Normalization(mean='batch', std='batch', biased) over the mask",
            "axes": {"baseline": "none", "scale": "whiten", "ddof": 0},
            "batch": "far",
            "dtype": "float32",
            "advantages_N": batch.flat(Normalization(config)(returns_RT, batch.mask_RT)),
        }
    )
    return made


def _penalties() -> list[Case]:
    """DAPO's penalty of rollouts of 0 to 20 tokens that may have 20, the last 8 of which cost up to 1."""
    lengths = list(range(0, 21, 2))
    data = {
        "rewards": torch.zeros(len(lengths)),
        "input_ids": torch.zeros(len(lengths), 20),
        "loss_mask": torch.tensor([[float(t < n) for t in range(20)] for n in lengths]),
    }
    found = reward_overlong_penalty(data, overlong_tokens=8, overlong_penalty_factor=1.0, max_response_length=20)
    return [
        {
            "name": "areal_overlong",
            "call": "areal.utils.functional.reward_overlong_penalty",
            "axes": {"selection": "overlong", "length": 20, "buffer": 8, "penalty": 1.0},
            "batch": "far",
            "tokens_R": lengths,
            "penalties_R": digits(found["rewards"]),
        }
    ]


def cases(batches: Mapping[str, Batch]) -> dict[str, list[Case]]:
    """By kind."""
    return {
        "losses": _losses(batches),
        "advantages": _advantages(batches),
        "penalties": _penalties(),
    }
