"""A causal model's last hidden states: of rows side by side, or of a tree of rows, where the model can do that.

In: ids, and of a tree (batch/prefix_tree.py) positions and who sees whom. Out: states. Invariant: a token of a tree has
the state that it has in its row. Failure: ConfigurationError where a model's layers look at other tokens than the mask
lets them, or not at all of these.

Tensor suffixes: B rows (1 of a tree), L tokens of a row or of a tree, D width.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from tracegrad.schemas.errors import ConfigurationError

from ..batch.prefix_tree import prefix_tree

_TREE_ERROR = 0.05
"""Relative: bfloat16 rounds to 1 %; a token that sees another row's is wrong by a third and more."""


def last_hidden(
    causal: Any, input_ids_BL: Tensor, depths_BL: Tensor | None = None, sees_BLL: Tensor | None = None
) -> Tensor:
    """[B, L, D]; `depths_BL` and `sees_BLL` are those of a tree."""
    told = {}
    if sees_BLL is not None:
        # Additive, as every attention of transformers takes one.
        mask_BLL = torch.zeros_like(sees_BLL, dtype=causal.dtype)
        mask_BLL.masked_fill_(~sees_BLL, torch.finfo(causal.dtype).min)
        told = {"position_ids": depths_BL, "attention_mask": mask_BLL}
    hidden_BLD: Tensor = causal.base_model(input_ids=input_ids_BL, use_cache=False, **told).last_hidden_state
    return hidden_BLD


@torch.no_grad()
def require_trees(causal: Any) -> None:
    """Raises ConfigurationError where a tree would not give what its rows do."""
    others = {*(getattr(causal.config, "layer_types", None) or ())} - {"full_attention"}
    rows = [np.array(ids, np.int32) for ids in ([2, 3, 4, 5, 6], [2, 3, 5, 4, 6])]
    tree = prefix_tree(rows)
    # A window would show in longer rows alone.
    if not others and not getattr(causal.config, "sliding_window", None):
        ids_BL, depths_BL, sees_BLL = (torch.from_numpy(each).to(causal.device)[None] for each in tree[:3])
        got_LD = last_hidden(causal, ids_BL, depths_BL, sees_BLL[None])[0, tree.places[1]].float()
        expected_LD = last_hidden(causal, ids_BL.new_tensor(np.stack(rows)))[1].float()
        if float((got_LD - expected_LD).norm() / expected_LD.norm()) < _TREE_ERROR:
            return
    raise ConfigurationError(
        "[trainer] packing = 'tree': expected a model whose layers all attend to all tokens before, by a mask, got one "
        f"({causal.config.model_type}) with {', '.join(sorted(others)) or 'other layers'}: set packing = 'rows'"
    )
