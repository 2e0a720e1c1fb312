"""The trained model: loaded from a Hugging Face folder, optimised in float32, exported as an engine wants it.

In: a folder with config and safetensors. Out: trainable tensors by name, and full folders' tensors (adapters
merged, a tied lm_head written out). Invariants: safetensors only, no code from the folder, and every tensor that
an engine loads is exported, since an engine whose tied head is not sent keeps the old one without saying so.
On failure: ConfigurationError names the folder and the remedy.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tracegrad.schemas.errors import ConfigurationError

from ..algorithm.logprobs import sampled_logprobs
from ..batch.packing import MicroBatch
from ..config import TrainerConfig
from .adapters import merged_state, with_adapters
from .hidden import last_hidden, require_trees
from .layers import compile_layers, recompute_layers
from .read_model import read_model

_log = logging.getLogger(__name__)
_HEAD = "lm_head.weight"
_MARGIN = 0.05
"""Of a shared GPU's memory: two CUDA contexts, and what their libraries take beyond what torch counts."""
_SCALES = ("logit_scale", "logits_scaling", "lm_head_multiplier")
"""Keys of models' configurations by which logits are multiplied, or divided: the same key either way."""
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def configure_torch(config: TrainerConfig, *, seed: int, engine_share: float = 0.0) -> torch.device:
    """Threads, seed and determinism of this process; the device to train on. Where an engine has a share of the GPU,
    the trainer has the rest, less a margin: else the engine would find no memory when it is started again.

    Raises:
        ConfigurationError: torch does not see that GPU.
    """
    # Rows of all lengths leave holes in segments of fixed sizes. This too is read once, when CUDA starts.
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    if config.deterministic:
        # cuBLAS sums in an order of its own where it has no fixed workspace; it reads this once, when CUDA starts.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(config.threads)
    torch.manual_seed(seed)
    num_gpus = torch.cuda.device_count()
    device = torch.device(("cuda" if num_gpus else "cpu") if config.device == "auto" else config.device)
    if device.type == "cuda" and (device.index or 0) >= num_gpus:
        raise ConfigurationError(
            f"[trainer] device: expected one of the {num_gpus} GPUs that torch sees, got {config.device!r}: set it to "
            "'cpu' or another GPU; see nvidia-smi, CUDA_VISIBLE_DEVICES and torch.version.cuda"
        )
    if device.type == "cuda":
        torch.cuda.set_device(number := device.index or 0)
        if engine_share:
            torch.cuda.set_per_process_memory_fraction(max(_MARGIN, 1.0 - engine_share - _MARGIN), number)
    is_deterministic = device.type == "cpu" if config.deterministic is None else config.deterministic
    torch.use_deterministic_algorithms(is_deterministic)
    # Else each torch.empty is filled with NaN, to show reads of memory nobody wrote: a cost per tensor.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cuda.enable_cudnn_sdp(not is_deterministic)
    return device


def _dtype(config: TrainerConfig, device: torch.device) -> torch.dtype:
    if config.dtype == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    return _DTYPES[config.dtype]


def _multiplies_bfloat16() -> bool:
    """Whether this CPU has instructions for it."""
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))


