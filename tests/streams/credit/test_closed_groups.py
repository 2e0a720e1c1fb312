"""Groups that have closed are remembered, and no more of them than there is room for."""

from __future__ import annotations

import msgspec

from tests.streams.credit.test_credit import feed, member
from tests.streams.make import RUN_HASH, TOPICS, config
from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.metrics import CLOSED_IDS_FORGOTTEN
from tracegrad.schemas.records.rollouts import GroupRef
from tracegrad.schemas.topics import Topic
from tracegrad.streams.credit.fold import Credit


def test_closed_groups_are_remembered_up_to_a_bound() -> None:
    """The oldest is forgotten, and counted."""
    rules = config()
    credit = Credit(
        msgspec.structs.replace(rules, streams=msgspec.structs.replace(rules.streams, max_closed_ids=2)), TOPICS
    )
    for number in range(3):
        group = GroupRef(id=RUN_HASH + f"{number:016x}", size=1, member=0, index=number)
        emission = feed(credit, member(number, group=group))[-1]
        assert emission.marker is not None
        topic = TOPICS.name(Topic.CLOSED_GROUPS)
        credit.restore([Record(topic=topic, partition=3, offset=number, key=b"", value=emission.marker.value)])
    assert credit.metrics.value(CLOSED_IDS_FORGOTTEN) == 1
