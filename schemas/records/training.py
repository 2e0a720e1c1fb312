"""`training_steps`: metrics and accounting of one batch, also when no optimiser step was taken; and of the batch that
is read, what was given back. `advantages`: what a step made of the returns of each group that it trained.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Protocol, TypeVar

import msgspec

from ..ids import RunHash
from .codec import Codec

LOGPROB_ERROR_BOUND = 0.1
"""Nats between trainer and sampler at one version, published in float32: beyond it the engine serves other weights."""


class Accounting(msgspec.Struct, frozen=True, kw_only=True):
    """Cumulative over the surviving lineage, in distinct groups: consumed = trained + the sum of excluded."""

    consumed: int = 0
    trained: int = 0
    excluded: dict[str, int] = {}
    """Reason -> groups: `duplicate` is not counted here (the group was consumed before)."""
    duplicates: int = 0
    """Records skipped because their group was consumed before."""


class RatedWindow(msgspec.Struct, frozen=True, kw_only=True):
    """The scored conversations of some consecutive versions."""

    from_version: int
    to_version: int
    num: int
    mean: float
    """Of their final rewards."""
    std: float
    """With ddof 1."""


class RatingDrop(msgspec.Struct, frozen=True, kw_only=True):
    """Raters like the newest versions less than those before, by more than chance: the trainer rolls back to
    `before.to_version`.

    Example: RatingDrop(before=RatedWindow(from_version=12, to_version=27, ...), newest=.., drop_least=.04, look=9).
    """

    before: RatedWindow
    newest: RatedWindow
    drop_least: float
    """The lower end of the interval of `before.mean - newest.mean`, above 0; one-sided, of this look's share of 5 %."""
    look: int
    """How many comparisons the run has made with this one."""

    @property
    def text(self) -> str:
        """In words."""
        newest, before = (
            f"versions {one.from_version} to {one.to_version} are rated {one.mean:.3f} ({one.num} conversations)"
            for one in (self.newest, self.before)
        )
        return (
            f"{newest}, {before}: worse by {self.before.mean - self.newest.mean:.3f}, at least {self.drop_least:.3f}; "
            f"rolls back to version {self.before.to_version}"
        )


class StepResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the optimiser made of a batch: the part of TrainingStep that the step itself tells."""

    is_updated: bool
    """Whether the optimiser stepped."""
    skipped: str = ""
    """Why it did not: `no_advantage`, `no_tokens`, `non_finite`."""
    loss: float
    """Of several updates (`[algorithm] passes`, `minibatches`) the mean."""
    grad_norm: float
    """Before clipping; of several updates the greatest."""
    learning_rate: float
    """Of the last update."""
    seconds: dict[str, float] = {}
    """Phase -> seconds: `wait`, `read`, `forward_backward`, `optimise`, `checkpoint`, `publish`."""
    logprob_error_max: float = 0.0
    """Greatest |log pi - log mu| in nats over those of `num_tokens` that were sampled by the weights which the step
    started from; by none, where no version held them. Never NaN."""
    num_checked_tokens: int = 0
    """How many tokens that was taken over."""
    ratio_mean: float = 1.0
    """Mean of pi / mu over `num_tokens`, before the weights moved; as all below over each of several updates."""
    clip_fraction: float = 0.0
    """Share of `num_tokens` at which a bound of the surrogate holds the gradient back."""
    clip_fraction_positive: float = 0.0
    """The part of `clip_fraction` where the advantage is positive; the rest is where it is negative."""
    num_bounded_tokens: int = 0
    """Tokens with a negative advantage whose weight `[algorithm] dual` bounded."""
    num_rejected_tokens: int = 0
    """Tokens that the correction gave the weight 0."""
    ess: float = 1.0
    """Effective sample size as a share of `num_tokens`: (sum w)^2 / (N sum w^2), w = pi / mu (Kong 1992)."""
    kl_sampler: float = 0.0
    """KL(mu || pi) in nats a token by k3: the mean of w - 1 - log w."""
    kl_reference: float | None = None
    """KL(pi || reference) by k3; None where the recipe has no reference."""


class TrainingStep(StepResult, frozen=True, kw_only=True, tag="training_step"):
    """One batch. Example: TrainingStep(policy="policy", step=3, version=3, batch_hash="9f...", ...)."""

    schema: str = "training_step/1"
    run: RunHash
    policy: str
    step: int
    """Number of the batch, from 1."""
    epoch: int
    version: int
    """The newest version after this batch: the one that it led to or, where it led to none, the one that it started
    from."""
    begin_offset: int
    next_offset: int
    """The batch is the interval [begin_offset, next_offset) of the policy's partition."""
    batch_hash: str
    """`hash_batch` of the records of that interval, duplicates left out, and what became of each."""
    group_ids: tuple[str, ...]
    """Groups of this batch that were trained, in order; none where no step was taken."""
    excluded_ids: dict[str, str] = {}
    """Group id -> reason, of this batch; `skipped` where no step was taken."""
    below_bound: tuple[str, ...] = ()
    """Episodes of trained groups that did not train, for their reward is below the bound of `filter`."""
    accounting: Accounting
    reward: float | None
    """Mean final reward over the scored rollouts of the batch; None when none is scored."""
    reward_parts: dict[str, float] = {}
    """Mean per rollout of each applied rule (AIR included)."""
    num_rollouts: int
    num_unscored: int = 0
    num_tokens: int
    """Trained tokens, the denominator of the token mean."""
    num_turns: int = 0
    tool_success: float | None = None
    """Succeeded / executed tool calls; None when none was executed."""
    staleness_mean: float = 0.0
    """Over trained tokens: how many versions, a step counted once, the newest one when this batch started was ahead."""
    staleness_max: int = 0
    started_at_ms: int = 0
    ended_at_ms: int = 0
    explained_variance: float | None = None
    """1 - var(target - value) / var(target) of what the critic was asked, before it learnt from this batch; None
    without a critic, or where the targets do not vary."""
    reward_std: float | None = None
    """Mean over groups of the std (ddof 1) of their scored rollouts' final rewards; None without two of a group."""
    equal_groups: float | None = None
    """Share of those groups whose rewards are all equal."""
    entropy: float | None = None
    """Of the sampler in nats a token: the mean of -log mu over sampled tokens, which is its expectation; None without
    one."""
    entropy_by_turn: dict[str, float] = {}
    """The same by the turn's number within its rollout, from 0; 15 and later turns together."""
    length_mean: float = 0.0
    """Trained tokens of a rollout, over those that have any."""
    length_max: int = 0
    alarms: tuple[str, ...] = ()
    """Names of what goes wrong, by the run's last steps (`schemas/alarms/`)."""
    num_rows: int = 0
    """Rows that hold `num_tokens`, in the form of `[algorithm] rows`."""
    num_row_tokens: int = 0
    """Tokens of these rows, prompts too: what a forward pass reads."""
    row_ess: dict[str, float] = {}
    """Of a run that trains `offline` on history: effective sample size of each row as a share of its trained tokens,
    before the update, also of groups excluded by it: `mean`, `min`, `p10`, `p50`, `p90`; and `low`, the share of groups
    excluded as `low_ess`."""
    rated_worse: RatingDrop | None = None
    """Why the trainer rolls back after this step; None: it does not."""
    taken_ids: tuple[str, ...] = ()
    """All groups of this batch, trained or excluded, in the order of their records."""
    depends_on: dict[str, str] = {}
    """What else its bits depend on: the keys of `[trainer]` and `[algorithm]` that matter (learning rate, G as
    `groups_per_step`, micro-batch, the recipe's axes), `auto` as it turned out; and `seed`, `threads`, `torch`,
    `cpu_capability`, `accelerator`, `world_size`."""
    num_unpublished: int = 0
    """Updates since `version`, that no version holds (`[publish] every`); 0 where the batch led to one."""
    masked: dict[str, int] = {}
    """Why calls of the batch leave the loss -> how many; of every well-formed group, also excluded ones."""
    members_excluded: dict[str, int] = {}
    """Likewise, why members of these groups gave no rows -> how many."""


