"""A recipe: a name on each axis, and the numbers that belong to it.

    A = (R - b) / s                                                         baseline.py, scale.py
    L = sum over trained tokens t of  c_t * ( - k_t * f(rho_t, A_t) + beta * kl_t - entropy * H_t )
        c aggregation.py   k correction.py   f surrogate.py   rho level.py   kl regulariser.py

In: names and numbers. Out: a frozen record, which `form.py` puts to work. Invariant: bounds stand in the types and the
checks below, so that a recipe that exists can be computed; no torch, for the command line reads it. An axis may be
given a function instead of a name, of the form that its table tells: the way of a user's file. Failure:
ConfigurationError that begins with the key.
"""

from __future__ import annotations

import functools
import operator
import typing
from collections.abc import Callable, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal

from msgspec import Meta

from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.section import Count, Section

Function = Callable[..., Any]
Need = Literal["old", "reference", "values", "entropy", "unit_means", "all_rows"]
"""`old`: log pi of all rows, before the advantages and the first update; `reference`: a second copy of the start
model, one more forward pass a micro-batch; `values`: a critic, asked before the advantages, which learns along;
`entropy`: of each trained token; `unit_means`: a pass of all rows before an update; `all_rows`: the gradient of rows
without advantage too."""
Rows = Literal["segments", "transitions", "concatenated"]
Share = Annotated[float, Meta(gt=0, le=1)]
Positive = Annotated[float, Meta(ge=0)]

_FUNCTION = "a function"
_ALIKE = "where all are worth 1 none is worth more than another, and nothing is learnt"
_TOGETHER: Sequence[tuple[str, Sequence[str], str, Sequence[str], str]] = (
    ("outcome", ["one"], "baseline", ["none", "running_mean", _FUNCTION], _ALIKE),
    ("outcome", ["one"], "scale", ["none", _FUNCTION], _ALIKE),
    ("baseline", ["critic"], "scale", ["none", "whiten"], "it compares with no peers"),
    ("surrogate", ["dppo"], "level", ["token"], "its bounds are of a token's probability"),
    ("correction", ["tis", "tis_row", "icepop"], "anchor", ["old"], "the sampler's ratio holds pi_old / mu already"),
)
"""Where an axis has one of these values another key is to have one of those, and why."""


