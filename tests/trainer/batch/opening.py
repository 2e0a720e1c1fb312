"""A batch of given records, as a trainer opens it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tests.trainer.material import VOCABULARY, record
from tracegrad.schemas.ids import RunName
from tracegrad.schemas.log.refusals import Refusals
from tracegrad.schemas.metrics import Metrics
from tracegrad.schemas.topics import Topics
from tracegrad.trainer.algorithm.recipe import Recipe
from tracegrad.trainer.batch.batches import OpenBatch
from tracegrad.trainer.batch.groups import GroupLimits

LIMITS = GroupLimits(policy="policy", vocabulary=VOCABULARY)


def gid(index: int) -> str:
    """The id that `group_bytes` gives."""
    return f"{index:024x}"


def open_batch(
    values: Sequence[bytes | None], *, num_groups: int, consumed: Collection[str] = (), recipe: Recipe | None = None
) -> OpenBatch:
    """These records, as many as the batch takes."""
    refusals = Refusals(Topics(run=RunName("test")), Metrics())
    batch = OpenBatch(
        begin_offset=10,
        num_groups=num_groups,
        consumed=consumed,
        limits=LIMITS,
        recipe=recipe or Recipe(),
        refusals=refusals,
    )
    for offset, value in enumerate(values, 10):
        if not batch.is_complete:
            batch.add_record(record(value, offset))
    return batch
