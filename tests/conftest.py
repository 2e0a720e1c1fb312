"""Fixtures for all rooms: one real broker per session, started by the first test that asks for it."""

from __future__ import annotations

import gc
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.collector.build import NO_COLLECTOR
from tests.memory_log import MemoryLog
from tests.tiers import ROOT, is_left_out
from tracegrad.compose.kafka.client_settings import KafkaConfig
from tracegrad.compose.kafka.log import KafkaLog
from tracegrad.compose.kafka.topic_admin import create_topics, plan_topics
from tracegrad.compose.local_kafka.broker import LocalKafka
from tracegrad.schemas.ids import RunName
from tracegrad.schemas.topics import Topics


def pytest_addoption(parser: pytest.Parser) -> None:
    """`make test` leaves the second tier out; what is named on the command line is run in any case."""
    parser.addoption("--all", action="store_true", help="run the second tier too (tests/tiers.toml)")


def pytest_configure(config: pytest.Config) -> None:
    """Few examples in the everyday run, more in the full one; HYPOTHESIS_PROFILE=long for many.

    `attack` (with --timeout 0) runs as many as the hostile bodies are promised for. No deadline: a busy machine is no
    failure.
    """
    for name, max_examples in (("fast", 8), ("full", 30), ("long", 2000), ("attack", 100_000)):
        hypothesis.settings.register_profile(name, max_examples=max_examples, deadline=None)
    # Hundreds of processes are started; each would compile anew what it imports.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    profile = "fast" if config.option.markexpr else "full"
    hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", profile))


def pytest_collection_finish() -> None:
    """What was imported and collected stays: the collector need not look at it again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Bootstrap servers of a real Kafka. Tests that stop or kill a broker start one of their own."""
    with LocalKafka(tmp_path_factory.mktemp("kafka")) as kafka:
        yield kafka.bootstrap_servers


@pytest.fixture(scope="session")
def kafka_log(broker: str) -> KafkaLog:
    """A Log on the real broker."""
    return KafkaLog(broker)


@pytest.fixture
def memory_log() -> MemoryLog:
    """A Log without a broker."""
    return MemoryLog()


@pytest.fixture
def fresh_topics(kafka_log: KafkaLog) -> Topics:
    """Topics of a new run with one policy, `policy`, made on the real broker; raw topics are this test's own too."""
    name = uuid.uuid4().hex[:12]
    topics = Topics(run=RunName(f"run-{name}"), prefix=f"t{name}.")
    create_topics(kafka_log, topics, plan_topics(topics, policies=["policy"], kafka=KafkaConfig()))
    return topics


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The second tier. And importing torch takes seconds: files that need it are not even opened when their tests are
    deselected."""
    if not config.option.all and is_left_out(os.path.relpath(collection_path, ROOT), _named(config)):
        return True
    if "not e2e" in config.option.markexpr and collection_path.name == "e2e":
        return True
    if "not torch" not in config.option.markexpr or collection_path.suffix != ".py":
        return None
    return True if 'importorskip("torch")' in collection_path.read_text(encoding="utf-8") else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Single tests of the second tier."""
    left_out = [] if config.option.all else [item for item in items if is_left_out(item.nodeid, _named(config))]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def _named(config: pytest.Config) -> list[str]:
    return [os.path.relpath(config.invocation_params.dir / name, ROOT) for name in config.args]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """In CI a skip or an expected failure is a failure: what was not run was not seen to work."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("CI") and reporter is not None:
        words, stats = ("skipped", "xfailed", "xpassed"), reporter.stats
        unseen = [word for word in words if not all(map(_is_forgiven, stats.get(word, ())))]
        if unseen and session.exitstatus == pytest.ExitCode.OK:
            reporter.write_line(f"CI: {', '.join(unseen)} tests count as failures")
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _is_forgiven(report: pytest.TestReport) -> bool:
    """Whether CI passes without it: a Collector can be built where go is, and from no package index be had."""
    why = report.longrepr
    return isinstance(why, tuple) and why[2].startswith(f"Skipped: {NO_COLLECTOR}")
