"""bfloat16 layers that multiply in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor
from torch.nn.functional import linear

from tracegrad.trainer.model import widened
from tracegrad.trainer.model.widened import WidenedLinear, widen, widen_layers

pytestmark = pytest.mark.torch

BF16_STEP = 2.0**-8
"""Relative: between neighbouring numbers with 8 significant bits."""


def layer(*, bias: bool, rows: int, monkeypatch: pytest.MonkeyPatch) -> torch.nn.Linear:
    """24 -> 20, in pieces of `rows` outputs."""
    monkeypatch.setattr(widened, "_CHUNK_NUMEL", 24 * rows)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(24, 20, bias=bias)).to(torch.bfloat16)
    widen_layers(model)
    (made,) = model
    assert isinstance(made, WidenedLinear)
    return made


def gradients(output: Tensor, *inputs: Tensor) -> list[Tensor]:
    """Of a sum with unequal weights, which bfloat16 can hold."""
    weights = torch.arange(output.numel()).reshape(output.shape) % 7 - 3
    return list(torch.autograd.grad((output.float() * weights).sum(), inputs))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 7, 20, 1000])
def test_results_are_the_float32_products_rounded(bias: bool, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and backward, whatever the pieces: within one rounding of float32 arithmetic on the same numbers."""
    made = layer(bias=bias, rows=rows, monkeypatch=monkeypatch)
    x = torch.randn(2, 5, 24, dtype=torch.bfloat16, requires_grad=True)
    narrow = [x, *made.parameters()]
    wide = [tensor.detach().float().requires_grad_(True) for tensor in narrow]
    output, exact = made(x), linear(*wide)
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.float(), exact, rtol=BF16_STEP, atol=1e-6)
    for got, expected in zip(gradients(output, *narrow), gradients(exact, *wide), strict=True):
        assert got.dtype == torch.bfloat16
        torch.testing.assert_close(got.float(), expected, rtol=BF16_STEP, atol=1e-5)


def test_only_narrow_tensors_wait_for_the_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """A widened copy of each weight would take more memory than a float32 model."""
    made = layer(bias=True, rows=3, monkeypatch=monkeypatch)
    _, kept = kept_for_backward(made, torch.randn(5, 24, dtype=torch.bfloat16, requires_grad=True))
    assert {tensor.data_ptr() for tensor in kept} >= {made.weight.data_ptr()}
    assert {tensor.dtype for tensor in kept} == {torch.bfloat16}


def kept_for_backward(made: torch.nn.Linear, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The output, and the tensors that autograd keeps for it."""
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        return made(x), kept


def test_frozen_weights_get_no_gradient_and_keep_no_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """As under adapters: only the way through the layer is computed."""
    made = layer(bias=True, rows=7, monkeypatch=monkeypatch).requires_grad_(False)
    x = torch.randn(5, 24, dtype=torch.bfloat16, requires_grad=True)
    output, kept = kept_for_backward(made, x)
    assert [tensor.data_ptr() for tensor in kept] == [made.weight.data_ptr()]
    output.float().sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    assert made.weight.grad is None


def test_a_model_keeps_its_tensors_and_its_meaning(untied: Path) -> None:
    """Checkpoints, exports and adapters see the same tensors; logits and gradients change less than by rounding."""
    import transformers

    auto: Any = transformers.AutoModelForCausalLM
    exact, model = (auto.from_pretrained(untied, dtype=dtype).eval() for dtype in (torch.float32, torch.bfloat16))
    before = {name: tensor.data_ptr() for name, tensor in model.state_dict().items()}
    ids = torch.arange(24).reshape(2, 12)
    plain = logits_and_gradient(model, ids)
    widen(model)
    assert {name: tensor.data_ptr() for name, tensor in model.state_dict().items()} == before
    assert isinstance(model.get_output_embeddings(), WidenedLinear)
    wide, expected = logits_and_gradient(model, ids), logits_and_gradient(exact, ids)
    for of_plain, of_wide, of_exact in zip(plain, wide, expected, strict=True):
        assert 0 < error(of_wide, of_exact) < 1.5 * error(of_plain, of_exact)
        assert error(of_plain, of_exact) < 0.1


def logits_and_gradient(model: Any, ids: Tensor) -> tuple[Tensor, Tensor]:
    """In float32; the gradient of the first layer's queries."""
    weight = model.model.layers[0].self_attn.q_proj.weight
    logits = model(ids).logits.float()
    (gradient,) = torch.autograd.grad(torch.log_softmax(logits, -1)[..., 5].sum(), [weight])
    return logits.detach(), gradient.float()


def error(found: Tensor, exact: Tensor) -> float:
    """Relative, of norms."""
    return float((found - exact).norm() / exact.norm())


def test_float32_layers_are_left_alone() -> None:
    """Adapters, say."""
    exact = torch.nn.Linear(3, 3)
    widen_layers(exact)
    assert type(exact) is torch.nn.Linear
