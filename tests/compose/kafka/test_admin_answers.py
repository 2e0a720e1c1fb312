"""What the admin client makes of a broker's half-answers, said by a scripted client."""

from __future__ import annotations

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


def asked(monkeypatch: pytest.MonkeyPatch, said: Iterable[int]) -> dict[TopicPartition, Offsets]:
    """The offsets that an admin tells of one partition."""
    client = SimpleNamespace(list_offsets=answering(said))
    monkeypatch.setattr(admin_module, "AdminClient", lambda *_, **__: client)
    monkeypatch.setattr(admin_module, "_TIMEOUT_S", 0.2)
    return KafkaAdmin({"bootstrap.servers": "127.0.0.1:1"}).offsets([WHERE])


def test_an_offset_that_the_broker_did_not_say_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken for the log's end, it read as a log that lost its records, which ends a run for good."""
    assert asked(monkeypatch, [0, INVALID, 24]) == {WHERE: Offsets(0, 24)}


def test_a_broker_that_never_says_it_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a log without records."""
    with pytest.raises(UnavailableError, match=r"run\.episodes.*-1001"):
        asked(monkeypatch, [INVALID] * 1000)
