"""The Learner of one process on one device: forward and backward by micro-batches, AdamW, and the figures to watch.

In: the rows of each update with advantages and token weights; of most recipes one update of all rows. Out: StepResult;
the policy's weights have moved, unless `skipped` says why not (`no_tokens`, `no_advantage`, `non_finite`, `stopped`):
then weights and optimiser are as before the first update.
Invariant: equal rows, weights, optimiser state and device give equal results, bit for bit on a CPU.
Do not combine with dropout: the sampler has none. Suffixes: N trained tokens of a micro-batch, U units.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from msgspec.structs import asdict
from torch import Tensor

from tracegrad.schemas.beat import busy
from tracegrad.schemas.errors import ConfigurationError, DivergedError
from tracegrad.schemas.reasons import Reason
from tracegrad.schemas.records.training import StepResult

from ..algorithm.form import TokenLoss, loss
from ..algorithm.logprobs import logprobs_and_entropies
from ..algorithm.recipe import Recipe
from ..batch.advantages import Doubles
from ..batch.groups import Group, in_form
from ..batch.packing import MicroBatch
from ..batch.rows import TrainingRow, rows_of_batch
from ..config import NOT_LEARNT, TrainerConfig, TrainerHandles
from ..learner import STOPPED
from ..model.critic import Critic, load_critic, num_asked
from ..model.policy import Policy, configure_torch, load_policy
from ..model.read_model import load_tensors, read_tensors
from ..optimiser import Optimiser
from ..step_figures import StepFigures, result_of, skipped_as
from .micro_batch_size import MicroBatchSize
from .passes import accumulate, copy_to_host, scores_of_rows, unit_log_ratios


class SingleLearner:
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
        self._reference = reference
        self._moving = reference if recipe.kl_to == "moving" else None
        if self._moving is not None:
            self._moving.approach(policy, 1.0)  # new adapters of its own are others
        self._critic = critic
        self._config = config
        self._is_told_to_stop = is_told_to_stop
        self._optimiser = Optimiser(policy.masters, config)
        self._optimisers = [self._optimiser, *([critic.optimiser] if critic is not None else [])]
        self._models = [*dict.fromkeys([policy, *([critic.trunk] if critic is not None else [])])]
        self._size = MicroBatchSize(config, self._models, self._optimisers)
        self.micro_batches = self._size.micro_batches
        self._copies: dict[str, Tensor] = {}

    @property
    def vocabulary(self) -> int:
        """`Learner.vocabulary`, as all that follows."""
        return self.policy.vocabulary

    @property
    def settings(self) -> dict[str, str]:
        idle = {*NOT_LEARNT} - ({"steps"} if self._config.lr_schedule != "constant" else set())
        policy = self.policy
        resolved = {"dtype": policy.model_dtype, "publish_dtype": policy.dtype, "device": policy.device.type}
        resolved["deterministic"] = torch.are_deterministic_algorithms_enabled()
        given = asdict(self._config) | asdict(self.recipe) | resolved
        told = {name: getattr(value, "__qualname__", str(value)) for name, value in given.items() if name not in idle}
        return {name: value.removeprefix("torch.") for name, value in told.items()}

    @property
    def machine(self) -> dict[str, str]:
        device = self.policy.device
        return {
            "threads": str(torch.get_num_threads()),
            "torch": str(torch.__version__),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "accelerator": torch.cuda.get_device_name(device) if device.type == "cuda" else "",
            "world_size": "1",
        }

    def rows(self, groups: Sequence[Group], running: Mapping[str, float]) -> tuple[list[TrainingRow], dict[str, float]]:
        groups = in_form(groups, self.recipe.rows, max_row_tokens=self._config.max_row_tokens)
        scores = {"old": self.logprobs, "reference": self._logprobs_of_reference}
        if self._critic is not None:
            scores["values"] = self._critic.values
        return rows_of_batch(groups, self.recipe, running, lambda need, rows: self._of_rows(rows, scores[need]))

    def logprobs_of(self, rows: Sequence[TrainingRow]) -> list[Doubles]:
        return self._of_rows(rows, self.logprobs)

    def step(self, *updates: Sequence[TrainingRow], version: int, step: int) -> StepResult:
        result = self._step(updates, version, step)
        if self._moving is not None and result.skipped != STOPPED and step % self.recipe.reference_every == 0:
            self._moving.approach(self.policy, self.recipe.reference_share)
        return result

    def _step(self, updates: Sequence[Sequence[TrainingRow]], version: int, step: int) -> StepResult:
        # Those that have a gradient.
        takes_all = "all_rows" in self.recipe.needs
        trained = [[row for row in rows if takes_all or row.has_advantage] for rows in updates]
        if not any(trained):
            return skipped_as(Reason.NO_ADVANTAGE if any(updates) else Reason.NO_TOKENS)
        # What stops or fails in a later update is undone as a whole.
        before = copy_to_host(self._state(), self._copies) if updates[1:] else {}
        undo: Callable[[], None] = (lambda: self.restore(before)) if before else (lambda: None)
        result = self._size.fit(lambda: self._updates(updates, trained, version, step), undo=undo)
        if result.skipped:
            undo()
        return result

    def _updates(
        self,
        updates: Sequence[Sequence[TrainingRow]],
        trained: Sequence[Sequence[TrainingRow]],
        version: int,
        step: int,
    ) -> StepResult:
        first, num_updates = (step - 1) * len(updates), self._config.steps * len(updates)
        figures, made = StepFigures(), list[StepResult]()
        for number, (rows, useful) in enumerate(zip(updates, trained, strict=True)):
            if useful:
                at = (first + number, num_updates)
                # Later the weights are no version: what the sampler said of a token differs from theirs by learning.
                made.append(self._update(rows, useful, figures, step, at, version=-1 if made else version))
                for optimiser in self._optimisers:
                    optimiser.drop_gradients()
                if made[-1].skipped:
                    break
        return made[-1] if made[-1].skipped == STOPPED else result_of(made, figures)

    def _update(
        self,
        rows: Sequence[TrainingRow],
        useful: Sequence[TrainingRow],
        figures: StepFigures,
        step: int,
        at: tuple[int, int],
        *,
        version: int,
    ) -> StepResult:
        """Moves the weights once; gradients are left behind. `at` is which of the run's updates, and of how many."""
        started = time.perf_counter()
        unit_means_U = self._unit_means(rows)
        losses = (term.loss for term in self._look_at(useful, version, figures, unit_means_U))
        value = accumulate(losses, self.policy)
        if len(useful) < len(rows):
            with torch.no_grad():
                for _ in self._look_at([row for row in rows if not row.has_advantage], version, figures, unit_means_U):
                    pass
        value_loss = 0.0
        if self._critic is not None:
            batches = itertools.takewhile(lambda _: not self._is_told_to_stop(), self.micro_batches(rows))
            value_losses = self._critic.losses(batches, num_asked(rows), self.recipe.value_clip)
            value_loss = accumulate(value_losses, self._critic.trunk)
        if self._is_told_to_stop():
            return skipped_as(STOPPED)
        computed, rate = time.perf_counter(), self._optimiser.learning_rate(*at)
        grad_norm, *others = (optimiser.clip() for optimiser in self._optimisers)
        is_finite = figures.is_finite and all(map(math.isfinite, (value, value_loss, grad_norm, *others)))
        if is_finite:
            self._move(at, min(useful, key=lambda row: len(row.token_ids_T)), step)
        return StepResult(
            is_updated=is_finite,
            skipped="" if is_finite else Reason.NON_FINITE,
            loss=value if math.isfinite(value) else 0.0,
            grad_norm=grad_norm if math.isfinite(grad_norm) else 0.0,
            learning_rate=rate,
            seconds={"forward_backward": computed - started, "optimise": time.perf_counter() - computed},
        )

    def _move(self, at: tuple[int, int], shortest: TrainingRow, step: int) -> None:
        """The weights, and looks whether they still give numbers: a version of NaN would be served before the next step
        noticed. Memory is not tried again here, for half of the weights may have moved."""
        try:
            with busy("an optimiser step"):
                for optimiser in self._optimisers:
                    optimiser.step(optimiser.learning_rate(*at))
                for model in self._models:
                    model.refresh()
            with torch.no_grad():
                (batch,) = self.micro_batches([shortest])
                is_finite = bool(self.logprobs(batch).isfinite().all())
        except torch.OutOfMemoryError as error:
            raise ConfigurationError(
                f"[policy] model: expected memory for what AdamW keeps, got {error}: train adapters ([trainer] "
                "lora_rank) or a smaller model, or give the engine less of this GPU ([engine] gpu_memory_utilization)"
            ) from error
        if not is_finite:
            raise DivergedError(
                f"expected the weights after step {step} to give finite logprobs, got others; they are neither "
                "checkpointed nor published. Lower [trainer] lr or clip_norm and start the run again"
            )

    def _look_at(
        self, rows: Sequence[TrainingRow], version: int, figures: StepFigures, unit_means_U: Tensor | None
    ) -> Iterator[TokenLoss]:
        """A forward pass by micro-batches; each is counted in the figures and given."""
        for batch in self.micro_batches(rows):
            if self._is_told_to_stop():
                return
            logprobs_N, entropies_N = self._logprobs_and_entropies(batch)
            reference_N = batch.reference_logprobs_N
            if reference_N is None and "reference" in self.recipe.needs:
                reference_N = self._logprobs_of_reference(batch)
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
            figures.add_batch(batch, logprobs_N, term, version=version, reference_N=reference_N)
            yield term

    # forward passes

    def logprobs(self, batch: MicroBatch, policy: Policy | None = None) -> Tensor:
        """[N] of its trained tokens under the present weights, or another policy's."""
        made = (policy or self.policy).logprobs(batch, max_logits=self._config.micro_batch_logits)
        return made.flatten(-2)[batch.trained_N]

    def _logprobs_and_entropies(self, batch: MicroBatch) -> tuple[Tensor, Tensor | None]:
        """[N] each; without entropies where the recipe needs none."""
        if "entropy" not in self.recipe.needs:
            return self.logprobs(batch), None
        limit = self._config.micro_batch_logits
        made_2BK = self.policy.logprobs(batch, max_logits=limit, score=logprobs_and_entropies)
        logprobs_N, entropies_N = made_2BK.flatten(-2)[:, batch.trained_N]
        return logprobs_N, entropies_N

    @torch.no_grad()
    def _logprobs_of_reference(self, batch: MicroBatch) -> Tensor:
        assert self._reference is not None
        return self.logprobs(batch, self._reference)

    @torch.no_grad()
    def _of_rows(self, rows: Sequence[TrainingRow], score: Callable[[MicroBatch], Tensor]) -> list[Doubles]:
        """[T] of each row, what a score says of each trained token; 0 elsewhere: a pass of its own."""
        return self._size.fit(lambda: scores_of_rows(rows, self.micro_batches(rows), score))

    @torch.no_grad()
    def _unit_means(self, rows: Sequence[TrainingRow]) -> Tensor | None:
        """[U] the mean log ratio of each rollout, by a pass of its own: a rollout's rows may lie in several
        micro-batches. None where no ratio is of a rollout.
        """
        if "unit_means" not in self.recipe.needs:
            return None
        return unit_log_ratios(self.recipe, self.micro_batches(rows), self.logprobs)

    # what a checkpoint and a version hold

    def tensors(self) -> dict[str, Tensor]:
        """`weights/*`, `optimiser/*.<moment>` (none before the first update), `reference/*` of one that moves,
        `critic/*`, torch's generators, `rng/*`, and `micro_batch/*` where it is smaller than the settings say.
        """
        return self._state() | {f"micro_batch/{name}": tensor for name, tensor in self._size.tensors().items()}

    def _state(self) -> dict[str, Tensor]:
        """What a step moves."""
        parts = {"weights": self._optimiser.masters, "optimiser": self._optimiser.tensors()}
        if self._moving is not None:
            parts["reference"] = self._moving.masters
        if self._critic is not None:
            parts["critic"] = self._critic.tensors()
        parts["rng"] = {"cpu": torch.get_rng_state()}
        if self.policy.device.type == "cuda":
            parts["rng"]["cuda"] = torch.cuda.get_rng_state(self.policy.device)
        return {f"{part}/{name}": tensor for part, own in parts.items() for name, tensor in own.items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """A generator of a device that is not here is left out. A reference that does not move yet is the start
        model."""
        parts: defaultdict[str, dict[str, Tensor]] = defaultdict(dict)
        for key, tensor in tensors.items():
            part, _, name = key.partition("/")
            parts[part][name] = tensor
        self._size.restore(parts["micro_batch"])
        self.policy.restore(parts["weights"])
        self._optimiser.restore(parts["optimiser"])
        if self._moving is not None and parts["reference"]:
            self._moving.restore(parts["reference"])
        if self._critic is not None:
            self._critic.restore(parts["critic"])
        torch.set_rng_state(parts["rng"]["cpu"])
        if "cuda" in parts["rng"] and self.policy.device.type == "cuda":
            torch.cuda.set_rng_state(parts["rng"]["cuda"], self.policy.device)

    def export(self) -> dict[str, Tensor]:
        return self.policy.export()

    def adapters(self) -> dict[str, Tensor]:
        masters = self.policy.masters if self.policy.has_adapters else {}
        return {name: master.detach().cpu() for name, master in masters.items()}

    def recall(self, weights: Path, adapters: Path) -> None:
        names, has_adapters = set(self.policy.masters), self.policy.has_adapters
        tensors = read_tensors(adapters if has_adapters else weights, names)
        if len(tensors) < len(names) and not has_adapters:
            # Of a mixture of experts files have a tensor an expert, and the model one of all: transformers stacks them.
            tensors = load_tensors(weights.parent)
        self.policy.restore(tensors)
        for optimiser in self._optimisers:
            optimiser.forget()


def load_learner(
    config: TrainerConfig, recipe: Recipe, handles: TrainerHandles, *, is_told_to_stop: Callable[[], bool]
) -> SingleLearner:
    """The start model, with what the recipe asks besides. Raises ConfigurationError."""
    # Beside the trainer of a replay no engine is started.
    device = configure_torch(config, seed=handles.seed, engine_share=0.0 if handles.history else handles.engine_share)
    needs, moves = "reference" in recipe.needs, recipe.kl_to == "moving"
    reference = load_policy(config, handles.model, device, is_trained=moves) if needs else None
    policy = load_policy(config, handles.model, device)
    critic = load_critic(config, recipe, policy)
    return SingleLearner(policy, config, recipe, reference=reference, critic=critic, is_told_to_stop=is_told_to_stop)