class GroupsGivenBack(msgspec.Struct, frozen=True, kw_only=True, tag="groups_given_back"):
    """Groups of the batch that is read which do not count towards its G (`[algorithm] refill`): without this word from
    a trainer that waits, tasks would admit none in their stead. Of the words on one batch the greatest counts, until a
    step of its epoch and number, or beyond, concludes the batch.

    Example: GroupsGivenBack(policy="policy", epoch=1, step=3, consumed=18, group_ids=("3f...", "9c..."), ...).
    """

    schema: str = "groups_given_back/1"
    run: RunHash
    policy: str
    epoch: int
    step: int
    """Of the batch that is read: one more than those concluded."""
    consumed: int
    """Cumulative: the groups of the batches before, and these."""
    group_ids: tuple[str, ...]
    """All given back of this batch so far, in order; `excluded_ids` of its step will name them."""


class CallAdvantage(msgspec.Struct, frozen=True, kw_only=True):
    """What the trainer made of a call's return: what its tokens were pushed by."""

    call_id: str
    mean: float
    """Over its trained tokens, the turn's weight in it; all are equal but with `gae = "token"`, a KL in the reward
    or `whiten`."""
    low: float
    high: float
    """The least and the greatest of a token."""
    num_tokens: int
    """Trained ones; a call without any is not told."""


class GroupAdvantages(msgspec.Struct, frozen=True, kw_only=True, tag="advantages"):
    """The advantages of one group in the step that trained it; written before the step is concluded, so that of a step
    that is done again there are two, of which that of the surviving epoch counts.

    Example: GroupAdvantages(policy="policy", step=3, epoch=1, group_id="3f...", calls=(CallAdvantage(...), ...), ...).
    """

    schema: str = "advantages/1"
    run: RunHash
    policy: str
    step: int
    epoch: int
    group_id: str
    calls: tuple[CallAdvantage, ...]
    """In the order of the group's rows."""


def hash_batch(judged: Iterable[tuple[bytes, str]]) -> str:
    """sha256, hex, over what a batch consists of.

    Args:
        judged: of each record of the interval, in order, the sha256 of its bytes (so that who reads them once keeps no
            bytes), and why its group does not train: a reason of `excluded_ids`, `duplicate`, of one that names
            no group the reason of its dead letter; "" when it does, whatever the step made of it. A duplicate is left
            out: a worker that is killed appends records again, and the batch is the same without.
    """
    digest = hashlib.sha256()
    for record, reason in judged:
        if reason != "duplicate":
            digest.update(record + len(reason).to_bytes(8, "little") + reason.encode())
    return digest.hexdigest()


class _Step(Protocol):
    @property
    def step(self) -> int: ...
    @property
    def epoch(self) -> int: ...


S = TypeVar("S", bound=_Step)


def surviving_steps(steps: Iterable[S]) -> list[S]:
    """One lineage, in order: a record is void if a later epoch wrote this step or an earlier one."""
    best: dict[int, S] = {}
    for step in steps:
        known = best.get(step.step)
        if known is None or step.epoch > known.epoch:
            best[step.step] = step
    chosen: list[S] = []
    for number in sorted(best):
        if not chosen or best[number].epoch >= chosen[-1].epoch:
            chosen.append(best[number])
    return chosen


TrainingRecord = TrainingStep | GroupsGivenBack
TRAINING_STEPS: Codec[TrainingRecord] = Codec(
    TrainingRecord, released=("training_step/1", "groups_given_back/1"), wire="json"
)
ADVANTAGES: Codec[GroupAdvantages] = Codec(GroupAdvantages, released=("advantages/1",), wire="json")
