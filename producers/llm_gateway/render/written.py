"""The ids of a prompt that the agent wrote itself, with the ids in place that were really sampled for what it repeats.

In: a text or ids, the answers served before in the episode. Out: a Prompt. A text that begins with an earlier prompt
and its answer keeps their ids, and only what follows is encoded; ids are taken as they are. Failure: the renderer's.
"""

from __future__ import annotations

import numpy as np

from tracegrad.schemas.records.calls import SpliceOutcome
from tracegrad.schemas.records.tokens import Ids

from ..engines.client import Waits
from ..splice import Prompt, SpliceHistory, Written, whole
from .engine_render import Renderer

__all__ = ["written_prompt"]


async def written_prompt(
    renderer: Renderer, history: SpliceHistory, given: str | tuple[int, ...], waits: Waits
) -> Prompt:
    """The prompt for what was given."""
    ids = np.asarray(given if isinstance(given, tuple) else (), np.int32)
    before: Written | None = None
    for one in history.written:
        if (before is None or one.num_ids >= before.num_ids) and _continues(given, ids, one):
            before = one
    if isinstance(given, str) and before is not None:
        rest = given[len(before.text or "") :]
        after = await renderer.encode(rest, waits, begins=False) if rest else []
        ids = np.concatenate([_said(before), np.asarray(after, np.int32)])
    elif isinstance(given, str):
        ids = np.asarray(await renderer.encode(given, waits, begins=True), np.int32)
    if before is None:
        first = SpliceOutcome(kind="first")
        return whole(ids.tolist(), SpliceOutcome(kind="new_segment", reason="no_match") if history.written else first)
    terminal = before.call.sampled_ids[-1:]
    has_terminal = before.num_ids < len(before.call.prompt_ids) + len(before.call.sampled_ids)
    is_repeated = has_terminal and np.array_equal(ids[before.num_ids : before.num_ids + 1], terminal)
    shared = before.num_ids + is_repeated
    return Prompt(ids=ids, parent=before.call, shared_tokens=shared, outcome=SpliceOutcome(kind="extended"))


def _continues(given: str | tuple[int, ...], ids: Ids, before: Written) -> bool:
    if isinstance(given, str):
        return before.text is not None and given.startswith(before.text)
    return np.array_equal(ids[: before.num_ids], _said(before))


def _said(before: Written) -> Ids:
    return np.concatenate([before.call.prompt_ids, before.call.sampled_ids])[: before.num_ids]
