"""bfloat16 layers on a CPU without bfloat16 instructions: the weights stay narrow, the products are float32.

In: a model in bfloat16. Out: the same model, whose linear layers widen a piece of their weight at a time, and whose
attention is float32: about as fast as float32 with weights of half the size, where the CPU's own bfloat16 product
takes 7 times as long (`benchmarks/bfloat16_products.py`). Invariant: the results are those of bfloat16 arithmetic with
float32 sums, since a product of two bfloat16 numbers is exact in float32. The engine's plug-in does so for inference.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

__all__ = ["WidenedLinear", "multiplies_bfloat16", "widen", "widen_layers"]

_CHUNK_NUMEL = 1 << 20
"""Of a weight that is widened at a time: 4 MiB in float32, which a CPU's cache keeps for the product."""
_ATTENTION = "widened_sdpa"


def multiplies_bfloat16() -> bool:
    """Whether this CPU has instructions for it."""
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def widen(model: transformers.PreTrainedModel) -> None:
    """Makes every linear layer of a bfloat16 model a WidenedLinear, in place, and its scaled attention float32."""
    widen_layers(model)
    if model.dtype == torch.bfloat16 and model.config._attn_implementation == "sdpa":
        transformers.AttentionInterface.register(_ATTENTION, _widened_attention)
        transformers.AttentionMaskInterface.register(_ATTENTION, sdpa_mask)
        model.set_attn_implementation(_ATTENTION)


def widen_layers(model: torch.nn.Module) -> None:
    """The linear layers alone."""
    for module in model.modules():
        if type(module) is torch.nn.Linear and module.weight.dtype == torch.bfloat16:
            module.__class__ = WidenedLinear


class WidenedLinear(torch.nn.Linear):
    """A linear layer in bfloat16 that multiplies and sums in float32, forward and backward."""

    def forward(self, input: Tensor) -> Tensor:
        """[..., in] -> [..., out], both bfloat16."""
        output: Tensor = _WidenedProduct.apply(input, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return output


class _WidenedProduct(torch.autograd.Function):
    """x W^T + b. Kept for the way back: the narrow W, and x where W trains."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight_OI)
        wide, product = x.float(), x.new_empty(*x.shape[:-1], len(weight_OI))
        for outputs, chunk in _chunks(weight_OI):
            bias = None if bias_O is None else bias_O[outputs].float()
            product[..., outputs] = torch.nn.functional.linear(wide, chunk.float(), bias)
        return product

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight_OI = ctx.saved_tensors
        grad = grads[0].float()
        grad_NO = grad.reshape(-1, grad.shape[-1])
        grad_x = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            sums_NI = grad_NO.new_zeros(len(grad_NO), weight_OI.shape[1])
            for outputs, chunk in _chunks(weight_OI):
                sums_NI.addmm_(grad_NO[:, outputs], chunk.float())
            grad_x = sums_NI.reshape(*grad.shape[:-1], -1).to(weight_OI.dtype)
        if ctx.needs_input_grad[1]:
            grad_weight = (grad_NO.T @ x.reshape(-1, x.shape[-1]).float()).to(weight_OI.dtype)
        if ctx.needs_input_grad[2]:
            grad_bias = grad_NO.sum(0).to(weight_OI.dtype)
        return grad_x, grad_weight, grad_bias


def _widened_attention(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, *given: Any, **more: Any
) -> tuple[Tensor, None]:
    output, _ = sdpa_attention_forward(module, query.float(), key.float(), value.float(), *given, **more)
    return output.to(query.dtype), None


def _chunks(weight_OI: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Pieces of the weight, each with the outputs that it gives."""
    rows = max(1, _CHUNK_NUMEL // weight_OI.shape[1])
    for start in range(0, len(weight_OI), rows):
        yield slice(start, start + rows), weight_OI[start : start + rows]
