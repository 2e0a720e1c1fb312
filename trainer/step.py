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

import numpy as np
import numpy.typing as npt
import torch
from msgspec.structs import asdict
from torch import Tensor

from tracegrad.schemas.beat import busy
from tracegrad.schemas.errors import DivergedError

from .algorithm.form import TokenLoss, log_ratios, loss
from .algorithm.level import unit_means
from .algorithm.logprobs import logprobs_and_entropies
from .algorithm.recipe import Recipe
from .algorithm.regulariser import k1
from .batch.packing import MicroBatch, micro_batches
from .batch.rows import TrainingRow
from .config import TrainerConfig
from .model.policy import Policy
from .optimiser import Optimiser

__all__ = ["STOPPED", "Learner", "StepResult"]

STOPPED = "stopped"
"""Of a step that was broken off, as if it had not begun."""

_NOT_LEARNT = {"python", "threads", "keep_versions", "keep_checkpoints", "checkpoint_every"}
"""Keys of `[trainer]` that change no step, as `steps` where the learning rate does not go by it; of `[algorithm]` there
is none."""


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

    def add(self, batch: MicroBatch, logprobs_N: Tensor, term: TokenLoss, version: int) -> None:
        self.num_tokens += len(logprobs_N)
        self.ratio_sum += float(term.ratios_N.sum(dtype=torch.float64))
        self.num_clipped += int(term.clipped_N.sum())
        self.num_bounded += int(term.bounded_N.sum())
        checked_N = batch.versions_N == version
        num_checked = int(checked_N.sum())
        if num_checked:
            # Probabilities are compared at the sampler's own version only: any gap is then an error, not learning.
            error = float((logprobs_N.detach() - batch.sampler_logprobs_N)[checked_N].abs().max())
            self.num_checked += num_checked
            self.error_max = max(self.error_max, error) if math.isfinite(error) else 1e9


