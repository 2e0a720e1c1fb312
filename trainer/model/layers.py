"""A model's decoder layers: computed again in the backward pass, where memory is short; compiled, on a GPU.

In: a model of transformers, with adapters or without. Out: the same model, names and weights too; computed again, what
it gives stays to the bit on a CPU. Invariant: only the layers themselves are in train mode, in which transformers
computes them again, and no dropout is in force anywhere. Failure: ConfigurationError names the dropout; layers that
torch cannot compile are left as they are, with one line in the log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

from tracegrad.schemas.errors import ConfigurationError

_log = logging.getLogger(__name__)


def layers_of(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The decoder layers, as transformers marks them; none of a family that it cannot compute again."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def recompute_layers(model: Any) -> None:
    """Keeps each layer's input alone for the backward pass, which computes the rest again: about a third more time.

    Raises:
        ConfigurationError: the family cannot, or has a dropout, which train mode would switch on.
    """
    layers = layers_of(model)
    if not layers or not model.supports_gradient_checkpointing:
        raise ConfigurationError(
            f"[trainer] recompute: expected a model whose layers can be computed again, got {model.config.model_type}: "
            "set it to 'none'"
        )
    rates = {name: rate for name, rate in vars(model.config).items() if "drop" in name and isinstance(rate, float)}
    modules = {name: one.p for name, one in model.named_modules() if isinstance(one, torch.nn.Dropout)}
    if on := [name for name, rate in (rates | modules).items() if rate]:
        raise ConfigurationError(
            f"[trainer] recompute: expected a model without dropout, got {', '.join(on)[:200]} above 0: set them to 0 "
            "in its config.json, or recompute to 'none'"
        )
    model.gradient_checkpointing_enable({"use_reentrant": False, "preserve_rng_state": False})
    for layer in layers:
        layer.training = True  # not `train()`, which would reach what is inside it


def compile_layers(model: torch.nn.Module, trial: Callable[[], object], *, backend: Any = "inductor") -> bool:
    """Compiles the layers, as one code for all of them and for rows of any length; whether a pass, `trial`, works."""
    layers = layers_of(model)
    for layer in layers:
        layer.compile(backend=backend, dynamic=True)
    try:
        trial()
    except (RuntimeError, ImportError, OSError, ValueError) as error:
        for layer in layers:
            layer._compiled_call_impl = None
        told = " ".join(str(error).split())[:300]  # the first line names the backend alone
        _log.warning("[trainer] compile: layers are not compiled, which costs time alone: %s", told)
        return False
    return True
