"""`dead_letters`: the original bytes of what a stage could not use, and headers that say why and whence."""

from __future__ import annotations

from ..log.protocol import Headers, Record

_PREFIX = "tracegrad."


def dead_letter_headers(
    origin: Record, *, stage: str, reason: str, detail: str = "", item: int | None = None
) -> Headers:
    """Headers of a dead letter.

    Args:
        origin: the record that could not be used.
        stage: who gave up on it.
        reason: a short stable word, for counters.
        detail: expected, got; at most 500 characters are kept; never a payload.
        item: which item of a batch record, when only one is at fault.
    """
    fields = {
        "reason": reason,
        "stage": stage,
        "detail": detail[:500],
        "topic": origin.topic,
        "partition": str(origin.partition),
        "offset": str(origin.offset),
    }
    if item is not None:
        fields["item"] = str(item)
    return tuple((_PREFIX + name, value.encode()) for name, value in fields.items()) + origin.headers


def dead_letter_fields(headers: Headers) -> dict[str, str]:
    """What a dead letter's headers say, as named above; of an origin that was a dead letter too, nothing."""
    return {
        name.removeprefix(_PREFIX): value.decode("utf-8", "replace")
        for name, value in reversed(headers)
        if name.startswith(_PREFIX)
    }
