"""What a page leaves for the next: the same views again, of bytes that nobody needs to trust."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.consumers.page.boards import RUN, TOPICS, new_board
from tests.consumers.page.looking import draw
from tests.consumers.page.test_charts import step
from tests.memory_log import MemoryLog
from tracegrad.consumers.page import run, system
from tracegrad.consumers.page.board import Ask, Board, TopicCount
from tracegrad.consumers.page.episodes.told import End, Side, TaskSeen, Told, Tried
from tracegrad.consumers.page.episodes.told import Kept as Learned
from tracegrad.consumers.page.kept import keep, read_kept, restore
from tracegrad.consumers.views.run_state import RunState
from tracegrad.schemas.ids import RunHash
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
    board.counts = {Topic.TRANSITIONS: TopicCount(8, 0.5, {Stage.CREDIT: 1})}
    board.ends = {Topic.TRANSITIONS: {0: Offsets(2, 10)}}
    board.learned = learned_kept()
    board.is_read = True
    return board


def learned_kept() -> Learned:
    """A task that was lost and is won; the records are gone."""
    tries = [Tried("t", f"e{at}", 1_000 * at, at, float(at), 1, at) for at in (0, 1)]
    ends = [
        End(
            episode=f"e{at}", partition=0, offset=at, at_ms=1_000 * at, version=at, reward=float(at),
            state="succeeded", calls=1, tokens=4, tools=at, tools_failed=0, tool=["calculator"] * at,
        )
        for at in (0, 1)
    ]  # fmt: skip
    task = TaskSeen("t", tries[0], tries[1], 2, 0)
    sides = [Side(1, at, float(at), 1.0, float(at)) for at in (0, 1)]
    told = Told(
        task=task, tries=tries, first=ends[0], last=ends[1], versions=[(1, 1, 0.5)], before=sides[0], after=sides[1],
        others=[task], num_others=1,
    )  # fmt: skip
    return Learned(mark="mark", told=told, records=[b"no record"])


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


def test_the_next_page_shows_what_the_last_one_showed(tmp_path: Path) -> None:
    """Run and System, and the curves, are equal; rates are not kept."""
    board, again = read_board(tmp_path), new_board(tmp_path, MemoryLog(), is_live=False)
    kept = read_kept(keep(board, "mark") or b"", RUN)
    assert kept is not None and kept.mark == "mark"
    restore(again, kept)
    assert run.numbers(again, Ask()) == run.numbers(board, Ask())
    assert run.model(again, Ask()) == run.model(board, Ask())
    assert "uses calculator now" in draw(again, "/") and not again.asks_log and not again.wanted.is_set()
    board.counts = {topic: one._replace(per_s=None) for topic, one in board.counts.items()}
    assert system.model(again, Ask()) == system.model(board, Ask())


def test_the_log_is_asked_for_while_views_read_it(tmp_path: Path) -> None:
    """A view that read it holds it for a while, Data until the page ends; a refusal ends either."""
    now = [100.0]
    about, log = new_board(tmp_path, MemoryLog(), is_live=False).about, MemoryLog()
    board = Board(about, TOPICS, RunState(TOPICS, RUN, "policy"), clock=lambda: now[0])
    system.model(board, Ask())
    run.numbers(board, Ask())
    assert not board.asks_log
    assert board.log is None and board.asks_log
    board.connect(log, log, "")
    now[0] += 31
    assert not board.asks_log
    assert board.log is log
    assert board.raw is log
    now[0] += 1e9
    assert board.log is log
    now[0] += 1e9
    assert board.asks_log
    board.refuse("another has it")
    assert not board.asks_log and board.trouble == "another has it"


def test_what_is_another_runs_or_releases_is_passed_over(tmp_path: Path) -> None:
    """So that it is made anew."""
    data = keep(read_board(tmp_path), "mark") or b""
    assert read_kept(data, RunHash("ffffffff")) is None
    assert read_kept(data.replace(b"page/1", b"page/9"), RUN) is None
    assert read_kept(b"", RUN) is None


@given(st.data())
def test_damage_is_never_more_than_a_page_without_it(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Cut or changed anywhere: none, or a board that all views can show."""
    folder = tmp_path_factory.getbasetemp()
    whole = keep(read_board(folder), "mark") or b""
    at = data.draw(st.integers(0, len(whole) - 1))
    damaged = whole[:at] + data.draw(st.binary(max_size=2)) + whole[at + data.draw(st.integers(0, 2)) :]
    kept = read_kept(damaged, RUN)
    if kept is not None:
        board = new_board(folder, MemoryLog(), is_live=False)
        restore(board, kept)
        run.model(board, Ask())
        run.numbers(board, Ask())
        system.model(board, Ask())
        draw(board, "/")


def test_what_was_learned_is_left_out_before_the_curves_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a file that would be too large; of one that still is, none is made."""
    board = read_board(tmp_path)
    whole = keep(board, "mark") or b""
    monkeypatch.setattr("tracegrad.consumers.page.kept.MAX_BYTES", len(whole) - 1)
    kept = read_kept(keep(board, "mark") or b"", RUN)
    assert kept is not None and kept.learned is None and kept.records
    monkeypatch.setattr("tracegrad.consumers.page.kept.MAX_BYTES", 10)
    assert keep(board, "mark") is None
