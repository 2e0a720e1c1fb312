"""What a step's bits depend on besides its batch and settings: who computes, and with what. In: a torch that is
configured. Out: words, for the record of each step; two steps of equal words and batches are to give equal weights."""

from __future__ import annotations

import torch

__all__ = ["machine_facts"]

_WORLD_SIZE = 1
"""Processes that share a step."""


def machine_facts(device: torch.device, *, seed: int) -> dict[str, str]:
    """Beside what `Learner.settings` says."""
    is_gpu = device.type == "cuda"
    return {
        "seed": str(seed),
        "threads": str(torch.get_num_threads()),
        "torch": str(torch.__version__),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "accelerator": torch.cuda.get_device_name(device) if is_gpu else "",
        "world_size": str(_WORLD_SIZE),
    }
