"""A tied policy: its packed head follows the embedding, also when optimiser, export, weight sync and gateway move it.

In training each update learns from what the gateway recorded of the version before it; at the end transformers, by
itself and from the published folder, gives the logprobs that the gateway recorded.
"""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import numpy as np

from tests.consumers.engine.following import following
from tests.consumers.engine.test_weight_update_on_vllm import perturbed, worst_error
from tests.engine_fixture import RunningEngine
from tests.producers.llm_gateway.harness import TOPICS, Rig, full_prompt, rig, until
from tests.versions import RUN, sampled_by
from tracegrad.schemas.records.calls import CallRecord
from tracegrad.schemas.records.tokens import ids_from_bytes, logprobs_from_bytes
from tracegrad.schemas.records.weights import WEIGHT_ACKS, WEIGHTS, VersionManifest
from tracegrad.schemas.topics import Topic
from tracegrad.trainer.algorithm.recipes import DEFAULT, RECIPES
from tracegrad.trainer.backends.single import SingleLearner
from tracegrad.trainer.batch.rows import TrainingRow
from tracegrad.trainer.config import TrainerConfig, TrainerHandles
from tracegrad.trainer.model.policy import load_policy
from tracegrad.trainer.store.checkpoint import CheckpointState, Progress
from tracegrad.trainer.store.publish import Publisher

pytestmark = [pytest.mark.engine, pytest.mark.torch, pytest.mark.timeout(600)]

UPDATES = 10
CALLS_EACH = 3
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


async def serve_version(r: Rig, manifest: VersionManifest) -> None:
    """Publishes it and waits for its acknowledgement."""
    writer = r.signed.writer()
    writer.append(TOPICS.name(Topic.WEIGHTS), key=b"policy", value=WEIGHTS.encode(manifest)).result(5)

    def is_served() -> bool:
        acks = (WEIGHT_ACKS.decode(record.value) for record in r.log.records(TOPICS.name(Topic.WEIGHT_ACKS)))
        return manifest.version in {ack.version for ack in acks}

    await until(is_served, 120)


def row_of(call: CallRecord, calls: list[CallRecord], advantage: float) -> TrainingRow:
    """A recorded call as the trainer's input."""
    prompt, sampled = full_prompt(call, calls), ids_from_bytes(call.sampled_ids).tolist()
    (span,) = call.versions
    mask_T = np.array([False] * len(prompt) + [True] * len(sampled))
    logprobs_T = np.zeros(len(mask_T), np.float32)
    logprobs_T[mask_T] = logprobs_from_bytes(call.logprobs)
    return TrainingRow(
        rollout_id=call.call_id,
        token_ids_T=np.array(prompt + sampled, np.int32),
        loss_mask_T=mask_T,
        sampler_logprobs_T=logprobs_T,
        advantages_T=np.where(mask_T, advantage, 0.0).astype(np.float32),
        temperatures_T=np.ones(len(mask_T), np.float32),
        versions_T=np.where(mask_T, span.version, -1),
        token_weight=1.0 / (CALLS_EACH * len(sampled)),
    )


def logprobs_of(call: CallRecord, calls: list[CallRecord], folder: str, head_of: str | None = None) -> Any:
    """By transformers from a version's folder; `head_of`: as if its head were still that of another one."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    prompt, sampled = full_prompt(call, calls), ids_from_bytes(call.sampled_ids).tolist()
    auto: Any = AutoModelForCausalLM
    model = auto.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        hidden_TD = model.model(torch.tensor([prompt + sampled])).last_hidden_state[0, len(prompt) - 1 : -1]
        head = load_file(f"{head_of}/model.safetensors")[EMBEDDING] if head_of else model.get_output_embeddings().weight
        logprobs_TV = torch.log_softmax(hidden_TD @ head.T, -1)
    return logprobs_TV.gather(1, torch.tensor(sampled)[:, None])[:, 0].numpy()


def worst(call: CallRecord, expected: Any) -> float:
    """Greatest difference in nats from what was recorded."""
    return float(np.abs(np.asarray(logprobs_from_bytes(call.logprobs)) - expected).max())


def test_tied_model_has_no_stale_head_after_ten_updates(tied: RunningEngine) -> None:
    """The head written out and left out by turns: the packed head on CPU follows the embedding."""
    from safetensors.torch import load_file

    if tied.control.status().label != "default":
        tied.load(tied.publish_version(load_file(tied.model / "model.safetensors"), 0, epoch=901))
    assert worst_error(tied, str(tied.model)) < 1e-3
    for version in range(1, 11):
        tensors = perturbed(tied.model, version, tied=True, with_head=version % 2 == 0)
        manifest = tied.publish_version(tensors, version, epoch=901)
        tied.load(manifest)
        assert worst_error(tied, manifest.uri) < 1e-3


async def test_a_tied_policy_trained_exported_and_synced_is_what_the_gateway_records(tied: RunningEngine) -> None:
    """Ten optimiser steps on recorded calls; a head left behind by export or engine would show in the logprobs."""
    import torch
    from safetensors.torch import load_file

    config = TrainerConfig(lr=5e-3, warmup_steps=1)
    learner = SingleLearner(load_policy(config, str(tied.model), torch.device("cpu")), config, RECIPES[DEFAULT].recipe)
    work_dir = str(tied.weight_root.parent)
    handles = TrainerHandles(run_hash=RUN, policy="policy", model=str(tied.model), work_dir=work_dir, seed=0)
    publisher = Publisher(handles, keep=0, is_held=lambda _: False)
    async with rig(engine_url=tied.url, engine_wait_s=60) as r:
        with following(tied, r.log, TOPICS):
            calls, folders = await _train(r, learner, publisher)
    newest = calls[-CALLS_EACH:]
    published = load_file(f"{folders[-1]}/model.safetensors")
    assert torch.equal(published[HEAD], published[EMBEDDING])
    for call in newest:
        assert worst(call, logprobs_of(call, calls, folders[-1])) <= 1e-3
        assert worst(call, logprobs_of(call, calls, folders[-2])) > 0.01
        assert worst(call, logprobs_of(call, calls, folders[-1], head_of=folders[0])) > 0.05
        assert worst(call, logprobs_of(call, calls, folders[-1], head_of=folders[-2])) > 0.005


async def _train(r: Rig, learner: SingleLearner, publisher: Publisher) -> tuple[list[CallRecord], list[str]]:
    """Serves version 1, then as many updates; all calls, and every version's folder."""
    folders: list[str] = []
    await r.begin()
    for version in range(1, UPDATES + 2):
        state = CheckpointState(
            policy="policy", run=RUN, step=version, version=version, base_version=version - 1, next_offset=version
        )
        manifest = publisher.write(publisher.snapshot(learner, Progress(state), epoch=1))
        folders.append(manifest.uri)
        await serve_version(r, manifest)
        for number in range(CALLS_EACH):
            await r.chat([{"role": "user", "content": f"question {version} {number}"}], max_tokens=24)
        calls = r.calls()
        fresh = calls[-CALLS_EACH:]
        assert [call.versions for call in fresh] == [(sampled_by(version),)] * CALLS_EACH
        if version <= UPDATES:
            rows = [row_of(call, calls, advantage) for call, advantage in zip(fresh, (1.0, -1.0, 0.5), strict=True)]
            result = learner.step(rows, version=version, step=version)
            assert result.is_updated
            assert result.num_checked_tokens > 0 and result.logprob_error_max <= 1e-3
    return calls, folders
