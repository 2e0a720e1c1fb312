"""What a page leaves for the next: the same views again, of bytes that nobody needs to trust."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.consumers.page.boards import RUN, TOPICS, new_board, step
from tests.consumers.page.looking import draw
from tests.memory_log import MemoryLog
from tracegrad.compose.page.page_file import PAGE_FILE, read_page_file, restore_board, write_page_file
from tracegrad.compose.run.pipeline import prepare_run
from tracegrad.compose.run.run_dir import RunDir
from tracegrad.compose.run.settings import RunSettings
from tracegrad.compose.run.wiring import Wiring
from tracegrad.consumers.page import run, system
from tracegrad.consumers.page.board import Board, TopicCount, ViewQuery
from tracegrad.consumers.page.board_reader import BoardReader
from tracegrad.consumers.views.run_state import RunState
from tracegrad.producers.llm_gateway.config import PolicyConfig
from tracegrad.schemas.ids import RunName
from tracegrad.schemas.log.protocol import Offsets, Record
from tracegrad.schemas.records.held_out import HeldOutPass, HeldOutScore
from tracegrad.schemas.records.process_status import PROCESS_STATUS, ProcessState, SupervisedProcess
from tracegrad.schemas.records.training import TRAINING_STEPS
from tracegrad.schemas.records.weights import WEIGHT_ACKS, WEIGHTS, EpochClaim, VersionManifest, WeightAck
from tracegrad.schemas.topics import Stage, Topic


def read_board(folder: Path) -> Board:
    """Of a run with two trainers, the second of which went back to step 2."""
    board = new_board(folder, MemoryLog(), is_live=False)
    for epoch, numbers in ((1, (1, 2, 3)), (2, (2,))):
        claim = EpochClaim(policy="policy", run=RUN, epoch=epoch, trainer_id="t")
        fold(board, Topic.WEIGHTS, WEIGHTS.encode(claim))
        for number in numbers:
            one = msgspec.structs.replace(step(number, alarms=("a",)), epoch=epoch)
            fold(board, Topic.TRAINING_STEPS, TRAINING_STEPS.encode(one))
            fold(board, Topic.WEIGHTS, WEIGHTS.encode(version(number, epoch)))
    score = HeldOutScore(mean=0.5, low=0.4, high=0.6, num_scored=4, version=2)
    held_out = HeldOutPass(
        policy="policy",
        run=RUN,
        number=0,
        step=2,
        since_version=2,
        first_group=0,
        num_tasks=4,
        num_samples=1,
        score=score,
    )
    fold(board, Topic.WEIGHTS, WEIGHTS.encode(held_out))
    ack = WeightAck(run=RUN, version=2, epoch=2, engine_id="engine-0", policy="policy", load_s=0.1)
    fold(board, Topic.WEIGHT_ACKS, WEIGHT_ACKS.encode(ack))
    status = SupervisedProcess(process="trainer", state=ProcessState.FATAL, num_restarts=2, why="killed")
    fold(board, Topic.PROCESS_STATUS, PROCESS_STATUS.encode(status))
    # It was started again since, and stopped before it served anything.
    again = SupervisedProcess(process="engine", state=ProcessState.RUNNING, since_ms=9)
    fold(board, Topic.PROCESS_STATUS, PROCESS_STATUS.encode(again))
    board.dead_letters["assemble", "<malformed>"] = 3
    board.counts = {Topic.TRANSITIONS: TopicCount(8, {Stage.CREDIT: 1})}
    board.ends = {Topic.TRANSITIONS: {0: Offsets(2, 10)}}
    board.is_read = True
    return board


def fold(board: Board, topic: Topic, value: bytes) -> None:
    """As it lies on the topic."""
    board.fold(Record(topic=TOPICS.name(topic), partition=0, offset=0, key=None, value=value))


def version(number: int, epoch: int) -> VersionManifest:
    """Without files."""
    return VersionManifest(
        run=RUN,
        version=number,
        epoch=epoch,
        policy="policy",
        base_version=number - 1,
        kind="lora",
        uri="file:///weights",
        files=(),
        step=number,
        next_offset=number,
    )


class Settled(BoardReader):
    """Of a board that is read."""

    def settle(self, timeout_s: float, stop: threading.Event | None = None) -> bool:
        return True


def write(run_dir: RunDir, board: Board) -> Path:
    """The file of a board."""
    write_page_file(run_dir, board, Settled(board, threading.Event(), starts={}), timeout_s=0.0)
    return run_dir.path / PAGE_FILE


@pytest.fixture(name="run_dir", scope="module")
def made_run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """Without a record."""
    folder = tmp_path_factory.mktemp("runs") / "mine"
    return prepare_run(RunSettings(run=RunName("mine"), policy=PolicyConfig(model="none")), folder)


def read_board_of(run_dir: RunDir) -> Board:
    """The same, of this run."""
    board = read_board(run_dir.path)
    board.about = msgspec.structs.replace(board.about, hash=run_dir.record.hash)
    return board


def restored(run_dir: RunDir) -> Board | None:
    """The board of the next page; None: it has to read."""
    file = read_page_file(run_dir)
    if file is None:
        return None
    again = new_board(run_dir.path, MemoryLog(), is_live=False)
    restore_board(again, file)
    return again


def test_the_next_page_shows_what_the_last_one_showed(run_dir: RunDir) -> None:
    """Run and System, and the curves, are equal, and it asks for no record."""
    board = read_board_of(run_dir)
    write(run_dir, board)
    again = restored(run_dir)
    assert again is not None and again.is_read
    assert run.numbers(again, ViewQuery()) == run.numbers(board, ViewQuery())
    assert run.model(again, ViewQuery()) == run.model(board, ViewQuery())
    assert "/learned" in draw(again, "/") and not again.asks_log and not again.wanted.is_set()
    assert system.model(again, ViewQuery()) == system.model(board, ViewQuery())


def test_the_log_is_asked_for_while_views_read_it(tmp_path: Path) -> None:
    """A view that read it holds it for a while; a refusal ends that."""
    now = [100.0]
    about, log = new_board(tmp_path, MemoryLog(), is_live=False).about, MemoryLog()
    board = Board(about, TOPICS, RunState(TOPICS, RUN, "policy"), clock=lambda: now[0])
    system.model(board, ViewQuery())
    run.numbers(board, ViewQuery())
    assert not board.asks_log
    assert board.log is None and board.asks_log
    board.connect(log)
    now[0] += 31
    assert not board.asks_log
    assert board.log is log
    now[0] += 29
    assert board.asks_log
    board.refuse("another has it")
    assert not board.asks_log and board.trouble == "another has it"


def test_what_is_another_runs_or_releases_or_older_is_passed_over(run_dir: RunDir) -> None:
    """So that it is made anew."""
    path = write(run_dir, read_board_of(run_dir))
    data = path.read_bytes()
    assert read_page_file(run_dir) is not None
    for other in (b"", data.replace(b"page/2", b"page/9"), data.replace(run_dir.record.hash.encode(), b"ffffffff")):
        path.write_bytes(other)
        assert read_page_file(run_dir) is None
    path.write_bytes(data)
    run_dir.endpoints_file.touch()
    assert read_page_file(run_dir) is None


def test_what_comes_while_the_topics_are_read_is_not_taken_for_read(run_dir: RunDir) -> None:
    """The next page reads it, then; of a topic that is not folded nothing is missed."""
    for topic, is_current in ((Topic.EPISODES, True), (Topic.TRAINING_STEPS, False)):
        folder = run_dir.kafka / "log" / f"{Wiring(run_dir).topics.name(topic)}-0"

        class Growing(Settled):
            def settle(self, timeout_s: float, stop: threading.Event | None = None, folder: Path = folder) -> bool:
                folder.mkdir(parents=True)
                (folder / "0.log").write_bytes(b"record")
                return True

        board = read_board_of(run_dir)
        write_page_file(run_dir, board, Growing(board, threading.Event(), starts={}), timeout_s=0.0)
        assert (read_page_file(run_dir) is not None) == is_current
        (folder / "0.log").unlink()
        folder.rmdir()


@given(st.data())
def test_damage_is_never_more_than_a_page_without_it(run_dir: RunDir, data: st.DataObject) -> None:
    """Cut or changed anywhere: none, or a board that all views can show."""
    path = write(run_dir, read_board_of(run_dir))
    whole = path.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    path.write_bytes(whole[:at] + data.draw(st.binary(max_size=2)) + whole[at + data.draw(st.integers(0, 2)) :])
    board = restored(run_dir)
    if board is not None:
        run.model(board, ViewQuery())
        run.numbers(board, ViewQuery())
        system.model(board, ViewQuery())
        draw(board, "/")
