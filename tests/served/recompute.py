"""Logprobs of sampled tokens, computed afresh by transformers from a version's folder: the independent witness.

In: a folder that the trainer published, prompts with what was sampled. Out: one logprob per sampled token.
Invariant: nothing of the training loop is used but the folder's bytes; one sequence at a time, no padding, no cache;
float32 throughout, since bfloat16's rounding would hide what one optimiser step changes.
Failure: ConfigurationError when the folder cannot be opened. Read-only.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from transformers import AutoModelForCausalLM

from tracegrad.schemas.errors import ConfigurationError

Sequences = Sequence[tuple[Sequence[int], Sequence[int], float]]
"""(prompt ids, sampled ids, temperature) each."""


def recompute_logprobs(folder: Path, sequences: Sequences, *, threads: int = 1) -> list[list[float]]:
    """Natural-log probabilities of each sequence's sampled tokens.

    Args:
        folder: config and safetensors of one version; weights stored in bfloat16 are widened, which changes none.
        sequences: temperature 0 means greedy, whose logprobs are the undivided distribution's.
        threads: CPU threads.
    Raises:
        ConfigurationError: the folder is not a model that transformers can open.
    """
    torch.set_num_threads(threads)
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True, use_safetensors=True
        )
    except (OSError, ValueError, KeyError) as error:
        raise ConfigurationError(f"cannot open the version in {folder}: {error}") from error
    model.eval()
    found = []
    with torch.no_grad():
        for prompt, sampled, temperature in sequences:
            ids_1T = torch.tensor([[*prompt, *sampled]])
            logits_TV = model(input_ids=ids_1T, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
            logprobs_TV = torch.log_softmax(logits_TV / (temperature or 1.0), dim=-1)
            chosen_T = logprobs_TV.gather(1, ids_1T[0, len(prompt) :, None])[:, 0]
            found.append([float(value) for value in chosen_T])
    return found


def main() -> None:
    """A process of its own: on stdin folders, sequences and threads as JSON, on stdout a list of each folder's rows."""
    folders, sequences, threads = msgspec.json.decode(
        sys.stdin.buffer.read(), type=tuple[list[str], list[tuple[list[int], list[int], float]], int]
    )
    try:
        found = [recompute_logprobs(Path(folder), sequences, threads=threads) for folder in folders]
    except ConfigurationError as error:
        sys.exit(str(error))
    sys.stdout.write(msgspec.json.encode(found).decode() + "\n")


if __name__ == "__main__":
    main()
