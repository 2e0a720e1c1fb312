"""One optimiser step: forward and backward by micro-batches, AdamW, and the figures to watch over all trained tokens.

In: the rows of a batch with advantages and token weights. Out: StepResult; the policy's weights have moved, unless
`skipped` says why not (`no_tokens`, `no_advantage`, `non_finite`, `stopped`): then weights and optimiser are as before.
Invariant: equal rows, weights, optimiser state and device give equal results, bit for bit on a CPU.
Do not combine with dropout: the sampler has none.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from msgspec.structs import asdict
from torch import Tensor

from tracegrad.schemas.beat import busy
from tracegrad.schemas.errors import ConfigurationError, DivergedError

from .algorithm.recipe import BASELINES, Recipe, TokenLoss
from .batch.packing import MicroBatch, micro_batches
from .batch.rows import TrainingRow
from .config import TrainerConfig
from .model.policy import Policy

__all__ = ["STOPPED", "Learner", "StepResult"]

STOPPED = "stopped"
"""Of a step that was broken off, as if it had not begun."""

_MOMENTS = ("exp_avg", "exp_avg_sq", "step")
_BETAS = (0.9, 0.95)
"""AdamW's; the second is shorter than torch's .999, for gradients change with the policy."""
_NOT_LEARNT = {"steps", "python", "threads", "keep_versions", "keep_checkpoints", "checkpoint_every"}
"""Keys of `[trainer]` that change no step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What a step did; its fields are named as those of TrainingStep, which takes them all."""

    is_updated: bool
    skipped: str = ""
    loss: float = 0.0
    grad_norm: float = 0.0
    """Before clipping."""
    learning_rate: float = 0.0
    logprob_error_max: float = 0.0
    num_checked_tokens: int = 0
    ratio_mean: float = 1.0
    clip_fraction: float = 0.0
    num_bounded_tokens: int = 0
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class _Watch:
    """Sums over the trained tokens of a batch, before the weights move."""

    num_tokens: int = 0
    ratio_sum: float = 0.0
    num_clipped: int = 0
    num_bounded: int = 0
    num_checked: int = 0
    error_max: float = 0.0

    def add(self, batch: MicroBatch, logprobs_BK: Tensor, term: TokenLoss, version: int) -> None:
        mask_BK = batch.loss_mask_BK
        self.num_tokens += int(mask_BK.sum())
        self.ratio_sum += float((term.ratios_BK * mask_BK).sum(dtype=torch.float64))
        self.num_clipped += int((term.clipped_BK & mask_BK).sum())
        self.num_bounded += int((term.bounded_BK & mask_BK).sum())
        checked_BK = mask_BK & (batch.versions_BK == version)
        num_checked = int(checked_BK.sum())
        if num_checked:
            # Probabilities are compared at the sampler's own version only: any gap is then an error, not learning.
            error = float((logprobs_BK.detach() - batch.sampler_logprobs_BK)[checked_BK].abs().max())
            self.num_checked += num_checked
            self.error_max = max(self.error_max, error) if math.isfinite(error) else 1e9


class Learner:
    """A policy, its optimiser and its recipe. `is_told_to_stop` is asked before each micro-batch: a step takes longer
    than a supervisor waits, and its kill would look like a death in the batch."""

    def __init__(
        self, policy: Policy, config: TrainerConfig, *, is_told_to_stop: Callable[[], bool] = lambda: False
    ) -> None:
        if config.baseline not in BASELINES:
            raise ConfigurationError(f"[trainer] baseline: expected one of {list(BASELINES)}, got {config.baseline!r}")
        self.policy = policy
        self.recipe = Recipe(
            baseline=config.baseline,
            scale=config.scale,
            low=config.clip_low,
            high=config.clip_high,
            dual=config.clip_dual,
            aggregation=config.aggregation,
            length=config.constant_tokens,
        )
        self._config = config
        self._is_told_to_stop = is_told_to_stop
        # By name, so that sums over them do not depend on the order in which the model was built.
        self._masters = dict(sorted(policy.masters.items()))
        self.forget_moments()

    @property
    def settings(self) -> dict[str, str]:
        """What a step depends on, by key of `[trainer]`; `auto` as it turned out here."""
        told = {name: str(value) for name, value in asdict(self._config).items() if name not in _NOT_LEARNT}
        resolved = {"dtype": self.policy.model_dtype, "publish_dtype": self.policy.dtype}
        return (
            told
            | {name: str(dtype).removeprefix("torch.") for name, dtype in resolved.items()}
            | {"device": self.policy.device.type}
        )

    def step(self, rows: Sequence[TrainingRow], *, version: int, step: int) -> StepResult:
        """Trains on one batch.

        Args:
            rows: all rows of the batch; those without advantage are counted in the weights and only looked at: a
                forward pass, a third of what training them costs, so that the figures to watch are of all tokens.
            version: the version that the weights are now.
            step: number of the batch, from 1.
        Raises:
            DivergedError: the new weights give NaN or infinite logprobs; they are not to be used.
        """
        useful = [row for row in rows if row.has_gradient]
        if not useful:
            return StepResult(is_updated=False, skipped="no_advantage" if rows else "no_tokens")
        started = time.perf_counter()
        watch = _Watch()
        loss = self._accumulate(useful, version, watch)
        with torch.no_grad():
            for _ in self._look_at([row for row in rows if not row.has_gradient], version, watch):
                pass
        if self._is_told_to_stop():
            self._optimiser.zero_grad(set_to_none=True)
            return StepResult(is_updated=False, skipped=STOPPED)
        computed = time.perf_counter()
        config = self._config
        grad_norm = float(torch.nn.utils.clip_grad_norm_(self._masters.values(), config.clip_norm))
        is_finite = all(map(math.isfinite, (loss, grad_norm, watch.ratio_sum)))
        learning_rate = config.lr * min(1.0, (self._num_updates + 1) / max(1, config.warmup_steps))
        if is_finite:
            for group in self._optimiser.param_groups:
                group["lr"] = learning_rate
            with busy("an optimiser step"):
                self._optimiser.step()
                self.policy.refresh()
            self._require_numbers(min(useful, key=lambda row: len(row.token_ids_T)), step)
        self._optimiser.zero_grad(set_to_none=True)
        return StepResult(
            is_updated=is_finite,
            skipped="" if is_finite else "non_finite",
            loss=loss if math.isfinite(loss) else 0.0,
            grad_norm=grad_norm if math.isfinite(grad_norm) else 0.0,
            learning_rate=learning_rate,
            logprob_error_max=watch.error_max,
            num_checked_tokens=watch.num_checked,
            ratio_mean=watch.ratio_sum / watch.num_tokens if math.isfinite(watch.ratio_sum) else 0.0,
            clip_fraction=watch.num_clipped / watch.num_tokens,
            num_bounded_tokens=watch.num_bounded,
            seconds={"forward_backward": computed - started, "optimise": time.perf_counter() - computed},
        )

    @property
    def _num_updates(self) -> int:
        """Of this optimiser; a restored one knows its own, a new one (after a rollback) warms up again."""
        return int(max((float(moments["step"]) for moments in self._optimiser.state.values()), default=0.0))

    @torch.no_grad()
    def _require_numbers(self, row: TrainingRow, step: int) -> None:
        """One forward pass of the new weights: a version of NaN would be served before the next step noticed."""
        (batch,) = self._micro_batches([row])
        logprobs_BK = self.policy.logprobs(batch, max_logits=self._config.micro_batch_logits)
        if not bool(logprobs_BK.isfinite().all()):
            raise DivergedError(
                f"expected the weights after step {step} to give finite logprobs, got others; they are neither "
                "checkpointed nor published. Lower [trainer] lr or clip_norm and start the run again"
            )

    def _micro_batches(self, rows: Sequence[TrainingRow]) -> Iterator[MicroBatch]:
        for batch in micro_batches(
            rows,
            max_tokens=self._config.micro_batch_tokens or (1024 if self.policy.device.type == "cpu" else 16384),
        ):
            # Until the caller asks for the next one.
            with busy("a micro-batch", batch.input_ids_BL.numel()):
                yield batch.to(self.policy.device)

    def _accumulate(self, rows: Sequence[TrainingRow], version: int, watch: _Watch) -> float:
        """The loss; its gradient is in the masters."""
        losses: list[float] = []
        for term in self._look_at(rows, version, watch):
            term.loss.backward()  # type: ignore[no-untyped-call]
            self.policy.collect_gradients()
            losses.append(float(term.loss.detach()))
        # fsum refuses infinities of both signs; the plain sum says NaN, which the caller reports as non-finite.
        return math.fsum(losses) if all(map(math.isfinite, losses)) else math.nan

    def _look_at(self, rows: Sequence[TrainingRow], version: int, watch: _Watch) -> Iterator[TokenLoss]:
        """A forward pass by micro-batches; each is watched and given."""
        for batch in self._micro_batches(rows):
            if self._is_told_to_stop():
                return
            logprobs_BK = self.policy.logprobs(batch, max_logits=self._config.micro_batch_logits)
            term = self.recipe.loss(
                logprobs_BK,
                sampler_logprobs_BK=batch.sampler_logprobs_BK,
                advantages_BK=batch.advantages_BK,
                token_weights_BK=batch.token_weights_BK,
                loss_mask_BK=batch.loss_mask_BK,
            )
            watch.add(batch, logprobs_BK, term, version)
            yield term

    def tensors(self) -> dict[str, Tensor]:
        """All that the next step depends on: `weights/*`, `optimiser/*.<moment>` (none before the first update), and
        torch's generators, `rng/*`.
        """
        tensors: dict[str, Tensor] = {f"weights/{name}": master for name, master in self._masters.items()}
        for name, master in self._masters.items():
            moments = self._optimiser.state.get(master, {})
            for moment in _MOMENTS:
                if moment in moments:
                    tensors[f"optimiser/{name}.{moment}"] = torch.as_tensor(moments[moment])
        tensors["rng/cpu"] = torch.get_rng_state()
        if self.policy.device.type == "cuda":
            tensors["rng/cuda"] = torch.cuda.get_rng_state(self.policy.device)
        return tensors

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes `tensors()` back; a generator of a device that is not here is left out.

        Raises:
            ConfigurationError: they are of another model.
        """
        parts: defaultdict[str, dict[str, Tensor]] = defaultdict(dict)
        for key, tensor in tensors.items():
            part, _, name = key.partition("/")
            parts[part][name] = tensor
        self.policy.restore(parts["weights"])
        self.forget_moments()
        for name, master in self._masters.items():
            moments = {m: parts["optimiser"][key] for m in _MOMENTS if (key := f"{name}.{m}") in parts["optimiser"]}
            if moments:
                self._optimiser.state[master] = {
                    moment: tensor.clone() if moment == "step" else tensor.to(master.device).clone()
                    for moment, tensor in moments.items()
                }
        torch.set_rng_state(parts["rng"]["cpu"])
        if "cuda" in parts["rng"] and self.policy.device.type == "cuda":
            torch.cuda.set_rng_state(parts["rng"]["cuda"], self.policy.device)

    def forget_moments(self) -> None:
        """Makes the optimiser new (a start, a rollback)."""
        config = self._config
        self._optimiser = torch.optim.AdamW(
            self._masters.values(), lr=config.lr, betas=_BETAS, weight_decay=config.weight_decay
        )
