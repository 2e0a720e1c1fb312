"""Weights that change under a real vLLM: the engine samples from exactly what was published."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.engine_fixture import SMALL, RunningEngine, started
from tests.tiny_models import Kind, make_model
from tests.versions import label

pytestmark = [pytest.mark.engine, pytest.mark.torch, pytest.mark.timeout(600)]

PROMPT = [5, 9, 77, 130, 201, 18, 33]
BFLOAT16 = msgspec.structs.replace(SMALL, dtype="bfloat16")


def logprobs_of(folder: str, ids: list[int], start: int) -> list[float]:
    """The logprobs of ids[start:] by transformers, from the folder's safetensors as they lie there."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.set_num_threads(1)
    config = AutoConfig.from_pretrained(folder)
    config.tie_word_embeddings = False  # the head that was published, not a copy of the embedding
    auto: Any = AutoModelForCausalLM
    model: Any = auto.from_config(config, dtype=torch.float32).eval()
    tensors = load_file(f"{folder}/model.safetensors")
    tensors.setdefault("lm_head.weight", tensors["model.embed_tokens.weight"])
    model.load_state_dict(tensors)
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].float()
    all_logprobs = torch.log_softmax(logits, dim=-1)
    return [float(all_logprobs[position - 1, ids[position]]) for position in range(start, len(ids))]


def perturbed(model: Path, seed: int, *, tied: bool, with_head: bool = True) -> dict[str, Any]:
    """The model's tensors with noise; a tied head is the embedding, written out or left out."""
    import torch
    from safetensors.torch import load_file

    torch.manual_seed(seed)
    tensors = {
        name: tensor + 0.1 * torch.randn_like(tensor) for name, tensor in load_file(model / "model.safetensors").items()
    }
    if tied:
        tensors.pop("lm_head.weight", None)
        if with_head:
            tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    return tensors


def worst(first: list[float], second: list[float]) -> float:
    """Greatest difference in nats."""
    return max((abs(a - b) for a, b in zip(first, second, strict=True)), default=0.0)


def worst_error(engine: RunningEngine, folder: str) -> float:
    """Greatest difference in nats between the engine's logprobs and transformers'."""
    choice = engine.generate(PROMPT, max_tokens=24)
    expected = logprobs_of(folder, PROMPT + choice["token_ids"], len(PROMPT))
    return worst(choice["logprobs"], expected)


def test_ten_updates_leave_the_engine_on_exactly_the_published_weights(engine: RunningEngine) -> None:
    """Untied: after each update logprobs equal a recomputation from the folder, and not from the one before."""
    before = str(engine.model)
    for version in range(1, 11):
        manifest = engine.publish_version(perturbed(engine.model, version, tied=False), version, epoch=901)
        engine.load(manifest)
        assert engine.control.status().label == label(version, 901)
        assert worst_error(engine, manifest.uri) < 1e-3
        assert worst_error(engine, before) > 0.05
        before = manifest.uri


@pytest.fixture(scope="module")
def in_bfloat16(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Kind, RunningEngine]]:
    """An engine of each model."""
    kinds: tuple[Kind, ...] = ("qwen2", "qwen3")
    folders = {kind: tmp_path_factory.mktemp(kind) for kind in kinds}
    engines = {
        kind: RunningEngine(folders[kind], make_model(folders[kind] / "model", kind), BFLOAT16) for kind in kinds
    }
    with started(*engines.values()):
        yield engines


@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
def test_bfloat16_engine_follows_updates(kind: Kind, in_bfloat16: dict[Kind, RunningEngine]) -> None:
    """Tied and untied: its own weights' logprobs, to its rounding."""
    engine = in_bfloat16[kind]
    before = str(engine.model)
    for version in range(1, 4):
        tensors = perturbed(engine.model, version, tied=kind == "qwen2")
        manifest = engine.publish_version({n: t.bfloat16() for n, t in tensors.items()}, version)
        engine.load(manifest)
        assert worst_error(engine, manifest.uri) < 0.05
        assert worst_error(engine, before) > 0.15
        before = manifest.uri


def test_generation_in_flight_splits_exactly_at_the_update(engine: RunningEngine) -> None:
    """Tokens before the split have the old weights' logprobs, those after it the new weights', over one context."""
    old = engine.publish_version(perturbed(engine.model, 21, tied=False), 21, epoch=902)
    new = engine.publish_version(perturbed(engine.model, 22, tied=False), 22, epoch=902)
    engine.load(old)
    answers: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: answers.append(engine.generate(PROMPT, max_tokens=400)))
    thread.start()
    for _ in range(200):
        metrics = engine.client.get("/metrics").text
        if "vllm:num_requests_running{" in metrics and _gauge(metrics, "vllm:num_requests_running") > 0:
            break
    engine.load(new)
    thread.join(60)
    choice = answers[0]
    spans = choice["weight_versions"]
    assert [span["version"] for span in spans] == [label(21, 902), label(22, 902)]
    split = spans[1]["start"]
    assert (spans[0]["start"], spans[0]["end"], spans[1]["end"]) == (0, split, 400)
    assert 0 < split < 400
    ids = PROMPT + choice["token_ids"]
    by_old = logprobs_of(old.uri, ids, len(PROMPT))
    by_new = logprobs_of(new.uri, ids, len(PROMPT))
    sampled = choice["logprobs"]
    assert worst(sampled[:split], by_old[:split]) < 1e-3
    assert worst(sampled[split:], by_new[split:]) < 1e-3
    assert worst(sampled[:split], by_new[:split]) > 0.01
    assert worst(sampled[split:], by_old[split:]) > 0.01


def _gauge(metrics: str, name: str) -> float:
    lines = [line for line in metrics.splitlines() if line.startswith(name + "{")]
    return float(lines[0].rsplit(" ", 1)[1]) if lines else 0.0
