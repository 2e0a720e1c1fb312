"""What the head of a model with a large vocabulary costs, computed at once and in pieces: memory and CPU of one step.

    python benchmarks/head.py [--vocabulary 151936] [--tokens 2048] [--bounds 0 16777216 ...]

One row of so many trained tokens and a model of two small layers, so that the head is all there is. Each bound of
`micro_batch_logits` in a process of its own, whose greatest resident memory is taken; 0 is the model loaded, no step.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import resource
import time

import numpy as np
import torch

from tracegrad.trainer.algorithm.recipes import DEFAULT, RECIPES
from tracegrad.trainer.backends.single import SingleLearner
from tracegrad.trainer.batch.rows import TrainingRow
from tracegrad.trainer.config import TrainerConfig
from tracegrad.trainer.model.policy import Policy


def _row(vocabulary: int, num_tokens: int) -> TrainingRow:
    rng = np.random.default_rng(0)
    mask = np.arange(num_tokens + 1) > 0
    return TrainingRow(
        rollout_id="r0",
        token_ids_T=rng.integers(0, vocabulary, num_tokens + 1, dtype=np.int32),
        loss_mask_T=mask,
        # About what a model without training says, so that no bound of the surrogate holds the gradient back.
        sampler_logprobs_T=np.where(mask, -math.log(vocabulary), 0.0).astype(np.float32),
        advantages_T=mask.astype(np.float32),
        temperatures_T=np.ones(num_tokens + 1, dtype=np.float32),
        versions_T=np.where(mask, 0, -1),
        token_weight=1.0 / num_tokens,
    )


def _measure(bound: int, vocabulary: int, num_tokens: int) -> None:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=vocabulary,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=32,
            max_position_embeddings=num_tokens + 1,
            tie_word_embeddings=True,
        )
    ).eval()
    config = TrainerConfig(micro_batch_logits=max(1, bound))
    learner = SingleLearner(Policy(model, torch.device("cpu")), config, RECIPES[DEFAULT].recipe)
    began = time.process_time()
    result = learner.step([_row(vocabulary, num_tokens)] if bound else [], version=0, step=1)
    cpu_s = time.process_time() - began
    gibibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{bound:>14} {gibibytes:10.2f} {cpu_s:8.1f} {result.loss:12.6f} {result.grad_norm:12.6f}", flush=True)


def main() -> None:
    """Prints a line a bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--bounds", type=int, nargs="+", default=[0, 1 << 24, 1 << 26, 1 << 28, 1 << 40])
    given = parser.parse_args()
    print(f"{'logits at once':>14} {'peak GiB':>10} {'CPU s':>8} {'loss':>12} {'grad norm':>12}", flush=True)
    spawn = multiprocessing.get_context("spawn")
    for bound in given.bounds:
        process = spawn.Process(target=_measure, args=(bound, given.vocabulary, given.tokens))
        process.start()
        process.join(600)


if __name__ == "__main__":
    main()
