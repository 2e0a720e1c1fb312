"""A bench for weight sync: a log, an engine, and a sync that can be killed and started again."""

from __future__ import annotations

from pathlib import Path

from tests.fake_engine.weights import FakeWeights, write_version
from tests.memory_log import MemoryLog
from tracegrad.consumers.engine.weight_sync import WeightSync, WeightSyncHandles
from tracegrad.schemas.ids import RunName
from tracegrad.schemas.metrics import Metrics
from tracegrad.schemas.records.weights import WEIGHT_ACKS, WEIGHTS, EpochClaim, RollbackRequest, VersionManifest
from tracegrad.schemas.topics import Topic, Topics

TOPICS = Topics(run=RunName("run"))
WEIGHTS_TOPIC = TOPICS.name(Topic.WEIGHTS)
ACKS_TOPIC = TOPICS.name(Topic.WEIGHT_ACKS)


class Bench:
    """A log, an engine, and a weight sync that can be killed and started again."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log = MemoryLog()
        self.log.create_topics(TOPICS, policies=["policy"])
        self.engine = FakeWeights()
        self.now = 0.0
        self.handles = WeightSyncHandles(
            policy="policy", engine_id="e0", engine_url="http://engine", weight_root=str(root)
        )
        self.start()

    def start(self) -> None:
        """A fresh process: nothing remembered."""
        self.sync = WeightSync(
            handles=self.handles,
            control=self.engine.control(),
            writer=self.log.writer(),
            topics=TOPICS,
            metrics=Metrics(),
            clock=lambda: self.now,
        )
        self.next_offset = 0

    def put(self, *records: EpochClaim | VersionManifest | RollbackRequest) -> None:
        """Onto `weights`."""
        writer = self.log.writer()
        for record in records:
            writer.append(WEIGHTS_TOPIC, key=record.policy.encode(), value=WEIGHTS.encode(record))

    def look(self) -> None:
        """What one turn of the loop does."""
        records = self.log.records(WEIGHTS_TOPIC)
        self.sync.fold(records[self.next_offset :])
        self.next_offset = len(records)
        self.sync.reconcile()

    def serve(self, version: int) -> None:
        """A sound version is published, and looked at."""
        self.put(write_version(self.root, version))
        self.look()

    def acks(self) -> list[str]:
        """Labels acknowledged so far."""
        acks = [WEIGHT_ACKS.decode(record.value) for record in self.log.records(ACKS_TOPIC)]
        return [ack.label for ack in acks]
