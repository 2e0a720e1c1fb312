"""Low-rank adapters: on a model, and added to its weights.

In: a model of transformers. Out: the same with adapters on its linear layers; the tensors of a model without them.
Invariant: merging touches no live weight, and adds in float32 what the model computes with. Failure:
ConfigurationError: a mixture of experts, whose adapters no engine could load.
"""

from __future__ import annotations

import warnings
from typing import Any

from torch import Tensor

from tracegrad.schemas.errors import ConfigurationError


def with_adapters(model: Any, *, rank: int, alpha: int) -> Any:
    """Adapters on all linear layers, in the model's dtype. Raises ConfigurationError."""
    import peft

    if any("experts" in name.split(".") for name, _ in model.named_parameters()):
        raise ConfigurationError(
            "[trainer] lora_rank: expected a model without experts, got a mixture of experts "
            f"({model.config.model_type}), whose stacked experts take no adapters that engines could load: leave "
            "lora_rank out (every weight trains) or take a dense model"
        )
    adapters = peft.LoraConfig(
        r=rank,
        lora_alpha=alpha,
        lora_dropout=0.0,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    with warnings.catch_warnings():
        # peft warns of tied embeddings although no adapter touches them; exports write the head out.
        warnings.simplefilter("ignore")
        return peft.get_peft_model(model, adapters, autocast_adapter_dtype=False).eval()


def merged_state(model: Any) -> tuple[Any, dict[str, Tensor]]:
    """The base model and its tensors, low-rank adapters added in float32 without touching the live weights."""
    if not hasattr(model, "peft_config"):
        return model, dict(model.state_dict())
    from peft.tuners.lora.layer import LoraLayer

    base = model.get_base_model()
    state = {
        name.replace(".base_layer.", "."): tensor for name, tensor in base.state_dict().items() if ".lora_" not in name
    }
    layers: Any = {f"{name}.weight": module for name, module in base.named_modules() if isinstance(module, LoraLayer)}
    for name, layer in layers.items():
        # As peft's get_delta_weight, which multiplies in the adapters' own dtype.
        delta = layer.lora_B["default"].weight.float() @ layer.lora_A["default"].weight.float()
        delta = (delta.T if layer.fan_in_fan_out else delta) * layer.scaling["default"]
        state[name] = (state[name].float() + delta).to(state[name].dtype)
    return base, state
