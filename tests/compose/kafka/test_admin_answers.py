"""What the admin client makes of a broker's half-answers, said by a scripted client."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from tracegrad.compose.kafka import admin as admin_module
from tracegrad.compose.kafka.admin import KafkaAdmin
from tracegrad.schemas.errors import UnavailableError
from tracegrad.schemas.log.protocol import Offsets, TopicPartition

WHERE = TopicPartition("run.episodes", 0)
INVALID = -1001
"""librdkafka's OFFSET_INVALID."""


def answering(said: Iterable[int]) -> Callable[..., object]:
    """A client's `list_offsets` that says these offsets, one a call."""
    answers = iter(said)

    def list_offsets(request: dict[object, object], **_: object) -> dict[object, Future[SimpleNamespace]]:
        future: Future[SimpleNamespace] = Future()
        future.set_result(SimpleNamespace(offset=next(answers)))
        return dict.fromkeys(request, future)

    return list_offsets


def asked(
    monkeypatch: pytest.MonkeyPatch, said: Iterable[int], patience_s: float = 0.2
) -> dict[TopicPartition, Offsets]:
    """The offsets that an admin tells of one partition."""
    client = SimpleNamespace(list_offsets=answering(said))
    monkeypatch.setattr(admin_module, "AdminClient", lambda *_, **__: client)
    return KafkaAdmin({"bootstrap.servers": "127.0.0.1:1"}, timeout_s=patience_s).offsets([WHERE])


def test_an_offset_that_the_broker_did_not_say_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken for the log's end, it read as a log that lost its records, which ends a run for good."""
    assert asked(monkeypatch, [0, INVALID, 24]) == {WHERE: Offsets(0, 24)}


def test_a_broker_that_never_says_it_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a log without records."""
    with pytest.raises(UnavailableError, match=r"run\.episodes.*-1001"):
        asked(monkeypatch, [INVALID] * 1000)


@pytest.mark.parametrize(("took_s", "told"), [pytest.param(3.0, 0, id="soon"), pytest.param(11.0, 1, id="late")])
def test_a_leader_that_is_found_within_seconds_is_no_news(
    took_s: float, told: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first lines of a start on a busy machine are not to tell of an error that mends itself."""
    now = [time.monotonic()]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def said() -> Iterable[int]:
        yield 0
        yield INVALID
        now[0] += took_s
        yield INVALID
        yield 24

    with caplog.at_level(logging.WARNING):
        assert asked(monkeypatch, said(), patience_s=15.0) == {WHERE: Offsets(0, 24)}
    assert len(caplog.records) == told
