"""Real SIGKILLs of a trainer that repeats another run, on a real broker."""

from __future__ import annotations

import multiprocessing
import signal
import threading
from pathlib import Path

import pytest

pytest.importorskip("torch")

from safetensors.torch import load_file

from tests.trainer import doomed_trainer
from tests.trainer.history.past import replay_of, train_source
from tests.trainer.material import append_groups
from tests.trainer.run_loop import TRANSITIONS, content, is_same
from tracegrad.compose.kafka.log import KafkaLog
from tracegrad.schemas.log.follow import read_to_end
from tracegrad.schemas.metrics import Metrics
from tracegrad.schemas.records.weights import WEIGHTS, Lineage
from tracegrad.schemas.topics import Topic, Topics
from tracegrad.trainer.run import run

pytestmark = [pytest.mark.torch, pytest.mark.kafka, pytest.mark.timeout(300)]

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([doomed_trainer.__name__, "transformers.models.qwen3.modeling_qwen3"])
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
        arguments = (broker, fresh_topics, *settings, seam, call, tmp_path / "stderr")
        process = FORKS.Process(target=doomed_trainer.train, args=arguments, daemon=True)
        process.start()
        process.join(120)
        assert process.exitcode == -signal.SIGKILL, (seam, (tmp_path / "stderr").read_text())

    run(*settings, topics=fresh_topics, log=kafka_log, stop=threading.Event(), metrics=Metrics())
    lineage = Lineage("policy")
    for record in read_to_end(kafka_log, fresh_topics.name(Topic.WEIGHTS)):
        lineage.fold(WEIGHTS.decode(record.value))
    own = {version: load_file(Path(one.uri) / "model.safetensors") for version, one in lineage.versions.items()}
    assert is_same(own, content(source))