class Recipe(Section, frozen=True, kw_only=True):
    """A point on each axis. Example: Recipe(baseline="leave_one_out", aggregation="rollout_mean")."""

    outcome: Literal["return", "passed", "one"] = "return"
    """What a turn is worth: its return; 1 where that is at least `bound`, else 0; or 1 whatever it is."""
    bound: float = 1.0
    """Of `passed`."""
    baseline: Literal["none", "mean", "leave_one_out", "length_weighted", "running_mean", "critic"] | Function = "mean"
    """What a return is compared with: nothing; the mean of its peers, itself included, without it, or weighted by their
    trained tokens; the mean of earlier batches; or what a critic, trained along, expects (both kept in the
    checkpoint). A critic needs no peers."""
    over: Literal["peers", "group", "batch", "nearest"] = "peers"
    """Whose returns those are: its group's of equal `peers` (agent and turn), all of its group, or the batch's of equal
    `peers`; or `nearest` for rollouts without groups: the batch's of equal `peers`, where fewer than 4 rollouts have
    such a turn those of its agent, where that has fewer too all. `running_mean` goes by `peers`."""
    final: Positive = 0.0
    """What the advantage of the rollout's final reward, compared with those of its group by the same baseline and
    scale, adds to each of its turns: lambda of MT-GRPO, 1 / omega of GiGPO. 0: nothing; a return to go holds the final
    reward already."""
    decay: Share = 0.9
    """Of `running_mean`: what the earlier batches weigh."""
    gae: Literal["turn", "token"] = "turn"
    """`critic`: the steps whose values and rewards make an advantage (GAE): a turn's tokens have one, or each its
    own."""
    gamma: Share = 1.0
    """`critic`: discount from one step to the next."""
    lam: Annotated[float, Meta(ge=0, le=1)] = 1.0
    """`critic`: lambda of GAE. 1: the return minus the value; less: later values in place of what came."""
    value_clip: Annotated[float, Meta(gt=0)] | None = None
    """`critic`: how far a value may move in a batch's updates before its loss holds it back (PPO)."""
    scale: Literal["none", "std", "batch_std", "whiten"] | Function = "none"
    """What advantages are divided by: nothing; the std (ddof 1) of the returns compared; that of the batch's
    advantages; or `whiten`: over the batch's trained tokens the mean becomes 0 and the std (ddof 0) 1."""
    anchor: Literal["sampler", "old"] = "sampler"
    """What pi is divided by in the ratio: the sampler's probability (bypass), or pi_old, the policy's own before the
    batch's first update (with `tis` the decoupled objective)."""
    level: Literal["token", "turn", "row", "rollout"] = "token"
    """Whose ratio it is: each token's, or the geometric mean over the trained tokens of its turn, row or rollout."""
    surrogate: Literal["reinforce", "clip", "cispo", "sapo", "dppo"] | Function = "clip"
    """What is maximised for each token."""
    low: Positive = 0.2
    """`clip`, `cispo`: the ratio may fall to 1 - low. `sapo`: tau where A <= 0. `dppo`: the probability may fall by
    it."""
    high: Positive = 0.2
    """`clip`, `cispo`: the ratio may rise to 1 + high. `sapo`: tau where A > 0. `dppo`: the probability may rise by
    it."""
    dual: Annotated[float, Meta(gt=1)] | None = None
    """`clip`: greatest weight of a token with a negative advantage (dual clip, arXiv:1912.09729)."""
    correction: Literal["none", "tis", "tis_row", "icepop", "reject_row", "opsm"] | Function = "none"
    """What makes up for a sampler that is not pi_old, by k = pi_old / mu: `tis` min(k, correction_high), `tis_row` of
    the row's product; `icepop` k within the two bounds, else 0; `reject_row` drops rows whose mean k is outside; `opsm`
    drops rows with A < 0 whose mean log mu / pi is above correction_high, pi the present policy."""
    correction_low: Positive = 0.0
    """`icepop`, `reject_row`: the lower bound of k."""
    correction_high: Positive = 2.0
    """The upper one; of `opsm` the greatest mean log ratio."""
    aggregation: Literal["token_mean", "rollout_mean", "group_mean", "constant"] | Function = "token_mean"
    """What one token weighs in the loss: `token_mean` 1/N, `rollout_mean` 1/(R n_r), `group_mean` 1/(G N_g), `constant`
    1/(R L)."""
    length: Count = 1024
    """L of `constant`: the greatest length of a rollout, say; 1 sums over a rollout."""
    beta: Positive = 0.0
    """Weight of the KL; 0: none is computed."""
    kl: Literal["k1", "k2", "k3", "k3+"] = "k3"
    """Its estimator; k1 only in the reward."""
    kl_to: Literal["reference", "moving", "sampler"] = "reference"
    """From what: the model that the run began with; one that follows the policy; or the sampler."""
    reference_every: Count = 512
    """`moving`: steps after which it moves (arXiv:2404.09656; this and the next as in TRL)."""
    reference_share: Share = 0.6
    """`moving`: how far it then goes towards the policy; 1: it becomes the policy."""
    kl_in: Literal["loss", "return", "tokens"] = "loss"
    """Where beta * kl goes: into the loss; or out of the reward, by pi_old: out of a turn's return, before the
    baseline, for all tokens from the turn on, or out of each token's advantage, for all from the token on."""
    entropy: Positive = 0.0
    """Weight of the entropy bonus."""
    selection: Literal["none", "spread", "top_std"] = "none"
    """Groups that train: all; those whose rollouts differ in return; the `share` with the greatest std. The others are
    excluded as `no_spread`, `low_spread` and leave the denominators."""
    share: Share = 0.25
    """Of `top_std`; with `refill` a share of the groups that differ in return."""
    refill: Count = 1
    """A batch ends with its G-th group whose rollouts differ in return, at the latest with the group that is the
    `refill` * G-th of all; others are admitted for those that do not. 1: each group counts towards G."""
    rows: Rows = "segments"
    """How a rollout lies in rows: by segments, each sampled token once behind the prompt that it was sampled after; by
    `transitions`, a row for each call, with the same contexts (arXiv:2508.03680); or `concatenated`, its segments
    behind one another, where later ones see what was no part of their prompts. Level `row` and corrections by row go by
    it."""
    passes: Count = 1
    """Times that a batch is gone through (PPO's epochs, arXiv:1707.06347), all in one step and towards one version."""
    minibatches: Count = 1
    """Updates of a pass: the batch's rollouts are dealt to so many parts, anew for each pass, by the run's seed and the
    step; a rollout stays whole, and the denominators of `aggregation` are its part's."""
    overlong: Annotated[int, Meta(ge=0)] = 0
    """Trained tokens from which on a rollout's returns are less by 1; 0: length costs nothing (arXiv:2503.14476)."""
    overlong_buffer: Count = 1
    """Over so many tokens before, that 1 grows from 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for axis, kind in self.kinds().items():
            _check_kind(axis, getattr(self, axis), kind)
        for axis, values, key, fit, why in _TOGETHER:
            value = getattr(self, key)
            if getattr(self, axis) in values and (_FUNCTION if callable(value) else value) not in fit:
                wanted = f"{' or '.join(fit)} with {axis} = {getattr(self, axis)!r}"
                raise ConfigurationError(f"{key}: expected {wanted}, got {value!r}: {why}")
        if self.final and self.baseline in ("running_mean", "critic"):
            raise ConfigurationError(
                f"final: expected a baseline of the group, got {self.baseline!r}: the final reward is compared in it"
            )
        if self.surrogate in ("clip", "cispo") and self.low > 1:
            raise ConfigurationError(f"low: expected at most 1 with surrogate {self.surrogate!r}, got {self.low:g}")
        if self.surrogate == "sapo" and not (self.low and self.high):
            raise ConfigurationError(f"low, high: expected taus above 0 of 'sapo', got {self.low:g}, {self.high:g}")
        if self.correction in ("icepop", "reject_row") and self.correction_low > self.correction_high:
            raise ConfigurationError(
                f"correction_low: expected at most correction_high = {self.correction_high:g}, got "
                f"{self.correction_low:g}: nothing would be kept"
            )
        if self.beta and (self.kl == "k1") != (self.kl_in != "loss"):
            raise ConfigurationError(
                "kl: expected k1 in the reward (kl_in 'return' or 'tokens') and another one in the loss, where k1 has "
                f"no gradient on average, got {self.kl!r} in {self.kl_in!r}"
            )
        if self.refill > 1 and self.selection == "none":
            raise ConfigurationError(
                f"selection: expected 'spread' or 'top_std' with refill = {self.refill}, got 'none': what is given "
                "back would train all the same"
            )
        if self.overlong and self.overlong_buffer > self.overlong:
            raise ConfigurationError(
                f"overlong_buffer: expected at most overlong = {self.overlong}, got {self.overlong_buffer}"
            )

    @property
    def num_updates(self) -> int:
        """Of a step, at most."""
        return self.passes * self.minibatches

    @property
    def needs(self) -> frozenset[Need]:
        """What a step must compute beside log pi of rows with an advantage."""
        reads_old = self.anchor == "old" or self.correction not in ("none", "opsm")
        found: dict[Need, bool] = {
            "old": (self.beta > 0 and self.kl_in != "loss") or (self.num_updates > 1 and reads_old),
            "reference": self.beta > 0 and self.kl_to != "sampler",
            "values": self.baseline == "critic",
            "entropy": self.entropy > 0,
            "unit_means": self.level == "rollout",
            "all_rows": self.baseline == "critic" or self.entropy > 0 or (self.beta > 0 and self.kl_in == "loss"),
        }
        return frozenset(need for need, is_so in found.items() if is_so)


def _parts(kind: Any) -> tuple[Any, ...]:
    return typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, UnionType) else (kind,)


def without_functions(kind: Any) -> Any:
    """The type of a key that a settings file can hold."""
    return functools.reduce(operator.or_, (part for part in _parts(kind) if part != Function))


def _check_kind(axis: str, value: Any, kind: Any) -> None:
    """A settings file is checked as it is read; a Recipe of a user's file is checked by nothing but this."""
    parts = _parts(kind)
    names = [name for part in parts for name in typing.get_args(part) if isinstance(name, str)]
    is_whole = type(value) is int and float in parts
    if not (type(value) in parts or is_whole or value in names or (callable(value) and Function in parts)):
        words = {Function: _FUNCTION, int: "a whole number", float: "a number", NoneType: "None"}
        wanted = [*map(repr, names), *(word for part, word in words.items() if part in parts)]
        raise ConfigurationError(f"{axis}: expected {' or '.join(wanted)}, got {value!r}")
