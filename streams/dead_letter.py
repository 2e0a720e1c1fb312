"""Dead letters of the folds: what could not be used, with its reason and origin, so that its neighbours go on."""

from __future__ import annotations

from tracegrad.schemas.errors import RecordError
from tracegrad.schemas.fold import Output
from tracegrad.schemas.keys import original_key
from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.records.dead_letters import dead_letter_headers
from tracegrad.schemas.topics import Stage, Topic

__all__ = ["dead_letter"]


def dead_letter(
    record: Record,
    error: RecordError,
    *,
    stage: Stage,
    value: bytes | None = None,
    item: int | None = None,
) -> Output:
    """The dead letter of a record, or of the part of it that `value` holds."""
    return Output(
        topic=Topic.DEAD_LETTERS,
        key=original_key(record),
        value=(record.value or b"") if value is None else value,
        headers=dead_letter_headers(record, stage=stage.value, reason=error.reason, detail=str(error), item=item),
    )
