"""Families of models that are more than a stack of layers and a head: scaled logits, a mixture of experts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from safetensors.torch import load_file, save_file

from tests.tiny_models import make_model
from tests.trainer.model.policies import IDS, KEEP, disturb, loaded, opened, published
from tests.trainer.run_loop import config_of, lineage_of, new_log, request_rollback, steps_of, train
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.trainer.model.read_model import load_tensors

pytestmark = pytest.mark.torch

SIZES = {
    "vocab_size": 261,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "pad_token_id": 256,
    "bos_token_id": 257,
    "eos_token_id": 258,
}
EXPERTS = {"moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2, "head_dim": 16}
FAMILIES: dict[str, dict[str, Any]] = {
    "Granite": {"logits_scaling": 8.0, "embedding_multiplier": 12.0, "attention_multiplier": 0.02},
    "Cohere": {"logit_scale": 0.0625},
    "Cohere2": {"logit_scale": 0.25, "head_dim": 16},
    "FalconH1": {"lm_head_multiplier": 0.04, "mamba_d_ssm": 32, "mamba_n_heads": 2, "mamba_d_head": 16,
                 "mamba_d_state": 8},
    "Qwen3Moe": EXPERTS,
    "Mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
}  # fmt: skip


@pytest.fixture
def family(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder with a small random model of it."""
    import transformers

    library: Any = transformers
    folder = make_model(tmp_path / request.param)
    torch.manual_seed(0)
    config = getattr(library, f"{request.param}Config")(**SIZES, **FAMILIES[request.param])
    model = getattr(library, f"{request.param}ForCausalLM")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    model.save_pretrained(folder)
    return folder


SCALED = pytest.mark.parametrize("family", ["Granite", "Cohere", "Cohere2", "FalconH1"], indirect=True)
MIXED = pytest.mark.parametrize("family", ["Qwen3Moe", "Mixtral"], indirect=True)


@SCALED
def test_a_family_that_scales_its_logits_has_its_own_here_too(family: Path, tmp_path: Path) -> None:
    """Bit for bit, as the loss takes them and as what is published gives them."""
    policy = loaded(family)
    disturb(policy)
    with torch.no_grad():
        expected = policy.logits(IDS, KEEP)
        hidden = policy.causal.base_model(input_ids=IDS, use_cache=False).last_hidden_state
        assert torch.equal(policy.head(hidden), expected)
        torch.testing.assert_close(opened(published(policy, family, tmp_path))(IDS).logits, expected)


@pytest.mark.parametrize("family", [*FAMILIES], indirect=True)
def test_a_family_trains_and_is_rolled_back_with_equal_tensors(family: Path, tmp_path: Path) -> None:
    """Two steps, back to version 1, whose content version 3 has, and on from there."""
    log = new_log()
    train(log, config_of(family, tmp_path / "work", steps=2, lr=1e-2))
    assert [step.is_updated for step in steps_of(log)] == [True, True]
    request_rollback(log, 1)
    train(log, config_of(family, tmp_path / "work", steps=3, lr=1e-2))
    versions = lineage_of(log).versions
    assert [versions[number].base_version for number in sorted(versions)] == [0, 0, 1, 1, 3]
    one, two, back = (opened(Path(versions[number].uri)).state_dict() for number in (1, 2, 3))
    assert all(torch.equal(one[name], back[name]) for name in one)
    assert not all(torch.equal(one[name], two[name]) for name in one)


@MIXED
def test_a_mixture_of_experts_is_recalled_whole_or_not_at_all(family: Path, tmp_path: Path) -> None:
    """Bit for bit; a file that lacks an expert is refused, where transformers would make a random one."""
    policy = loaded(family)
    disturb(policy)
    folder = published(policy, family, tmp_path)
    expected = {name: master.detach().clone() for name, master in policy.masters.items()}
    found = load_tensors(folder)
    assert all(torch.equal(found[name], master) for name, master in expected.items())
    tensors = load_file(folder / "model.safetensors")
    del tensors[next(name for name in sorted(tensors) if "experts" in name)]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigurationError, match=r"expected all tensors|cannot be loaded"):
        load_tensors(folder)
