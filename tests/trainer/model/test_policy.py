"""Loading and exporting: what engines get is what is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from safetensors.torch import load_file

from tests.tiny_models import make_model
from tests.trainer.model.policies import IDS, KEEP, disturb, loaded, opened, published
from tracegrad.schemas.errors import ConfigurationError

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("kind", ["tied", "untied"])
@pytest.mark.parametrize("lora_rank", [None, 4], ids=["full", "lora"])
def test_export_opens_in_transformers_with_equal_logits(
    kind: str, lora_rank: int | None, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """After the weights moved; the head is written out even when it is tied."""
    base: Path = request.getfixturevalue(kind)
    policy = loaded(base, lora_rank=lora_rank)
    before = policy.logits(IDS, KEEP).detach()
    disturb(policy)
    folder = published(policy, base, tmp_path)
    with torch.no_grad():
        expected, got = policy.logits(IDS, KEEP), opened(folder)(IDS).logits
    assert float((expected - before).abs().max()) > 1e-2
    torch.testing.assert_close(got, expected, atol=1e-5 if lora_rank else 0, rtol=1e-5 if lora_rank else 0)
    tensors = load_file(folder / "model.safetensors")
    assert "lm_head.weight" in tensors
    if kind == "tied":
        assert torch.equal(tensors["lm_head.weight"], tensors["model.embed_tokens.weight"])
    assert not any("lora" in name or "base_layer" in name for name in tensors)


def test_export_names_every_tensor_of_the_base(untied: Path) -> None:
    """Neither more nor less than the model's file."""
    assert loaded(untied).export().keys() == load_file(untied / "model.safetensors").keys()


def test_merging_leaves_the_live_weights_alone(untied: Path) -> None:
    """Publishing must not move what is trained."""
    policy = loaded(untied, lora_rank=4)
    disturb(policy)
    before = policy.logits(IDS, KEEP).detach()
    policy.export()
    assert torch.equal(policy.logits(IDS, KEEP).detach(), before)


def test_bfloat16_adapters_train_in_float32_and_merge(untied: Path) -> None:
    """The real input's setting: what is exported is what was trained, to bfloat16's rounding."""
    policy = loaded(untied, dtype="bfloat16", lora_rank=4)
    assert {master.dtype for master in policy.masters.values()} == {torch.float32}
    assert {parameter.dtype for parameter in policy._parameters.values()} == {torch.bfloat16}
    base = policy.export()
    disturb(policy)
    moved = policy.export()
    assert {tensor.dtype for tensor in moved.values()} == {torch.bfloat16}
    changed = {name for name in base if not torch.equal(base[name], moved[name])}
    assert changed == {name for name in base if "_proj" in name and name.endswith("weight")}
    policy.logits(IDS, KEEP).float().mean().backward()  # type: ignore[no-untyped-call]
    policy.collect_gradients()
    assert all(master.grad is not None for master in policy.masters.values())


def test_adapters_below_bfloat16s_steps_train_and_are_not_served_yet(untied: Path) -> None:
    """The trainer goes on from the unrounded adapters; engines get the nearest bfloat16 of weights and adapters."""
    policy = loaded(untied, dtype="bfloat16", lora_rank=4)
    base, before = policy.export(), policy.logits(IDS, KEEP).detach()
    names = [name for name in base if "_proj" in name and name.endswith("weight")]
    for scale, least, most in ((1e-3, 0.0, 0.3), (1e-1, 0.9, 1.0)):
        policy.restore({name: torch.full_like(master, scale) for name, master in policy.masters.items()})
        moved = policy.export()
        assert not torch.equal(policy.logits(IDS, KEEP).detach(), before)
        changed = torch.cat([(moved[name] != base[name]).flatten() for name in names])
        assert least < float(changed.float().mean()) <= most


