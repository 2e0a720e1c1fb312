"""What the views show of a run, by its topics; and the threads that read them."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from msgspec.structs import replace

from tests.consumers.page.boards import PORT, RUN, TOPICS, browser, fold_topics, new_board, step
from tests.consumers.page.looking import draw
from tests.memory_log import MemoryLog
from tests.serving import until
from tracegrad.consumers.index.build import IndexProgress
from tracegrad.consumers.page.board import Board, ViewQuery
from tracegrad.consumers.page.board_reader import FOLDED, BoardReader
from tracegrad.consumers.page.run import now_of
from tracegrad.consumers.page.system import model
from tracegrad.schemas.errors import UnavailableError
from tracegrad.schemas.log.protocol import Offsets, TopicPartition
from tracegrad.schemas.records.calls import Purpose
from tracegrad.schemas.records.process_status import PROCESS_STATUS, ProcessState, SupervisedProcess
from tracegrad.schemas.records.rollouts import ROLLOUT_EVENTS, GroupRef, RolloutEvent, RolloutState
from tracegrad.schemas.records.training import TRAINING_STEPS, Accounting
from tracegrad.schemas.records.weights import WEIGHT_ACKS, WeightAck
from tracegrad.schemas.topics import Stage, Topic


@pytest.fixture
def board(tmp_path: Path, memory_log: MemoryLog) -> Board:
    """Of a run without a record."""
    return new_board(tmp_path, memory_log)


def put(log: MemoryLog, topic: Topic, value: bytes) -> None:
    """Appends to the first partition."""
    log.append(TOPICS.name(topic), b"k", value, (), 0)


def event(rollout: str, state: RolloutState) -> bytes:
    """Of a rollout's first attempt."""
    group = GroupRef(id="g", size=1, member=0, index=0)
    return ROLLOUT_EVENTS.encode(
        RolloutEvent(
            rollout_id=rollout,
            attempt_id="0001",
            attempt_number=0,
            state=state,
            group=group,
            task_id="t",
            policy="policy",
            purpose=Purpose.TRAIN,
        )
    )


def test_agents_at_work_are_those_of_the_run_that_have_not_ended(board: Board, memory_log: MemoryLog) -> None:
    """Raw topics hold other runs' rollouts too."""
    mine, ended, other = f"{RUN}{1:020x}", f"{RUN}{2:020x}", f"{'f' * 8}{3:020x}"
    for rollout, state in (
        *((one, RolloutState.STARTED) for one in (mine, ended, other)),
        (ended, RolloutState.SUCCEEDED),
    ):
        put(memory_log, Topic.ROLLOUT_EVENTS, event(rollout, state))
    fold_topics(board, memory_log)
    assert (now_of(board).num_running, now_of(board).concurrency) == (1, 8)


def test_every_topic_has_its_place_in_the_picture(board: Board) -> None:
    """Once."""
    shown = [topic for _, _, topics in model(board, ViewQuery())["rooms"] for topic, _ in topics]
    assert sorted(shown) == sorted(Topic)


async def test_htmx_gets_the_part_that_changes(board: Board) -> None:
    """Without the page around it."""
    async with browser(board) as client:
        part = (await client.get("/system", headers={"HX-Request": "true"})).text
        whole = (await client.get("/system")).text
    assert "<html" not in part and part.strip() in whole


async def test_a_view_whose_broker_is_not_there_yet_asks_again_by_itself(board: Board) -> None:
    """One that there is none of does not."""
    board.disconnect()
    async with browser(board) as client:
        waits = await client.get("/episode/ab?color=none")
        none = await client.get("/no-such-view")
    assert waits.status_code == 503 and 'hx-get="/episode/ab?color=none" hx-trigger="load' in waits.text
    assert none.status_code == 404 and "hx-get" not in none.text


@pytest.mark.parametrize(
    "of", ["/", "/learned", "/groups?q=word", "/group/ab", "/episode/ab", "/system", "/no-such-view"]
)
async def test_each_view_says_why_nothing_new_comes(board: Board, of: str) -> None:
    """In the part that changes, once, as text; and no more once it comes again."""
    board.disconnect()
    board.refuse("another reader <has> the broker")
    async with browser(board) as client:
        whole = (await client.get(of)).text
        part = (await client.get(of, headers={"HX-Request": "true"})).text
        board.set_trouble("")
        again = (await client.get(of, headers={"HX-Request": "true"})).text
    assert whole.count("another reader &lt;has&gt; the broker") == part.count("another reader &lt;has&gt;") == 1
    assert "another reader" not in again


async def test_a_list_that_is_not_read_yet_does_not_say_that_nothing_fits(board: Board) -> None:
    """It asks again, for what was asked; once all is read it says what it found."""
    async with browser(board) as client:
        waits = (await client.get("/groups?where=reward%3C1")).text
        board.index_progress = IndexProgress(0, 0)
        read = (await client.get("/groups?where=reward%3C1")).text
        empty = (await client.get("/groups")).text
    assert "are being read" in waits and 'hx-get="/groups?where=reward%3C1"' in waits and "No group fits" not in waits
    assert "No group fits" in read and "hx-get" not in read
    assert "No group has an episode yet" in empty