class Policy:
    """A causal language model whose trainable tensors have float32 masters.

    Where the model itself is float32 a master is the parameter; else the model holds the masters' rounding, which is
    also what engines serve: updates smaller than bfloat16's steps add up in the masters instead of vanishing.
    So it is with adapters; what engines get is their sum with the frozen weights, rounded once more. There the
    difference between trainer and sampler is part of the ratio, which is against the sampler's own logprobs.
    """

    def __init__(
        self, model: torch.nn.Module, device: torch.device, *, publish_dtype: torch.dtype | None = None
    ) -> None:
        self._model: Any = model
        self.causal: Any = cast(Any, model).get_base_model() if hasattr(model, "peft_config") else model
        """The model as transformers has it, adapters in its layers."""
        self._publish_dtype = publish_dtype
        self._times, self._over = 1.0, 1.0
        """What the model does to the product of hidden states and head."""
        self.device = device
        self._parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        self.masters: dict[str, Tensor] = {
            name: parameter
            if parameter.dtype == torch.float32
            else parameter.detach().float().clone().requires_grad_(True)
            for name, parameter in self._parameters.items()
        }
        """Trainable tensors by name, float32; what the optimiser and the checkpoint hold."""

    @property
    def vocabulary(self) -> int:
        """Rows of the embedding: every token id must be less."""
        return int(self._model.get_input_embeddings().weight.shape[0])

    @property
    def width(self) -> int:
        """D, of a hidden state."""
        return int(self.causal.get_output_embeddings().weight.shape[1])

    @property
    def has_adapters(self) -> bool:
        """Whether low-rank adapters train, over frozen weights."""
        return hasattr(self._model, "peft_config")

    @property
    def model_dtype(self) -> torch.dtype:
        """Of the model's own weights, in which it computes."""
        dtype: torch.dtype = self._model.get_input_embeddings().weight.dtype
        return dtype

    @property
    def dtype(self) -> torch.dtype:
        """Of the files that are published: the model's, unless the configuration names another."""
        return self._publish_dtype or self.model_dtype

    def logits(self, input_ids_BL: Tensor, keep_K: Tensor) -> Tensor:
        """[B, K, V] logits at the kept positions; attention is causal, rows do not see each other."""
        logits: Tensor = self._model(input_ids=input_ids_BL, logits_to_keep=keep_K, use_cache=False).logits
        return logits

    def hidden(self, batch: MicroBatch) -> Tensor:
        """[B, K, D] last hidden states before the batch's targets."""
        return last_hidden(self.causal, batch.input_ids_BL, batch.depths_BL, batch.sees_BLL)[:, batch.keep_K]

    def head(self, hidden_BKD: Tensor) -> Tensor:
        """[B, K, V] logits of the last hidden states."""
        logits_BKV: Tensor = self.causal.get_output_embeddings()(hidden_BKD)
        if (self._times, self._over) != (1.0, 1.0):
            logits_BKV = logits_BKV * self._times / self._over
        cap = getattr(self.causal.config, "final_logit_softcapping", None)
        return logits_BKV if cap is None else torch.tanh(logits_BKV / cap) * cap

    def logprobs(
        self, batch: MicroBatch, *, max_logits: int, score: Callable[..., Tensor] = sampled_logprobs
    ) -> Tensor:
        """[B, K] log pi of the batch's targets, float32, at the temperatures they were sampled with; or what `score`
        makes of logits, [.., B, K].

        Args:
            max_logits: how many logits may exist at once (at least one position of each row). Where there are more, the
                head is computed in pieces whose logits are dropped and computed again in the backward pass (gradient
                checkpointing, arXiv:1604.06174): a vocabulary of 152 k and 16,384 tokens would take 10 GB a copy.
        """
        hidden_BKD, (rows, kept) = self.hidden(batch), batch.targets_BK.shape
        length = max(1, max_logits // (rows * self.vocabulary))
        if length >= kept:
            return score(self.head(hidden_BKD), batch.targets_BK, batch.temperatures_BK)

        def piece(hidden_BkD: Tensor, targets_Bk: Tensor, temperatures_Bk: Tensor | None = None) -> Tensor:
            return score(self.head(hidden_BkD), targets_Bk, temperatures_Bk)

        whole = [hidden_BKD, batch.targets_BK, *([] if batch.temperatures_BK is None else [batch.temperatures_BK])]
        pieces = zip(*(torch.split(tensor, length, dim=1) for tensor in whole), strict=True)
        return torch.cat([checkpoint(piece, *part, use_reentrant=False) for part in pieces], dim=-1)

    @torch.no_grad()
    def match_head(self) -> None:
        """Finds by what the model scales its logits, as Granite divides them and Cohere multiplies: one of _SCALES of
        its configuration, whichever way gives the model's own logits best.

        Raises ConfigurationError where none does: it does more between hidden states and logits than `head`.
        """
        ids_BL = torch.arange(2, 6, device=self.device)[None]
        hidden_BLD = last_hidden(self.causal, ids_BL)
        expected_BLV = self.logits(ids_BL, ids_BL[0] - 2)
        config = self.causal.config
        scales = [float(scale) for name in _SCALES if (scale := getattr(config, name, None))]
        found: list[tuple[float, tuple[float, float]]] = []
        for ways in ((1.0, 1.0), *((scale, 1.0) for scale in scales), *((1.0, scale) for scale in scales)):
            self._times, self._over = ways
            errors_BLV = (self.head(hidden_BLD) - expected_BLV).abs().nan_to_num()
            found.append((float(errors_BLV.max()), ways))
        _, (self._times, self._over) = min(found, key=lambda one: one[0])  # of equals the first, which scales nothing
        if not torch.allclose(self.head(hidden_BLD), expected_BLV, rtol=1e-3, atol=1e-3, equal_nan=True):
            raise ConfigurationError(
                "[policy] model: expected logits that are the product of hidden states and head, perhaps scaled by "
                f"{', '.join(_SCALES)}, got a model ({config.model_type}) that makes them otherwise: take another one"
            )

    def collect_gradients(self) -> None:
        """Adds the model's gradients to the masters', after each backward pass."""
        for name, parameter in self._parameters.items():
            master = self.masters[name]
            if master is parameter or parameter.grad is None:
                continue
            if master.grad is None:
                master.grad = parameter.grad.float()
            else:
                master.grad.add_(parameter.grad)
            parameter.grad = None

    def drop_gradients(self) -> None:
        """Of the model's parameters, which a broken-off pass left behind; the masters' are the optimiser's."""
        for parameter in self._parameters.values():
            parameter.grad = None

    def recompute_layers(self) -> None:
        """`layers.recompute_layers`, of this model."""
        recompute_layers(self.causal)

    def compile_layers(self, *, backend: Any = "inductor") -> bool:
        """`layers.compile_layers`, of this model; a pass of two short rows is tried, backward too where it trains."""

        def trial() -> None:
            ids_BL = torch.arange(2, 18, device=self.device).reshape(2, 8)
            logits_BKV = self.logits(ids_BL, ids_BL[0] - 2)
            if self._parameters:
                logits_BKV.sum().backward()  # type: ignore[no-untyped-call]

        is_compiled = compile_layers(self.causal, trial, backend=backend)
        self.drop_gradients()
        return is_compiled

    @torch.no_grad()
    def refresh(self) -> None:
        """Rounds the masters into the model, after they changed."""
        pairs = [(one, self.masters[name]) for name, one in self._parameters.items() if self.masters[name] is not one]
        if pairs:
            torch._foreach_copy_([one for one, _ in pairs], [master for _, master in pairs])

    @torch.no_grad()
    def approach(self, other: Policy, share: float) -> None:
        """Goes a share of the way to another's masters; 1: takes them."""
        for name, master in self.masters.items():
            master.lerp_(other.masters[name], share)
        self.refresh()

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Sets all masters. Raises ConfigurationError when names or shapes differ."""
        got = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        expected = {name: tuple(master.shape) for name, master in self.masters.items()}
        if got != expected:
            raise ConfigurationError(
                f"expected {len(expected)} trainable tensors of the model's names and shapes, got {len(got)} that "
                "differ: [policy] model or [trainer] lora_rank changed since this run began; use another run"
            )
        for name, master in self.masters.items():
            master.copy_(tensors[name])
        self.refresh()

    @torch.no_grad()
    def export(self) -> dict[str, Tensor]:
        """Every tensor of a full model folder, by its Hugging Face name, on the CPU and contiguous."""
        from transformers.core_model_loading import revert_weight_conversion

        base, state = merged_state(self._model)
        head = base.get_output_embeddings()
        if head is not None and _HEAD not in state and isinstance(head, torch.nn.Linear) and head.bias is None:
            state[_HEAD] = head.weight
        converted: dict[str, Tensor] = revert_weight_conversion(base, state)
        seen: set[int] = set()
        exported: dict[str, Tensor] = {}
        for name in sorted(converted):
            tensor = converted[name].detach().to("cpu")
            if self._publish_dtype is not None and tensor.is_floating_point():
                tensor = tensor.to(self._publish_dtype)
            tensor = tensor.contiguous()
            # Two names of one memory (a tied head): safetensors refuses to write shared storage twice.
            exported[name] = tensor.clone() if tensor.data_ptr() in seen else tensor
            seen.add(tensor.data_ptr())
        return exported


def load_policy(config: TrainerConfig, base: str, device: torch.device, *, is_trained: bool = True) -> Policy:
    """The base model, ready to train (dropout off: its logprobs must be the sampler's), or frozen, as a reference."""
    folder = Path(base)
    if not (folder / "config.json").is_file() or not list(folder.glob("*.safetensors")):
        raise ConfigurationError(
            f"[policy] model: expected a folder with config.json and *.safetensors, got {folder}; "
            "convert other formats first (save_pretrained with safe_serialization)"
        )
    model, _ = read_model(folder, _dtype(config, device))
    model.to(device).eval().requires_grad_(is_trained)
    if model.dtype == torch.bfloat16 and device.type == "cpu" and not _multiplies_bfloat16():
        _log.warning(
            "[trainer] dtype: this CPU has no bfloat16 instructions, products take several times as long as in "
            "float32; set dtype = 'float32' in [trainer] and [engine]"
        )
    if config.lora_rank is not None and is_trained:
        model = with_adapters(model, rank=config.lora_rank, alpha=config.lora_alpha)
    policy = Policy(model, device, publish_dtype=_DTYPES.get(config.publish_dtype))
    policy.match_head()
    if config.packing == "tree":
        require_trees(policy.causal)
    if config.recompute == "layers" and is_trained:
        policy.recompute_layers()
    if config.compile == "auto" and device.type == "cuda":
        policy.compile_layers()
    _log.info(
        "model loaded: %d of %d parameters train, published as %s, device=%s",
        sum(master.numel() for master in policy.masters.values()),
        sum(parameter.numel() for parameter in model.parameters()),
        policy.dtype,
        device,
    )
    return policy
