"""What rows begin with alike is computed once, and nothing else changes: tree packing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

import torch

from tests.trainer.material import groups_of
from tests.trainer.model.test_families import EXPERTS, SIZES
from tests.trainer.test_step import learner_of
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.trainer.algorithm.recipes import DEFAULT, RECIPES
from tracegrad.trainer.backends.single import SingleLearner
from tracegrad.trainer.batch.packing import micro_batches
from tracegrad.trainer.batch.prefix_tree import by_prefix, prefix_tree
from tracegrad.trainer.batch.rows import TrainingRow, training_rows
from tracegrad.trainer.model.hidden import require_trees
from tracegrad.trainer.step_figures import StepFigures

pytestmark = pytest.mark.torch


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), min_size=1, max_size=8))
def test_each_token_of_the_tree_sees_those_before_it_in_its_row_and_no_others(drawn: list[list[int]]) -> None:
    """And the tree has each beginning of a row once."""
    rows = [np.array(row, np.int32) for row in drawn]
    rows = [rows[number] for number in by_prefix(rows)]
    tree = prefix_tree(rows)
    assert len(tree.ids_S) == len({tuple(row[:end]) for row in drawn for end in range(1, len(row) + 1)})
    for row, places_T in zip(rows, tree.places, strict=True):
        assert tree.ids_S[places_T].tolist() == row.tolist()
        assert tree.depths_S[places_T].tolist() == list(range(len(row)))
        for end, place in enumerate(places_T, 1):
            assert np.flatnonzero(tree.sees_SS[place]).tolist() == sorted(places_T[:end])


def rows_of(count: int) -> list[TrainingRow]:
    """Of groups whose rollouts begin alike, and each with more than one trained stretch."""
    return training_rows(groups_of(count), RECIPES[DEFAULT].recipe)[0]


def learned(learner: SingleLearner, rows: Sequence[TrainingRow]) -> dict[str, torch.Tensor]:
    """The gradients of a step's loss, from the masters."""
    for term in learner._look_at(rows, 1, StepFigures(), None):
        term.loss.backward()  # type: ignore[no-untyped-call]
        learner.policy.collect_gradients()
    return {name: master.grad.clone() for name, master in learner.policy.masters.items() if master.grad is not None}


@pytest.mark.parametrize("max_tokens", [1, 64, 4096])
@pytest.mark.parametrize("lora_rank", [None, 4])
def test_logprobs_and_gradients_are_those_of_rows_apart(untied: Path, max_tokens: int, lora_rank: int | None) -> None:
    """Row by row, some rows, all rows in one tree."""
    rows, found = rows_of(3), []
    for packing in ("rows", "tree"):
        learner: Any = learner_of(untied, packing=packing, micro_batch_tokens=max_tokens, lora_rank=lora_rank)
        found.append(([*learner.logprobs_of(rows)], learned(learner, rows)))
    (expected_logprobs, expected), (logprobs, got) = found
    for one, other in zip(expected_logprobs, logprobs, strict=True):
        np.testing.assert_allclose(other, one, atol=2e-6, rtol=1e-5)
    assert expected.keys() == got.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(got[name], gradient, atol=2e-6, rtol=1e-4)


def test_shared_beginnings_count_once_against_the_bound_and_each_row_is_in_one_tree() -> None:
    """A row beyond the bound goes alone."""
    rows = rows_of(4)
    whole = sum(len(row.token_ids_T) for row in rows)
    (all_,) = micro_batches(rows, max_tokens=whole, packing="tree")
    assert all_.input_ids_BL.numel() < whole
    for max_tokens in (1, 64, all_.input_ids_BL.numel()):
        batches = [*micro_batches(rows, max_tokens=max_tokens, packing="tree")]
        assert sorted(place for batch in batches for place in batch.places) == list(range(len(rows)))
        for batch in batches:
            assert batch.input_ids_BL.numel() <= max_tokens or len(batch.places) == 1
        assert sum(len(batch.trained_N) for batch in batches) == sum(int(r.loss_mask_T.sum()) for r in rows)


@pytest.mark.parametrize(
    ("family", "changes"),
    [("Mistral", {"sliding_window": 4}), ("Gemma3Text", {"head_dim": 16}), ("FalconH1", {"mamba_d_ssm": 32})],
)
def test_model_that_looks_at_other_tokens_is_refused_with_what_to_set(family: str, changes: dict[str, Any]) -> None:
    """Windows and recurrent layers: in silence they would learn from other rows."""
    with pytest.raises(ConfigurationError, match=r"packing = 'tree'.*got.*set packing = 'rows'"):
        require_trees(_model(family, changes))


@pytest.mark.parametrize(("family", "changes"), [("Qwen2", {}), ("Llama", {}), ("Qwen3Moe", EXPERTS)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_model_that_attends_to_all_tokens_is_taken(family: str, changes: dict[str, Any], dtype: torch.dtype) -> None:
    """In bfloat16 too, beyond its rounding."""
    require_trees(_model(family, changes, dtype))


def _model(family: str, changes: dict[str, Any], dtype: torch.dtype = torch.float32) -> Any:
    import transformers

    library: Any = transformers
    torch.manual_seed(0)
    sizes = SIZES | ({"mamba_n_heads": 2, "mamba_d_head": 16, "mamba_d_state": 8} if family == "FalconH1" else {})
    config = getattr(library, f"{family}Config")(**sizes, **changes)
    model = getattr(library, f"{family.removesuffix('Text')}ForCausalLM")(config)
    return model.to(dtype).eval()


@pytest.mark.parametrize("name", sorted(name for name, one in RECIPES.items() if not {*one.recipe.needs} - {"old"}))
def test_step_of_each_recipe_is_that_of_rows_apart(untied: Path, name: str) -> None:
    """Ratios of turns, rows and rollouts, and corrections, find their tokens in the tree."""
    told = []
    for packing in ("rows", "tree"):
        learner = learner_of(untied, RECIPES[name].recipe, packing=packing, micro_batch_tokens=64)
        rows, _ = learner.rows(groups_of(3), {})
        told.append(learner.step(rows, version=1, step=1))
    expected, got = told
    assert got.skipped == expected.skipped
    assert got.loss == pytest.approx(expected.loss, rel=1e-4, abs=1e-6)
    assert got.grad_norm == pytest.approx(expected.grad_norm, rel=1e-4)
