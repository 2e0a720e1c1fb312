"""How much a forward pass holds: as many padded tokens as `[trainer]` says, or fewer where memory runs out.

In: rows of a pass; the pass as a function. Out: its micro-batches, each with a beat; what the function gives, begun
again with smaller micro-batches each time memory ran out. Invariant: a pass that is begun again is the pass that the
smaller size would have given from the start, bit for bit on equal kernels; so no gradient and no figure outlives a try,
and the size in force is in the checkpoint. Below one row the layers are computed again in the backward pass.
Failure: ConfigurationError, with the row's length and the longest of its pass that fits.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from tracegrad.schemas.beat import busy
from tracegrad.schemas.errors import ConfigurationError

from ..batch.packing import MicroBatch, micro_batches
from ..batch.rows import TrainingRow
from ..config import TrainerConfig
from ..model.policy import Policy
from ..optimiser import Optimiser

_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")
_IN_FORCE = "in_force"


class MicroBatchSize:
    """Of one learner; one thread."""

    def __init__(self, config: TrainerConfig, models: Sequence[Policy], optimisers: Sequence[Optimiser]) -> None:
        """`models`: the policy first, then those whose passes are made of the same rows."""
        self._config, self._models, self._optimisers = config, models, optimisers
        self._device = models[0].device
        self._configured = config.micro_batch_tokens or (1024 if self._device.type == "cpu" else 16384)
        self.tokens = self._configured
        """In force."""
        self._recomputes = False
        self._rows: Sequence[TrainingRow] = ()
        self._handed: Sequence[int] = ()
        """Which rows the newest micro-batch is made of."""

    def micro_batches(self, rows: Sequence[TrainingRow]) -> Iterator[MicroBatch]:
        """On the device, each with a beat."""
        for batch in micro_batches(rows, max_tokens=self.tokens, packing=self._config.packing):
            self._rows, self._handed = rows, batch.places
            # Until the caller asks for the next one.
            with busy("a micro-batch", batch.input_ids_BL.numel()):
                yield batch.to(self._device)

    def fit(self, work: Callable[[], _Result], *, undo: Callable[[], object] = lambda: None) -> _Result:
        """What `work` gives, from its beginning each time that memory runs out; `undo` takes back what a try moved."""
        while True:
            try:
                return work()
            except torch.OutOfMemoryError as error:
                told = str(error).partition("\n")[0][:200]
            # Out here: while the error is handled it holds the pass's frames, and these its tensors.
            self._clear()
            undo()
            self._shrink(told)

    def _clear(self) -> None:
        for optimiser in self._optimisers:
            optimiser.drop_gradients()
        for model in self._models:
            model.drop_gradients()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _shrink(self, told: str) -> None:
        num, longest = len(self._handed), max(len(self._rows[place].token_ids_T) for place in self._handed)
        if num > 1:
            self.tokens = min(self.tokens, num * longest) // 2
            _log.warning("out of memory: micro-batches of %d tokens from here on (%s)", self.tokens, told)
            return
        if self._config.recompute == "auto" and not self._recomputes and torch.is_grad_enabled():
            self._recompute()
            _log.warning("out of memory at a row of %d tokens: layers are now computed again (%s)", longest, told)
            return
        fitting = sorted((row for row in self._rows if len(row.token_ids_T) < longest), key=_length)
        num_fitting = bisect_left(fitting, True, key=lambda row: not self._fits(row))
        most = _length(fitting[num_fitting - 1]) if num_fitting else 0
        raise ConfigurationError(
            f"[trainer] max_row_tokens: expected rows that a pass has memory for, got one of {longest} tokens; the "
            f"longest of the batch that fits has {most}. Set max_row_tokens to what fits (longer rows are excluded as "
            f"too_long), lower micro_batch_logits, or train adapters or a smaller model ({told})"
        )

    def _recompute(self) -> None:
        self._recomputes = True
        for model in self._models:
            model.recompute_layers()

    def _fits(self, row: TrainingRow) -> bool:
        (batch,) = micro_batches([row], max_tokens=1)
        fits = True
        try:
            limit = self._config.micro_batch_logits
            logprobs_BK = self._models[0].logprobs(batch.to(self._device), max_logits=limit)
            if torch.is_grad_enabled():
                logprobs_BK.sum().backward()  # type: ignore[no-untyped-call]
        except torch.OutOfMemoryError:
            fits = False
        self._clear()
        return fits

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint holds; nothing where all is as configured."""
        is_changed = self._recomputes or self.tokens != self._configured
        in_force = (self._configured, self.tokens, int(self._recomputes))
        return {_IN_FORCE: torch.tensor(in_force)} if is_changed else {}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes `tensors()` back, unless the settings say another size than they did then."""
        configured, tokens, recomputes = tensors.get(_IN_FORCE, torch.zeros(3, dtype=torch.int64)).tolist()
        if configured == self._configured:
            self.tokens = tokens
        if recomputes and self._config.recompute == "auto" and not self._recomputes:
            self._recompute()


def _length(row: TrainingRow) -> int:
    return len(row.token_ids_T)
