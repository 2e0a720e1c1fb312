"""bfloat16 layers on a CPU without bfloat16 instructions: the weights stay narrow, the products are float32.

In: a model in bfloat16. Out: the same model, whose linear layers widen a piece of their weight at a time, and whose
attention is float32: as fast as float32 at half of its memory, where the CPU's own bfloat16 product takes 7 times as
long. Invariant: the results are those of bfloat16 arithmetic with float32 sums, since a product of two bfloat16 numbers
is exact in float32.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import Tensor
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

__all__ = ["WidenedLinear", "widen", "widen_layers"]

_CHUNK_NUMEL = 1 << 20
"""Of a weight that is widened at a time: 4 MiB in float32, which a CPU's cache keeps for the product."""
_ATTENTION = "widened_sdpa"


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
    """x W^T + b. Kept for the way back: the narrow x and W, no widened copy."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight_OI)
        wide = x.float()
        product = torch.cat([torch.nn.functional.linear(wide, chunk.float()) for chunk in _chunks(weight_OI)], dim=-1)
        return (product if bias_O is None else product + bias_O.float()).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        (grad,) = grads
        x, weight_OI = ctx.saved_tensors
        grad_NO = grad.reshape(-1, grad.shape[-1]).float()
        grad_x = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            chunks = _chunks(weight_OI)
            sums_NI = grad_NO.new_zeros(grad_NO.shape[0], weight_OI.shape[1])
            parts_NO = torch.split(grad_NO, [len(chunk) for chunk in chunks], dim=-1)
            for part_NO, chunk in zip(parts_NO, chunks, strict=True):
                sums_NI.addmm_(part_NO, chunk.float())
            grad_x = sums_NI.reshape(x.shape).to(x.dtype)
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


def _chunks(weight_OI: Tensor) -> tuple[Tensor, ...]:
    return torch.split(weight_OI, max(1, _CHUNK_NUMEL // weight_OI.shape[1]))
