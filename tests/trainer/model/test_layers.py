"""Layers that are computed again: the step stays, to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch._dynamo.testing import CompileCounterWithBackend

from tests.tiny_models import make_model
from tests.trainer.model.policies import loaded
from tests.trainer.test_step import is_equal, learner_of, row
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.trainer.model.layers import layers_of, recompute_layers

pytestmark = pytest.mark.torch

FAMILIES: dict[str, dict[str, Any]] = {"Qwen2": {}, "Llama": {}, "Gemma3Text": {"head_dim": 16}}
SIZES = {"vocab_size": 261, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
         "num_attention_heads": 2, "num_key_value_heads": 1,
         "pad_token_id": 256, "bos_token_id": 257, "eos_token_id": 258}  # fmt: skip


def small(name: str, **changes: Any) -> Any:
    """A random model of a family."""
    import transformers

    library: Any = transformers
    torch.manual_seed(0)
    config = getattr(library, f"{name}Config")(**SIZES, **FAMILIES[name], **changes)
    return getattr(library, f"{name.removesuffix('Text')}ForCausalLM")(config)


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder with a small random model of it."""
    folder = make_model(tmp_path / request.param)
    small(request.param).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("changes", [{}, {"dtype": "bfloat16"}, {"lora_rank": 4}], ids=["full", "bfloat16", "lora"])
def test_a_step_with_layers_computed_again_is_the_step_without(changes: dict[str, Any], family: Path) -> None:
    """Loss, norm and weights; each layer is passed once more, in the backward pass."""
    results = []
    for recompute in ("none", "layers"):
        learner, passes = learner_of(family, recompute=recompute, **changes), list[str]()
        layers: list[Any] = [*layers_of(learner.policy.causal)]
        for layer in layers:
            layer.self_attn.register_forward_hook(lambda *_, passes=passes: passes.append(""))
        told = [learner.step([row(seed=s), row(-1.0, seed=9)], version=0, step=1 + s) for s in (0, 1)]
        results.append(([(one.loss, one.grad_norm) for one in told], learner.tensors(), len(passes)))
        assert {layer.training for layer in layers} == {recompute == "layers"}
        assert not any(one.training for layer in layers for one in layer.modules() if one is not layer)
    (none, weights, num), (again, same, more) = results
    assert none == again and is_equal(weights, same)
    # Of a step: each layer once, and once in the look at the new weights.
    assert (num, more) == (2 * 2 * 2, 2 * 2 * 3)


def test_a_dropout_is_refused_where_train_mode_would_switch_it_on() -> None:
    """By its name in the configuration."""
    with pytest.raises(ConfigurationError, match=r"recompute: .*without dropout, got attention_dropout above 0"):
        recompute_layers(small("Llama", attention_dropout=0.1))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # torch's own, as it traces
@pytest.mark.timeout(400)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "lora_rank"), [("Qwen2", 4), ("Llama", None), ("Gemma3Text", None)], indirect=["family"]
)
def test_compiled_layers_give_what_the_others_give(lora_rank: int | None, family: Path) -> None:
    """Logits and gradients at two lengths, by one code: at most two are made after the first."""
    eager, compiled = loaded(family, lora_rank=lora_rank), loaded(family, lora_rank=lora_rank)
    counter = CompileCounterWithBackend("aot_eager")
    torch._dynamo.reset()
    assert compiled.compile_layers(backend=counter)
    for length in (9, 14):
        found = []
        for policy in (eager, compiled):
            ids = torch.arange(3 * length).reshape(3, length) + 30
            logits = policy.logits(ids, torch.arange(length))
            logits.logsumexp(-1).mean().backward()  # type: ignore[no-untyped-call]
            found.append((logits.detach(), {name: master.grad for name, master in policy.masters.items()}))
            policy.drop_gradients()
        torch.testing.assert_close(*(logits for logits, _ in found), rtol=0, atol=0)
        torch.testing.assert_close(*(grads for _, grads in found), rtol=0, atol=0)
    assert 1 <= counter.frame_count <= 3
    assert compiled.export().keys() == eager.export().keys()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_layers_that_do_not_compile_stay_as_they_are(untied: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One line says why; the step is the one of the others, gradients of the trial are none of it."""

    def broken(*_: Any) -> Any:
        raise RuntimeError("no compiler\nof this GPU")

    learner, plain = learner_of(untied), learner_of(untied)
    torch._dynamo.reset()
    assert not learner.policy.compile_layers(backend=broken)
    (said,) = (one.getMessage() for one in caplog.records if one.name.startswith("tracegrad"))
    assert "no compiler" in said and "\n" not in said
    results = [one.step([row()], version=0, step=1).loss for one in (learner, plain)]
    assert results[0] == results[1] and is_equal(learner.tensors(), plain.tensors())


def test_nothing_is_computed_again_unless_it_is_asked_for(untied: Path) -> None:
    """`auto` waits until memory runs out."""
    assert not any(layer.training for layer in layers_of(loaded(untied).causal))