class Learner:
    """A policy, its optimiser and its recipe. `is_told_to_stop` is asked before each micro-batch: a step takes longer
    than a supervisor waits, and its kill would look like a death in the batch."""

    def __init__(
        self,
        policy: Policy,
        config: TrainerConfig,
        recipe: Recipe,
        *,
        reference: Policy | None = None,
        is_told_to_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """`reference` is what a recipe that needs one is held against; it never changes."""
        self.policy = policy
        self.recipe = recipe
        self._reference = reference
        self._config = config
        self._is_told_to_stop = is_told_to_stop
        self._optimiser = Optimiser(policy.masters, config)

    @property
    def settings(self) -> dict[str, str]:
        """What a step depends on, by key of `[trainer]` and `[algorithm]`; `auto` as it turned out here."""
        idle = _NOT_LEARNT | ({"steps"} if self._config.lr_schedule == "constant" else set())
        told = {name: str(value) for name, value in asdict(self._config).items() if name not in idle}
        told |= {name: getattr(value, "__qualname__", str(value)) for name, value in asdict(self.recipe).items()}
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
        trains_all = "all_rows" in self.recipe.needs
        useful = [row for row in rows if trains_all or row.has_advantage]
        if not useful:
            return StepResult(is_updated=False, skipped="no_advantage" if rows else "no_tokens")
        started = time.perf_counter()
        watch = _Watch()
        unit_means_U = self._unit_means(rows)
        value = self._accumulate(useful, version, watch, unit_means_U)
        if len(useful) < len(rows):
            with torch.no_grad():
                for _ in self._look_at([row for row in rows if not row.has_advantage], version, watch, unit_means_U):
                    pass
        if self._is_told_to_stop():
            self._optimiser.drop_gradients()
            return StepResult(is_updated=False, skipped=STOPPED)
        computed = time.perf_counter()
        grad_norm = self._optimiser.clip()
        is_finite = all(map(math.isfinite, (value, grad_norm, watch.ratio_sum)))
        learning_rate = self._optimiser.learning_rate(step - 1, self._config.steps)
        if is_finite:
            self._update(learning_rate)
            self._require_numbers(min(useful, key=lambda row: len(row.token_ids_T)), step)
        self._optimiser.drop_gradients()
        return StepResult(
            is_updated=is_finite,
            skipped="" if is_finite else "non_finite",
            loss=value if math.isfinite(value) else 0.0,
            grad_norm=grad_norm if math.isfinite(grad_norm) else 0.0,
            learning_rate=learning_rate,
            logprob_error_max=watch.error_max,
            num_checked_tokens=watch.num_checked,
            ratio_mean=watch.ratio_sum / watch.num_tokens if math.isfinite(watch.ratio_sum) else 0.0,
            clip_fraction=watch.num_clipped / watch.num_tokens,
            num_bounded_tokens=watch.num_bounded,
            seconds={"forward_backward": computed - started, "optimise": time.perf_counter() - computed},
        )

    def _update(self, learning_rate: float) -> None:
        with busy("an optimiser step"):
            self._optimiser.step(learning_rate)
            self.policy.refresh()

    @torch.no_grad()
    def _require_numbers(self, row: TrainingRow, step: int) -> None:
        """One forward pass of the new weights: a version of NaN would be served before the next step noticed."""
        (batch,) = self._micro_batches([row])
        if not bool(self._logprobs(batch).isfinite().all()):
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

    def _logprobs(self, batch: MicroBatch, policy: Policy | None = None) -> Tensor:
        """[N] of its trained tokens under the present weights, or another policy's."""
        made = (policy or self.policy).logprobs(batch, max_logits=self._config.micro_batch_logits)
        return made[batch.loss_mask_BK]

    def _logprobs_and_entropies(self, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """[N] each."""
        limit = self._config.micro_batch_logits
        made_2BK = self.policy.logprobs(batch, max_logits=limit, score=logprobs_and_entropies)
        logprobs_N, entropies_N = made_2BK[:, batch.loss_mask_BK]
        return logprobs_N, entropies_N

    def _reference_logprobs(self, batch: MicroBatch) -> Tensor | None:
        """[N] of its trained tokens under what the recipe's KL is taken to; None where that is the sampler."""
        if "reference" not in self.recipe.needs:
            return None
        assert self._reference is not None
        with torch.no_grad():
            return self._logprobs(batch, self._reference)

    @torch.no_grad()
    def penalties(self, rows: Sequence[TrainingRow]) -> list[npt.NDArray[np.float64]]:
        """[T] of each row, what the recipe's KL takes from the reward at a token: a pass of its own."""
        found = [np.zeros(len(row.token_ids_T)) for row in rows]
        for batch in self._micro_batches(rows):
            logprobs_N = self._logprobs(batch)
            reference_N = self._reference_logprobs(batch)
            kl_N = k1(logprobs_N, batch.sampler_logprobs_N if reference_N is None else reference_N, logprobs_N)
            sizes = batch.loss_mask_BK.sum(dim=1).tolist()
            for place, part in zip(batch.places, torch.split(self.recipe.beta * kl_N.double(), sizes), strict=True):
                found[place][rows[place].loss_mask_T] = part.cpu().numpy()
        return found

    @torch.no_grad()
    def _unit_means(self, rows: Sequence[TrainingRow]) -> Tensor | None:
        """[U] the mean log ratio of each rollout, by a pass of its own: a rollout's rows may lie in several
        micro-batches. None where no ratio is of a rollout.
        """
        if "unit_means" not in self.recipe.needs:
            return None
        seen = []
        for batch in self._micro_batches(rows):
            assert batch.units_N is not None
            logprobs_N = self._logprobs(batch)
            seen.append((log_ratios(self.recipe, logprobs_N, batch.sampler_logprobs_N), batch.units_N))
        log_ratios_N, units_N = (torch.cat(parts) for parts in zip(*seen, strict=True))
        return unit_means(log_ratios_N, units_N, int(units_N.max()) + 1)

    def _accumulate(
        self, rows: Sequence[TrainingRow], version: int, watch: _Watch, unit_means_U: Tensor | None
    ) -> float:
        """The loss; its gradient is in the masters."""
        losses: list[float] = []
        for term in self._look_at(rows, version, watch, unit_means_U):
            term.loss.backward()  # type: ignore[no-untyped-call]
            self.policy.collect_gradients()
            losses.append(float(term.loss.detach()))
        # fsum refuses infinities of both signs; the plain sum says NaN, which the caller reports as non-finite.
        return math.fsum(losses) if all(map(math.isfinite, losses)) else math.nan

    def _look_at(
        self, rows: Sequence[TrainingRow], version: int, watch: _Watch, unit_means_U: Tensor | None
    ) -> Iterator[TokenLoss]:
        """A forward pass by micro-batches; each is watched and given."""
        for batch in self._micro_batches(rows):
            if self._is_told_to_stop():
                return
            entropies_N = None
            if "entropy" in self.recipe.needs:
                logprobs_N, entropies_N = self._logprobs_and_entropies(batch)
            else:
                logprobs_N = self._logprobs(batch)
            term = loss(
                self.recipe,
                logprobs_N=logprobs_N,
                sampler_logprobs_N=batch.sampler_logprobs_N,
                advantages_N=batch.advantages_N,
                weights_N=batch.weights_N,
                reference_logprobs_N=self._reference_logprobs(batch) if self.recipe.kl_in == "loss" else None,
                entropies_N=entropies_N,
                rows_N=None if self.recipe.correction == "none" else batch.rows_N,
                units_N=batch.units_N,
                unit_means_U=unit_means_U,
            )
            watch.add(batch, logprobs_N, term, version)
            yield term

    def tensors(self) -> dict[str, Tensor]:
        """All that the next step depends on: `weights/*`, `optimiser/*.<moment>` (none before the first update), and
        torch's generators, `rng/*`.
        """
        tensors = {f"weights/{name}": master for name, master in self._optimiser.masters.items()}
        tensors |= {f"optimiser/{name}": tensor for name, tensor in self._optimiser.tensors().items()}
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
        self._optimiser.restore(parts["optimiser"])
        torch.set_rng_state(parts["rng"]["cpu"])
        if "cuda" in parts["rng"] and self.policy.device.type == "cuda":
            torch.cuda.set_rng_state(parts["rng"]["cuda"], self.policy.device)

    def forget_moments(self) -> None:
        """Makes the optimiser new (a rollback)."""
        self._optimiser.forget()
