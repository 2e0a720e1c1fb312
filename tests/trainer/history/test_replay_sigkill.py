"""Real SIGKILLs of a trainer that repeats another run, on a real broker."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.trainer.history.past import replay_of, train_source
from tests.trainer.material import append_groups
from tests.trainer.run_loop import TRANSITIONS, content, is_same, train
from tests.trainer.sigkills import outcome, start
from tracegrad.compose.kafka.log import KafkaLog
from tracegrad.schemas.topics import Topic, Topics

pytestmark = [pytest.mark.torch, pytest.mark.kafka, pytest.mark.timeout(300)]

DEATHS = (
    ("before the step", 1),
    ("between checkpoint and publish", 3),
    ("half-written checkpoint", 2),
    ("between manifest and training_step", 1),
    ("inside an update", 1),
)


def test_sigkilled_again_and_again_it_ends_with_the_sources_weights(
    broker: str,
    kafka_log: KafkaLog,
    fresh_topics: Topics,
    untied: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every version, bit for bit, whatever died in between; the last start ends by itself."""
    source = train_source(untied, tmp_path / "source")
    monkeypatch.undo()
    prepared, settings = replay_of(source, untied, tmp_path / "own")
    values = [record.value for record in prepared.records(TRANSITIONS)]
    append_groups(kafka_log, fresh_topics.name(Topic.TRANSITIONS), values)
    for seam, call in DEATHS:
        process = start(broker, fresh_topics, settings, seam, call, tmp_path / "stderr")
        process.join(120)
        assert process.exitcode == -signal.SIGKILL, (seam, (tmp_path / "stderr").read_text())

    train(kafka_log, settings, topics=fresh_topics)
    assert is_same(outcome(kafka_log, fresh_topics, tmp_path / "own").content, content(source))
