"""One step on a batch: the rows of each update forward and backward by micro-batches, AdamW, and the figures to watch.

In: the rows of each update with advantages and token weights; of most recipes one update of all rows. Out: StepResult;
the policy's weights have moved, unless `skipped` says why not (`no_tokens`, `no_advantage`, `non_finite`, `stopped`):
then weights and optimiser are as before the first update.
Invariant: equal rows, weights, optimiser state and device give equal results, bit for bit on a CPU.
Do not combine with dropout: the sampler has none.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
from msgspec.structs import asdict, replace
from torch import Tensor

from tracegrad.schemas.beat import busy
from tracegrad.schemas.errors import DivergedError
from tracegrad.schemas.records.training import StepResult

from .algorithm.form import TokenLoss, loss
from .algorithm.recipe import Recipe
from .batch.advantages import Doubles
from .batch.forms import in_form
from .batch.groups import Group
from .batch.rows import TrainingRow
from .config import NOT_LEARNT, TrainerConfig
from .forward import Forward
from .model.critic import Critic, num_asked
from .model.policy import Policy
from .optimiser import Optimiser
from .watch import Watch

__all__ = ["STOPPED", "Learner"]

STOPPED = "stopped"
"""Of a step that was broken off, as if it had not begun."""


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
        critic: Critic | None = None,
        is_told_to_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """`reference` is what a recipe that needs one is held against; `critic` the one that its baseline asks."""
        self.policy = policy
        self.recipe = recipe
        self._forward = Forward(policy, config, recipe, reference, critic)
        self._moving = reference if recipe.kl_to == "moving" else None
        if self._moving is not None:
            self._moving.approach(policy, 1.0)  # new adapters of its own are others
        self._critic = critic
        self._config = config
        self._is_told_to_stop = is_told_to_stop
        self._optimiser = Optimiser(policy.masters, config)
        self._optimisers = [self._optimiser, *([critic.optimiser] if critic is not None else [])]
        self._models = dict.fromkeys([policy, *([critic.trunk] if critic is not None else [])])

    @property
    def settings(self) -> dict[str, str]:
        """What a step depends on, by key of `[trainer]` and `[algorithm]`; `auto` as it turned out here."""
        idle = {*NOT_LEARNT} - ({"steps"} if self._config.lr_schedule != "constant" else set())
        policy = self.policy
        resolved = {"dtype": policy.model_dtype, "publish_dtype": policy.dtype, "device": policy.device.type}
        given = asdict(self._config) | asdict(self.recipe) | resolved
        told = {name: getattr(value, "__qualname__", str(value)) for name, value in given.items() if name not in idle}
        return {name: value.removeprefix("torch.") for name, value in told.items()}

    def rows(self, groups: Sequence[Group], running: Mapping[str, float]) -> tuple[list[TrainingRow], dict[str, float]]:
        """`Forward.rows`: a batch's, before its first update."""
        return self._forward.rows(groups, running)

    def formed(self, groups: Sequence[Group]) -> Sequence[Group]:
        """The groups in the form of the recipe's rows."""
        return in_form(groups, self.recipe.rows, max_row_tokens=self._config.max_row_tokens)

    def log_weights(self, groups: Sequence[Group]) -> list[list[Doubles]]:
        """`Forward.log_weights`."""
        return self._forward.log_weights(groups)

    def step(self, *updates: Sequence[TrainingRow], version: int, step: int) -> StepResult:
        """Trains on one batch.

        Args:
            updates: the rows of each update, in turn. Those without advantage are counted in the weights and only
                looked at: a forward pass, a third of what training them costs, so that the figures to watch are of all
                tokens. An update without any other row is left out.
            version: the version that the weights are now.
            step: number of the batch, from 1.
        Raises:
            DivergedError: the new weights give NaN or infinite logprobs; they are not to be used.
        """
        trained = [self._trained(rows) for rows in updates]
        if not any(trained):
            return _no_step("no_advantage" if any(updates) else "no_tokens")
        # In host memory, as a checkpoint takes it: what stops or fails in a later update is undone as a whole.
        before = {name: tensor.detach().to("cpu", copy=True) for name, tensor in self.tensors().items() if updates[1:]}
        first, num_updates = (step - 1) * len(updates), self._config.steps * len(updates)
        watch, made = Watch(), list[StepResult]()
        for number, (rows, useful) in enumerate(zip(updates, trained, strict=True)):
            if useful:
                at = (first + number, num_updates)
                # Later the weights are no version: what the sampler said of a token differs from theirs by learning.
                made.append(self._update(rows, useful, watch, step, at, version=-1 if made else version))
                for optimiser in self._optimisers:
                    optimiser.drop_gradients()
                if made[-1].skipped:
                    break
        if made[-1].skipped and before:
            self.restore(before)
        return made[-1] if made[-1].skipped == STOPPED else _together(made, watch)

    def move_reference(self, step: int) -> None:
        """After a step, of which it says the number; also after one that trained nothing."""
        if self._moving is not None and step % self.recipe.reference_every == 0:
            self._moving.approach(self.policy, self.recipe.reference_share)

    def _trained(self, rows: Sequence[TrainingRow]) -> list[TrainingRow]:
        """Those that have a gradient."""
        return [row for row in rows if "all_rows" in self.recipe.needs or row.has_advantage]

    def _update(
        self,
        rows: Sequence[TrainingRow],
        useful: Sequence[TrainingRow],
        watch: Watch,
        step: int,
        at: tuple[int, int],
        *,
        version: int,
    ) -> StepResult:
        """Moves the weights once; gradients are left behind. `at` is which of the run's updates, and of how many."""
        started = time.perf_counter()
        unit_means_U = self._forward.unit_means(rows)
        losses = (term.loss for term in self._look_at(useful, version, watch, unit_means_U))
        value = _accumulate(losses, self.policy)
        if len(useful) < len(rows):
            with torch.no_grad():
                for _ in self._look_at([row for row in rows if not row.has_advantage], version, watch, unit_means_U):
                    pass
        value_loss = 0.0
        if self._critic is not None:
            batches = itertools.takewhile(lambda _: not self._is_told_to_stop(), self._forward.micro_batches(rows))
            value_losses = self._critic.losses(batches, num_asked(rows), self.recipe.value_clip)
            value_loss = _accumulate(value_losses, self._critic.trunk)
        if self._is_told_to_stop():
            return _no_step(STOPPED)
        computed, rate = time.perf_counter(), self._optimiser.learning_rate(*at)
        grad_norm, *others = (optimiser.clip() for optimiser in self._optimisers)
        is_finite = watch.is_finite and all(map(math.isfinite, (value, value_loss, grad_norm, *others)))
        if is_finite:
            with busy("an optimiser step"):
                for optimiser in self._optimisers:
                    optimiser.step(optimiser.learning_rate(*at))
                for model in self._models:
                    model.refresh()
            self._require_numbers(min(useful, key=lambda row: len(row.token_ids_T)), step)
        return StepResult(
            is_updated=is_finite,
            skipped="" if is_finite else "non_finite",
            loss=value if math.isfinite(value) else 0.0,
            grad_norm=grad_norm if math.isfinite(grad_norm) else 0.0,
            learning_rate=rate,
            seconds={"forward_backward": computed - started, "optimise": time.perf_counter() - computed},
        )

    @torch.no_grad()
    def _require_numbers(self, row: TrainingRow, step: int) -> None:
        """One forward pass of the new weights: a version of NaN would be served before the next step noticed."""
        (batch,) = self._forward.micro_batches([row])
        if not bool(self._forward.logprobs(batch).isfinite().all()):
            raise DivergedError(
                f"expected the weights after step {step} to give finite logprobs, got others; they are neither "
                "checkpointed nor published. Lower [trainer] lr or clip_norm and start the run again"
            )

    def _look_at(
        self, rows: Sequence[TrainingRow], version: int, watch: Watch, unit_means_U: Tensor | None
    ) -> Iterator[TokenLoss]:
        """A forward pass by micro-batches; each is watched and given."""
        for batch in self._forward.micro_batches(rows):
            if self._is_told_to_stop():
                return
            logprobs_N, entropies_N = self._forward.logprobs_and_entropies(batch)
            reference_N = self._forward.reference_logprobs(batch)
            term = loss(
                self.recipe,
                logprobs_N=logprobs_N,
                sampler_logprobs_N=batch.sampler_logprobs_N,
                advantages_N=batch.advantages_N,
                weights_N=batch.weights_N,
                old_logprobs_N=batch.old_logprobs_N,
                reference_logprobs_N=reference_N,
                entropies_N=entropies_N,
                rows_N=None if self.recipe.correction == "none" else batch.rows_N,
                units_N=batch.units_N,
                unit_means_U=unit_means_U,
            )
            watch.add(batch, logprobs_N, term, version=version, reference_N=reference_N)
            yield term

    def tensors(self) -> dict[str, Tensor]:
        """All that the next step depends on: `weights/*`, `optimiser/*.<moment>` (none before the first update),
        `reference/*` of one that moves, `critic/*`, and torch's generators, `rng/*`.
        """
        tensors = {f"weights/{name}": master for name, master in self._optimiser.masters.items()}
        tensors |= {f"optimiser/{name}": tensor for name, tensor in self._optimiser.tensors().items()}
        if self._moving is not None:
            tensors |= {f"reference/{name}": master for name, master in self._moving.masters.items()}
        if self._critic is not None:
            tensors |= {f"critic/{name}": tensor for name, tensor in self._critic.tensors().items()}
        tensors["rng/cpu"] = torch.get_rng_state()
        if self.policy.device.type == "cuda":
            tensors["rng/cuda"] = torch.cuda.get_rng_state(self.policy.device)
        return tensors

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes `tensors()` back; a generator of a device that is not here is left out. A reference that does not move
        yet is the start model.

        Raises:
            ConfigurationError: they are of another model.
        """
        parts: defaultdict[str, dict[str, Tensor]] = defaultdict(dict)
        for key, tensor in tensors.items():
            part, _, name = key.partition("/")
            parts[part][name] = tensor
        self.policy.restore(parts["weights"])
        self._optimiser.restore(parts["optimiser"])
        if self._moving is not None and parts["reference"]:
            self._moving.restore(parts["reference"])
        if self._critic is not None:
            self._critic.restore(parts["critic"])
        torch.set_rng_state(parts["rng"]["cpu"])
        if "cuda" in parts["rng"] and self.policy.device.type == "cuda":
            torch.cuda.set_rng_state(parts["rng"]["cuda"], self.policy.device)

    def forget_moments(self) -> None:
        """Makes the optimisers new (a rollback). Critic and reference keep their weights: no version has
        older ones."""
        for optimiser in self._optimisers:
            optimiser.forget()


def _accumulate(losses: Iterable[Tensor], policy: Policy) -> float:
    """The sum of micro-batches' losses; its gradient is in the masters."""
    values: list[float] = []
    for loss_ in losses:
        loss_.backward()  # type: ignore[no-untyped-call]
        policy.collect_gradients()
        values.append(float(loss_.detach()))
    # fsum refuses infinities of both signs; the plain sum says NaN, which the caller reports as non-finite.
    return math.fsum(values) if all(map(math.isfinite, values)) else math.nan


def _no_step(skipped: str) -> StepResult:
    return StepResult(is_updated=False, skipped=skipped, loss=0.0, grad_norm=0.0, learning_rate=0.0)


def _together(made: Sequence[StepResult], watch: Watch) -> StepResult:
    """The last update's, with what all of them came to."""
    return replace(
        made[-1],
        loss=math.fsum(update.loss for update in made) / len(made),
        grad_norm=max(update.grad_norm for update in made),
        seconds={phase: math.fsum(update.seconds[phase] for update in made) for phase in made[-1].seconds},
        **watch.figures(),
    )
