"""Ctrl-C during a replay: while records are folded an orderly stop, elsewhere the end at once."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tracegrad.compose.history.replay import told_to_stop


@pytest.fixture
def interrupts() -> Iterator[None]:
    """Python's own handler, whatever ran in this process before."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts")
def test_a_stop_is_an_event_while_records_are_folded_and_an_end_elsewhere() -> None:
    """However the block ends, what stood there before stands there again."""
    before = signal.getsignal(signal.SIGTERM)
    with told_to_stop() as stop:
        assert not stop.is_set()
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        assert stop.is_set()
    assert signal.getsignal(signal.SIGTERM) is before
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    with pytest.raises(ZeroDivisionError), told_to_stop():
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
