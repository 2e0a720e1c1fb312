"""Reads references/*.json: cases with their batches, as tokens and rollouts. No torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.algorithm.literal import Token

Case = dict[str, Any]

FILES = {path.stem: json.loads(path.read_text()) for path in (Path(__file__).parent / "references").glob("*.json")}


def cases(kind: str) -> list[Any]:
    """Each with its batch, by name."""
    return [
        pytest.param(case, file["batches"][case["batch"]], id=case["name"])
        for file in FILES.values()
        for case in file.get(kind, ())
    ]


def tokens_of(batch: Case) -> list[Token]:
    """The batch's trained tokens."""
    return [
        Token(
            rollout=rollout,
            row=batch["row_N"][t],
            turn=batch["turn_N"][t],
            group=batch["group_R"][rollout],
            logprob=batch["logprobs_N"][t],
            old=batch["old_logprobs_N"][t],
            sampler=batch["sampler_logprobs_N"][t],
            reference=batch["reference_logprobs_N"][t],
            entropy=batch["entropies_N"][t],
            advantage=batch["advantages_N"][t],
        )
        for t, rollout in enumerate(batch["rollout_N"])
    ]


def close(case: Case, values: Sequence[float] | float) -> Any:
    """Within what the library computes with."""
    exactness = 3e-6 if case.get("dtype") == "float32" else 1e-7
    return pytest.approx(values, rel=exactness, abs=exactness)
