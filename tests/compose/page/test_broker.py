"""The broker that a page opens for a view: how often what was learned is read, and as of when it is marked."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from tests.consumers.audit.small_run import long_run, memory_log
from tests.consumers.page.looking import board_over
from tests.memory_log import MemoryLog
from tests.serving import until
from tracegrad.compose.page import broker, kept
from tracegrad.compose.page.kept import current, mark_of
from tracegrad.compose.run.pipeline import prepare_run
from tracegrad.compose.run.run_dir import RunDir
from tracegrad.compose.run.settings import RunSettings
from tracegrad.compose.run.wiring import Wiring
from tracegrad.consumers.page.board import Board
from tracegrad.consumers.page.episodes import learned
from tracegrad.consumers.page.episodes.told import Kept
from tracegrad.producers.llm_gateway.config import PolicyConfig
from tracegrad.schemas.ids import RunName
from tracegrad.schemas.topics import Topic


def made(folder: Path, name: str) -> RunDir:
    """A run without a record."""
    return prepare_run(RunSettings(run=RunName(name), policy=PolicyConfig(model="none")), folder / name)


class Opened:
    """A run that has ended, whose page was read to the end and now keeps a broker."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log = memory_log(long_run(folder / "weights"))
        self.run_dir = made(folder, "ended")
        self.board = board_over(self.log, self.run_dir.path)
        self.board.about = msgspec.structs.replace(self.board.about, hash=self.run_dir.record.hash)
        self.board.disconnect()
        self.board.is_read = True
        self.num_tried = 0
        opened = self

        @contextmanager
        def open_broker(run_dir: RunDir) -> Iterator[str]:
            yield ""

        class OnMemory(Wiring):
            """Of the run, but for its broker."""

            def log(self, *_: object, **__: object) -> MemoryLog:  # type: ignore[override]
                return opened.log

            kafka = log  # type: ignore[assignment]

        def keep_learned(board: Board, mark: str) -> Kept | None:
            self.num_tried += 1
            return learned.keep_learned(board, mark)

        monkeypatch.setattr(broker, "open_broker", open_broker)
        monkeypatch.setattr(broker, "Wiring", OnMemory)
        monkeypatch.setattr(kept, "keep_learned", keep_learned)

    @contextmanager
    def asked(self) -> Iterator[Board]:
        """While a view wants records."""
        stop, mark = threading.Event(), mark_of(self.run_dir)
        keeper = threading.Thread(target=broker.keep_broker, args=(self.run_dir, self.board, stop, mark))
        keeper.start()
        try:
            until(lambda: self.board.log is not None)
            yield self.board
        finally:
            stop.set()
            keeper.join(20)
        assert not keeper.is_alive()

    def grow(self, topic: Topic) -> None:
        """Something comes."""
        folder = self.run_dir.kafka / "log" / f"{Wiring(self.run_dir).topics.name(topic)}-0"
        folder.mkdir(parents=True)
        (folder / "0.log").write_bytes(b"record")


@pytest.fixture(name="opened")
def opened_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Opened:
    """One with held-out tasks."""
    return Opened(tmp_path, monkeypatch)


def test_a_record_that_is_gone_is_looked_for_once_each_time_the_index_was_filled(opened: Opened) -> None:
    """Not as often as the broker looks whether it is wanted."""
    name = opened.board.topics.name(Topic.EPISODES)
    for number, at in opened.log.offsets(name).items():
        opened.log.truncate(name, number, begin=at.end)
    with opened.asked() as board:
        for num in (1, 2):
            board.wanted.set()
            until(lambda num=num: opened.num_tried >= num)  # type: ignore[misc]
            threading.Event().wait(1.0)
            assert opened.num_tried == num
    assert opened.num_tried == 2 and opened.board.learned is None


def test_what_was_learned_is_left_for_the_next_page(opened: Opened) -> None:
    """Read once."""
    with opened.asked() as board:
        board.wanted.set()
        until(lambda: board.learned is not None)
    found = current(opened.run_dir)
    assert found is not None and found.learned == opened.board.learned and opened.num_tried == 1


@pytest.mark.parametrize("topic", [Topic.TRAINING_STEPS, Topic.EPISODES])
def test_what_comes_once_the_topics_are_being_read_is_not_marked_as_read(opened: Opened, topic: Topic) -> None:
    """The next page reads it, then."""
    with opened.asked() as board:
        opened.grow(topic)
        board.wanted.set()
        until(lambda: board.learned is not None)
    found = current(opened.run_dir)
    assert found is None if topic is Topic.TRAINING_STEPS else found is not None and found.learned is None