@pytest.mark.parametrize(
    ("dtype", "has_instructions", "is_warned"),
    [("bfloat16", False, True), ("bfloat16", True, False), ("float32", False, False)],
)
def test_bfloat16_is_warned_of_where_the_cpu_cannot_multiply_it(
    dtype: str,
    has_instructions: bool,
    is_warned: bool,
    untied: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It trains, slowly; the warning names the remedy."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": has_instructions})
    loaded(untied, dtype=dtype)
    assert ("set dtype = 'float32'" in caplog.text) is is_warned


def test_bfloat16_steps_add_up_in_the_masters(untied: Path) -> None:
    """Ten moves of 1e-5 vanish in bfloat16 one by one; in the float32 master they are 1e-4."""
    policy = loaded(untied, dtype="bfloat16")
    name = "lm_head.weight"
    assert policy.dtype == torch.bfloat16
    assert policy.masters[name].dtype == torch.float32
    start = policy.masters[name].detach().clone()
    for _ in range(10):
        with torch.no_grad():
            policy.masters[name].add_(1e-5)
        policy.refresh()
    torch.testing.assert_close(policy.masters[name] - start, torch.full_like(start, 1e-4), atol=1e-6, rtol=0)
    assert torch.equal(policy.export()[name], policy.masters[name].detach().to(torch.bfloat16))


def test_bfloat16_gradients_reach_the_masters(untied: Path) -> None:
    """Summed over backward passes."""
    policy = loaded(untied, dtype="bfloat16")
    for _ in range(2):
        policy.logits(IDS, KEEP).float().mean().backward()  # type: ignore[no-untyped-call]
        policy.collect_gradients()
    grads = [master.grad for master in policy.masters.values()]
    assert all(grad is not None and grad.dtype == torch.float32 for grad in grads)


@pytest.fixture(scope="session")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3-MoE of four experts, two of them used by a token."""
    import transformers

    folder = make_model(tmp_path_factory.mktemp("models") / "mixture", "qwen3")
    torch.manual_seed(0)
    library: Any = transformers
    config = library.Qwen3MoeConfig(
        vocab_size=261,
        hidden_size=32,
        moe_intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        num_experts=4,
        num_experts_per_tok=2,
        tie_word_embeddings=False,
    )
    library.Qwen3MoeForCausalLM(config).save_pretrained(folder)
    return folder


def test_adapters_on_a_mixture_of_experts_are_refused_by_name(mixture: Path) -> None:
    """At the start, not by a KeyError when version 0 is published."""
    with pytest.raises(ConfigurationError, match=r"\[trainer\] lora_rank: .*mixture of experts \(qwen3_moe\)"):
        loaded(mixture, lora_rank=4).export()


def test_mixture_of_experts_trains_in_full_and_opens_with_equal_logits(mixture: Path, tmp_path: Path) -> None:
    """Names and shapes of the base's own files, experts apart; what moved is what is opened."""
    policy = loaded(mixture)
    before = policy.logits(IDS, KEEP).detach()
    policy.logits(IDS, KEEP).float().logsumexp(-1).mean().backward()  # type: ignore[no-untyped-call]
    assert all(master.grad is not None for master in policy.masters.values())
    disturb(policy)
    folder = published(policy, mixture, tmp_path)
    with torch.no_grad():
        expected, got = policy.logits(IDS, KEEP), opened(folder)(IDS).logits
    assert float((expected - before).abs().max()) > 1e-2
    assert torch.equal(got, expected)
    base, written = load_file(mixture / "model.safetensors"), load_file(folder / "model.safetensors")
    assert {n: t.shape for n, t in written.items()} == {n: t.shape for n, t in base.items()}


def test_folder_without_safetensors_is_refused(tmp_path: Path, untied: Path) -> None:
    """Pickled weights can run code; nothing here opens them."""
    (tmp_path / "config.json").write_bytes((untied / "config.json").read_bytes())
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(ConfigurationError, match="safetensors"):
        loaded(tmp_path)


def test_tensors_of_another_model_are_refused(untied: Path, tied: Path) -> None:
    """A checkpoint of another model, or of LoRA, cannot be resumed as this one."""
    with pytest.raises(ConfigurationError, match="another run"):
        loaded(untied).restore(loaded(tied).masters)
