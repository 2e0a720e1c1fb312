"""Data: the last records of a public topic, decoded.

In: the board, a topic's name. Out: a model. Invariants: a bounded number of records, each cut; nothing is kept of what
is shown; what rooms leave out is shown too, and said to be that. Failure: RequestError for a topic that is not
public; UnavailableError when the broker does not answer.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from tracegrad.schemas.errors import RequestError, UnavailableError
from tracegrad.schemas.log.follow import read_to_end
from tracegrad.schemas.log.protocol import Record, TopicPartition
from tracegrad.schemas.section import nearest
from tracegrad.schemas.topics import REGISTRY, Topic

from ..views.tail import as_json, sentence_of
from .board import Board, ViewQuery
from .view import View

PUBLIC = {spec.topic.value: spec for spec in REGISTRY if spec.public}
COUNTS = (20, 50, 200)
"""How many may be asked for."""
_FEW = frozenset({Topic.TRANSITIONS})
"""Whose records are large: of these the least number alone."""
_MAX_TEXT = 20_000
"""Characters of one record: a group's tensors have millions."""
_PATIENCE_S = 5.0


class TopicRecord(NamedTuple):
    """One record."""

    where: str
    key: str
    sentence: str
    """In one line."""
    fields: str
    """As JSON."""
    left_out: str
    """Why rooms leave it out; empty: they do not."""


def model(board: Board, ask: ViewQuery) -> dict[str, Any]:
    """What the template shows. Blocks for as long as the reading takes."""
    if ask.rest and ask.rest not in PUBLIC:
        raise RequestError(f"no public topic {ask.rest!r}; {nearest(ask.rest, PUBLIC)}", status=404)
    asked = ask.query.get("n", "")
    chosen = PUBLIC.get(ask.rest)
    counts = COUNTS[:1] if chosen is not None and chosen.topic in _FEW else COUNTS
    num = int(asked) if asked in map(str, counts) else COUNTS[0]
    return {
        "topics": list(PUBLIC.values()),
        "chosen": chosen,
        "num": num,
        "counts": counts,
        "full_name": board.topics.name(chosen.topic) if chosen else "",
        "records": last_records(board, chosen.topic, num) if chosen else [],
    }


def last_records(board: Board, topic: Topic, num: int) -> list[TopicRecord]:
    """The newest first, over all partitions. Raises UnavailableError."""
    is_there, log, name = board.log is not None, board.raw, board.topics.name(topic)
    if log is None or not is_there:
        raise UnavailableError("the run's broker is being started to look at its topics; try again in some seconds")
    kept = log.offsets(name)
    starts = {TopicPartition(name, number): max(at.begin, at.end - num) for number, at in kept.items()}
    found = sorted(
        read_to_end(log, name, starts=starts, patience_s=_PATIENCE_S), key=lambda record: record.timestamp_ms
    )
    return [_topic_record(board, topic, record) for record in reversed(found[-num:])]


def _topic_record(board: Board, topic: Topic, record: Record) -> TopicRecord:
    fields = json.dumps(as_json(topic, record), indent=1, ensure_ascii=False)
    over = len(fields) - _MAX_TEXT
    return TopicRecord(
        where=f"{record.partition}@{record.offset}",
        key=(record.key or b"").decode("utf-8", "replace"),
        sentence=sentence_of(topic, record),
        fields=fields if over <= 0 else f"{fields[:_MAX_TEXT]}\n... and {over:,} characters more",
        left_out=board.refusal(topic, record) or "",
    )


VIEW = View("data", "Data", "data.html", model, is_live=False)
