"""A run's folder with a real broker, and its page served beside the test."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx
import msgspec

from tests.consumers.page.boards import step
from tests.serving import until
from tracegrad.compose.local_kafka.broker import LocalKafka
from tracegrad.compose.page.serve import serve_live
from tracegrad.compose.run.pipeline import prepare_run, prepare_topics
from tracegrad.compose.run.settings import RunSettings
from tracegrad.compose.run.wiring import Wiring, port_of
from tracegrad.producers.llm_gateway.config import PolicyConfig
from tracegrad.schemas.keys import policy_key
from tracegrad.schemas.records.training import TRAINING_STEPS
from tracegrad.schemas.topics import Topic


class Served(NamedTuple):
    """What the test works with."""

    kafka: LocalKafka
    wiring: Wiring
    url: str
    """Without the token."""
    link: str
    """With it."""

    def train(self, *numbers: int) -> None:
        """Appends these steps, as the trainer does."""
        writer = self.wiring.log().writer()
        topic = self.wiring.topics.name(Topic.TRAINING_STEPS)
        for number in numbers:
            record = msgspec.structs.replace(step(number), run=self.wiring.record.hash)
            writer.append(topic, key=policy_key(record.policy), value=TRAINING_STEPS.encode(record)).result(30)
        writer.close()

    @contextmanager
    def client(self) -> Iterator[httpx.Client]:
        """A browser without scripts that has opened the link."""
        limits = httpx.Limits(max_connections=None)
        with httpx.Client(base_url=self.url, follow_redirects=True, timeout=20, limits=limits) as client:
            assert client.get(self.link).status_code == 200
            yield client


@contextmanager
def served(folder: Path) -> Iterator[Served]:
    """A run without a record."""
    run_dir = prepare_run(RunSettings(run="shown", policy=PolicyConfig(model="none")), folder / "shown")
    wiring = Wiring(run_dir)
    stop = threading.Event()
    with LocalKafka(run_dir.kafka, port=port_of(wiring.endpoints.bootstrap_servers)) as kafka:
        prepare_topics(wiring)
        wiring = Wiring(run_dir)
        url = wiring.endpoints.page_url
        page = threading.Thread(target=serve_live, args=(wiring,), kwargs={"port": port_of(url), "stop": stop})
        page.start()
        try:
            until(lambda: is_there(url), what="the page answers")
            yield Served(kafka, wiring, url, wiring.page_link)
        finally:
            stop.set()
            page.join(30)
            assert not page.is_alive()


def is_there(url: str) -> bool:
    """Whether the page answers at all."""
    try:
        return httpx.get(url, timeout=5).status_code == 403
    except httpx.TransportError:
        return False