async def test_a_run_tells_who_serves(board: Board, memory_log: MemoryLog) -> None:
    """Of a run that is over nobody serves any more."""
    ack = WeightAck(run=RUN, version=10, epoch=1, engine_id="engine-0", policy="policy", load_s=0.5)
    put(memory_log, Topic.WEIGHT_ACKS, WEIGHT_ACKS.encode(ack))
    fold_topics(board, memory_log)
    async with browser(board) as client:
        live = (await client.get("/")).text
        board.about = replace(board.about, is_live=False)
        ended = (await client.get("/")).text
    assert "served 10" in live and "serves version 10" in live
    assert "served last: version 10" in ended and "serves version" not in ended
    again = SupervisedProcess(process="engine", state=ProcessState.RUNNING, since_ms=9)
    put(memory_log, Topic.PROCESS_STATUS, PROCESS_STATUS.encode(again))
    fold_topics(board, memory_log)
    async with browser(board) as client:
        stopped = (await client.get("/")).text
        board.about = replace(board.about, is_live=True)
        loads = (await client.get("/")).text
    assert "served last: version 10" in stopped, "a start that served nothing takes nothing away"
    assert "No engine serves a version of this run yet" in loads and "served 10" not in loads


async def test_why_groups_did_not_train_leads_to_them(board: Board, memory_log: MemoryLog) -> None:
    """By a word of the trainer's; one that is none leads nowhere."""
    accounting = Accounting(consumed=5, trained=0, excluded={"stale": 2, "<odd>": 3})
    put(memory_log, Topic.TRAINING_STEPS, TRAINING_STEPS.encode(replace(step(1), accounting=accounting)))
    fold_topics(board, memory_log)
    async with browser(board) as client:
        html = (await client.get("/system")).text
    assert '<a href="/groups?where=excluded%3Dstale">stale: It was sampled by too old a version</a>' in html
    assert "<td>&lt;odd&gt;</td>" in html and "odd" not in "".join(re.findall('href="([^"]*)"', html))


def test_a_dead_letter_says_what_its_reason_means(board: Board) -> None:
    """By stage."""
    board.dead_letters["assemble", "late"] = 2
    assert "late: It came for a rollout that has no open attempt any more" in draw(board, "/system")


@pytest.mark.parametrize("path", ["//[", "//[/", "//evil.example/", "///", "/%ff", "/groups?q=%ff&where=[", "/?&&=&"])
async def test_no_address_is_an_error_of_the_server(board: Board, path: str) -> None:
    """As a view, as its numbers, as its stream; and none is another's name."""
    async with browser(board) as client:
        host = f"http://127.0.0.1:{PORT}"
        for asked in (path, f"/json?of={quote(path)}"):
            answer = await client.get(httpx.URL(host, raw_path=asked.encode()))
            assert answer.status_code in (200, 404), asked
    if path.startswith("//"):
        assert answer.status_code == 404


def test_a_broker_that_is_closed_in_the_midst_of_a_measure_ends_no_thread(tmp_path: Path) -> None:
    """The measure is of the log that it began with, or fails as others do."""

    class Closed(MemoryLog):
        def offsets(self, topic: str) -> Mapping[int, Offsets]:
            closing.disconnect()
            return super().offsets(topic)

    closing = new_board(tmp_path, Closed())
    with pytest.raises(UnavailableError, match="closed"):
        BoardReader(closing, threading.Event(), starts={}).settle(1.0)


def test_the_threads_keep_the_board_up_to_date(board: Board, memory_log: MemoryLog) -> None:
    """Folded at once; measured while somebody looks; of the newest alone where that is enough."""
    for number in range(1, 4):
        put(memory_log, Topic.TRAINING_STEPS, TRAINING_STEPS.encode(step(number)))
    last = FOLDED[Topic.DEAD_LETTERS]
    assert last is not None
    for _ in range(last + 5):
        put(memory_log, Topic.DEAD_LETTERS, b"")
    reading = BoardReader(board, threading.Event(), starts={TopicPartition(TOPICS.name(Topic.LLM_CALLS), 0): 0})
    reading.start()
    try:
        until(lambda: board.is_read)
        assert [one.step for one in board.state.steps] == [1, 2, 3]
        assert board.dead_letters.total() == last
        assert board.counts == {}
        board.note_look()
        until(lambda: bool(board.counts))
        assert board.counts[Topic.TRAINING_STEPS].num == 3
        assert set(board.counts[Topic.LLM_CALLS].lag) == {Stage.NORMALIZE}
        put(memory_log, Topic.TRAINING_STEPS, TRAINING_STEPS.encode(step(4)))
        until(lambda: len(board.state.steps) == 4)
    finally:
        reading.close()


def test_the_index_is_filled_when_a_view_asks_for_it(board: Board, memory_log: MemoryLog) -> None:
    """Not before; and on, when it is asked again."""
    put(memory_log, Topic.TRAINING_STEPS, TRAINING_STEPS.encode(step(1)))
    reading = BoardReader(board, threading.Event(), starts={})
    reading.start()
    try:
        until(lambda: board.is_read)
        assert not board.index_path.exists()

        def num_steps() -> int:
            with board.index() as index:
                return int(index.execute("SELECT COUNT(*) FROM steps").fetchone()[0])

        until(lambda: num_steps() == 1)
        put(memory_log, Topic.TRAINING_STEPS, TRAINING_STEPS.encode(step(2)))
        until(lambda: num_steps() == 2)
    finally:
        reading.close()


async def test_why_nothing_was_learned_is_the_first_thing_of_a_run_that_ended(board: Board) -> None:
    """As text, whatever an example holds; of any other run nothing is said."""
    async with browser(board) as client:
        assert "Why nothing was learned" not in (await client.get("/")).text
        board.about = replace(board.about, is_live=False, causes=["cause: agent_raised: KeyError at agent.py:7 (<b>)"])
        page = (await client.get("/")).text
    assert page.index("cause: agent_raised: KeyError at agent.py:7 (&lt;b&gt;)") < page.index('class="facts"')
