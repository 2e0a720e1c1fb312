"""What the loop asks of whoever holds the weights: a protocol, so that other backends come in beside `single.py`.

In: rows and groups of a batch, tensors of a checkpoint, folders of a version. Out: rows, a StepResult, tensors. All
decisions (which groups, which version, when to stop) are the loop's and the store's, by numbers; where several
processes share a step, each has a Learner, and one alone reads the log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from torch import Tensor

from tracegrad.schemas.records.training import StepResult

from .batch.advantages import Doubles
from .batch.groups import Group
from .batch.rows import TrainingRow

STOPPED = "stopped"
"""`skipped` of a step that was broken off, as if it had not begun."""


class Learner(Protocol):
    """A policy, what optimises it, and its recipe. One thread."""

    @property
    def vocabulary(self) -> int:
        """Rows of the embedding: every token id must be less."""

    @property
    def settings(self) -> dict[str, str]:
        """What a step depends on, by key of `[trainer]` and `[algorithm]`; `auto` as it turned out here."""

    @property
    def machine(self) -> dict[str, str]:
        """What a step's bits depend on besides its batch, settings and seed: who computes, and with what. Two steps of
        equal words and batches are to give equal weights."""

    def rows(self, groups: Sequence[Group], running: Mapping[str, float]) -> tuple[list[TrainingRow], dict[str, float]]:
        """A batch's rows before its first update, in the recipe's form; and the running means after it."""

    def logprobs_of(self, rows: Sequence[TrainingRow]) -> list[Doubles]:
        """[T] of each row: log pi of its trained tokens under the present weights, 0 elsewhere. It moves nothing."""

    def step(self, *updates: Sequence[TrainingRow], version: int, step: int) -> StepResult:
        """Trains on one batch.

        Args:
            updates: the rows of each update, in turn. Those without advantage are counted in the weights and only
                looked at: a forward pass, a third of what training them costs, so that the figures to watch are of all
                tokens. An update without any other row is left out.
            version: the version that the weights are now; -1: of none.
            step: number of the batch, from 1.
        Raises:
            DivergedError: the new weights give NaN or infinite logprobs; they are not to be used.
        """

    def tensors(self) -> dict[str, Tensor]:
        """All that the next step depends on, for a checkpoint."""

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Sets everything to `tensors()`. Raises ConfigurationError: they are of another model."""

    def export(self) -> dict[str, Tensor]:
        """Every tensor of a full model folder, by its Hugging Face name, on the CPU and contiguous."""

    def adapters(self) -> dict[str, Tensor]:
        """What `recall` needs besides: the merged model does not give adapters back. Empty where none train."""

    def recall(self, weights: Path, adapters: Path) -> None:
        """Sets the weights to those of an earlier version's files, with new optimisers. Critic and reference keep their
        weights: no version has older ones.

        Raises:
            OSError: a file is gone. ConfigurationError: it holds another model's tensors.
        """
