"""The recipes that have a name: data only. `tracegrad recipes` and docs/algorithms.md are made of it.

Of all: the ratio is against the sampler's own logprobs (`anchor = "sampler"`) where the source has pi_old, unless it
says otherwise; one update a batch; no epsilon beside a std, since equal returns give 0 anyway.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from .recipe import Recipe

__all__ = ["DEFAULT", "RECIPES", "Known"]

DEFAULT = "rloo_clip"
_GROUP = "A = (R - mean) / std"


class Known(NamedTuple):
    """A recipe and where it comes from."""

    recipe: Recipe
    formula: str
    """What is particular of it: A, f, kl as recipe.py has them."""
    source: str
    differs: str = ""
    """Where ours is not the source's."""


RECIPES: Mapping[str, Known] = {
    DEFAULT: Known(
        Recipe(baseline="leave_one_out", high=0.28, dual=3.0),
        "A = R - mean of the others; f = max(3 A, clipped rho A) where A < 0",
        "RLOO arXiv:2402.14740, DAPO's bounds arXiv:2503.14476, dual clip arXiv:1912.09729",
        "a combination of ours",
    ),
    "rloo": Known(
        Recipe(
            baseline="leave_one_out",
            surrogate="reinforce",
            aggregation="constant",
            length=1,
            beta=0.05,
            kl="k1",
            kl_in="return",
        ),
        "R' = R - beta sum_t k1; A = R' - mean of the others; L = -1/R sum_i A_i sum_t log pi",
        "arXiv:2402.14740; TRL's beta",
    ),
    "loop": Known(
        Recipe(baseline="leave_one_out", passes=2),
        "A = R - mean of the others; f = clipped rho A, in two passes",
        "arXiv:2502.01600",
        "its bounds are not known to us: the clip is PPO's .2",
    ),
    "grpo": Known(
        Recipe(scale="std", aggregation="rollout_mean", beta=0.04),
        f"{_GROUP}; f = clipped rho A; kl = k3",
        "arXiv:2402.03300; the bounds are TRL's and verl's",
    ),
    "dr_grpo": Known(
        Recipe(aggregation="constant"),
        "A = R - mean; f = clipped rho A; c = 1 / (R L)",
        "arXiv:2503.20783",
        "set `length` to the greatest length of a rollout",
    ),
    "dapo": Known(
        Recipe(scale="std", high=0.28, selection="spread", refill=10),
        f"{_GROUP}; f = clipped rho A; a batch of G groups with spread",
        "arXiv:2503.14476; the limit of 10 G groups is verl's example's",
        "at the limit the batch is trained with what it has; overlong punishment by `overlong`",
    ),
    "gspo": Known(
        Recipe(scale="std", level="row", low=3e-4, high=4e-4, aggregation="rollout_mean"),
        f"{_GROUP}; f = clipped s A, s the geometric mean of rho over the row",
        "arXiv:2507.18071",
    ),
    "cispo": Known(
        Recipe(scale="std", surrogate="cispo", low=1.0, high=4.0),
        f"{_GROUP}; f = sg[min(rho, 5)] A log pi",
        "arXiv:2506.13585; the bound is TRL's",
    ),
    "scalerl": Known(
        Recipe(scale="batch_std", surrogate="cispo", low=1.0, high=4.0, aggregation="group_mean", selection="spread"),
        "A = (R - mean) / std of the batch's R - mean; f = sg[min(rho, 5)] A log pi; c = 1 / (G N_g)",
        "arXiv:2510.13786; the bound is TRL's",
        "prompts that are solved are drawn again",
    ),
    "reinforce++": Known(
        Recipe(baseline="none", scale="whiten", beta=0.01, kl="k1", kl_in="tokens"),
        "A_t = whitened(R - beta sum_(s >= t) k1_s); f = clipped rho A",
        "arXiv:2501.03262; beta as OpenRLHF has it",
    ),
    "reinforce++_baseline": Known(
        Recipe(scale="whiten", beta=0.01, kl="k2"),
        "A = whitened(R - mean); f = clipped rho A; kl = k2",
        "arXiv:2501.03262; beta as OpenRLHF has it",
    ),
    "opo": Known(
        Recipe(baseline="length_weighted", surrogate="reinforce"),
        "A = R - sum n R / sum n; f = A log pi",
        "arXiv:2505.23585",
        "exact on policy only: run it with --sync",
    ),
    "mt_grpo": Known(
        Recipe(scale="std", beta=0.04),
        "A = (R_turn - mean) / std over the same turn of the others; f = clipped rho A; kl = k3",
        "arXiv:2505.11821",
        "a turn's own reward and the outcome are one return-to-go here, normalised as one",
    ),
    "starpo_s": Known(
        Recipe(scale="std", high=0.28, entropy=0.001, selection="top_std"),
        f"{_GROUP} in the quarter of groups with the greatest std; f = clipped rho A; entropy bonus",
        "arXiv:2504.20073",
        "its default has a critic: this is its group-relative form",
    ),
    "epo": Known(
        Recipe(scale="std", entropy=0.001),
        f"{_GROUP}; f = clipped rho A; entropy bonus",
        "arXiv:2509.22576",
        "its smoothing term is piecewise constant in the policy, so it has no gradient, and is left out",
    ),
    "sapo": Known(
        Recipe(scale="std", surrogate="sapo", low=1.05, high=1.0, aggregation="rollout_mean"),
        f"{_GROUP}; f = 4 / tau sigmoid(tau (rho - 1)) A, tau 1 for A > 0, else 1.05",
        "arXiv:2511.20347",
    ),
    "dppo": Known(
        Recipe(surrogate="dppo", beta=2e-3, kl="k2", kl_to="sampler"),
        "A = R - mean; f = rho A, 0 where pi - mu went beyond .2 the way of A; kl = k2 to the sampler",
        "arXiv:2602.04879; the loss of prime-rl, whose kl_tau of 1e-3 weighs 2 k2",
    ),
    "areal": Known(
        Recipe(scale="batch_std", anchor="old", correction="icepop", correction_high=5.0),
        "A as scalerl; f = k clipped rho A, rho = pi / pi_old, k = pi_old / mu, 0 above 5",
        "arXiv:2505.24298; decoupled objective arXiv:2110.00641; the bound is its library's former default",
    ),
    "tis": Known(
        Recipe(scale="std", anchor="old", correction="tis"),
        f"{_GROUP}; f = min(pi_old / mu, 2) clipped rho A, rho = pi / pi_old",
        "Yao et al. 2025, 'Your Efficient RL Framework Secretly Brings You Off-Policy RL Training'",
    ),
    "icepop": Known(
        Recipe(
            scale="std",
            anchor="old",
            correction="icepop",
            correction_low=0.5,
            correction_high=5.0,
            aggregation="rollout_mean",
        ),
        f"{_GROUP}; f = k clipped rho A, rho = pi / pi_old, k = pi_old / mu within [.5, 5], else 0",
        "arXiv:2510.18855",
    ),
    "opsm": Known(
        Recipe(scale="std", correction="opsm", correction_high=0.5, aggregation="rollout_mean"),
        f"{_GROUP}; f = clipped rho A, 0 in rows with A < 0 whose mean log mu / pi is above .5",
        "arXiv:2512.02556; the bound is TRL's example",
        "its KL, k3+, is off: set `beta` and `kl`",
    ),
    "raft": Known(
        Recipe(outcome="passed", baseline="none", surrogate="reinforce"),
        "A = 1 where R >= bound, else 0; f = A log pi",
        "arXiv:2304.06767, arXiv:2504.11343",
        "all rollouts that pass, not the best of a group",
    ),
    "sft": Known(
        Recipe(outcome="one", baseline="none", surrogate="reinforce"),
        "A = 1; f = log pi",
        "the log likelihood of what was sampled",
    ),
}
