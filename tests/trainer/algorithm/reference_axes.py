"""Points on the axes, spelt as the references spell them: drawn at random, and as recipes."""

from __future__ import annotations

import random

from tests.trainer.algorithm.reading import Case
from tracegrad.trainer.algorithm.recipe import Recipe

NAMES = {
    "nll": "reinforce",
    "dppo_tv": "dppo",
    "tis_token": "tis",
    "tis_row_product": "tis_row",
    "k3*rho": "k3+",
    "length": "length_weighted",
    "batch_std_of_advantages": "batch_std",
}
"""What is called otherwise here."""


def recipe_of(axes: Case) -> Recipe:
    """The recipe at a point that is spelt as in the references."""
    plain = (
        "level",
        "surrogate",
        "low",
        "high",
        "dual",
        "aggregation",
        "length",
        "correction",
        "kl",
        "kl_to",
        "beta",
        "entropy",
    )
    told: Case = {name: NAMES.get(str(axes[name]), axes[name]) for name in plain if axes.get(name) is not None}
    told["anchor"] = "sampler" if axes["anchor"] == "bypass" else "old"
    if axes["surrogate"] == "sapo":
        told |= {"low": axes["tau_neg"], "high": axes["tau_pos"]}
    if axes["surrogate"] == "cispo" and axes["low"] is None:
        told["low"] = 1.0
    if axes["aggregation"] == "row_sum":
        told |= {"aggregation": "constant", "length": 1}
    if axes["anchor"] == "decoupled":
        told |= {"correction": "tis", "correction_high": axes["cap"] or 1e9}
    elif "correction" in axes:
        highs = (axes.get(name) for name in ("cap", "delta", "correction_high"))
        told |= {"correction_low": axes.get("correction_low", 0.0), "correction_high": next(filter(None, highs))}
    return Recipe(**told)


def drawn_axes(rng: random.Random) -> Case:
    """A point on every axis."""
    axes: Case = {
        "anchor": rng.choice(["none", "bypass", "decoupled", "self"]),
        "surrogate": rng.choice(["nll", "clip", "clip", "cispo", "sapo", "dppo_tv"]),
        "low": rng.uniform(0.05, 0.4),
        "high": rng.uniform(0.05, 0.4),
        "dual": rng.choice([None, rng.uniform(1.05, 2)]),
        "tau_pos": rng.uniform(0.5, 2),
        "tau_neg": rng.uniform(0.5, 2),
        "aggregation": rng.choice(["token_mean", "rollout_mean", "group_mean", "constant", "row_sum"]),
        "length": rng.randint(1, 40),
    }
    axes["level"] = "token" if axes["surrogate"] == "dppo_tv" else rng.choice(["token", "turn", "row", "rollout"])
    names = {"none": ["tis_token", "tis_row_product", "icepop", "reject_row"], "bypass": ["reject_row"]}
    name = rng.choice([None, *names.get(axes["anchor"], [])])
    if name is not None:
        axes |= {"correction": name, "correction_low": rng.uniform(0.5, 0.9), "correction_high": rng.uniform(1.1, 2)}
    if axes["anchor"] == "decoupled" or str(name).startswith("tis"):
        axes["cap"] = rng.uniform(1, 2)
    if rng.random() < 0.5:
        axes |= {"kl": rng.choice(["k2", "k3", "k3*rho"]), "kl_to": rng.choice(["reference", "sampler"]), "beta": 0.1}
    if rng.random() < 0.3:
        axes["entropy"] = 0.01
    return axes
