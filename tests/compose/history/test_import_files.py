"""Files become a log once, whoever is killed when."""

from __future__ import annotations

import gzip
import json
import threading
import time
from collections import Counter
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from tests.compose.history.exporting import BEGAN_NS, framed, json_lines, logs, spans
from tests.memory_log import MemoryLog
from tests.streams.make import TOPICS, otlp, span, spans_of
from tracegrad.compose.files import read_record, write_record
from tracegrad.compose.history.exports import import_files as module
from tracegrad.compose.history.exports.exported_files import FileList, list_files
from tracegrad.compose.history.exports.import_files import ImportProgress, import_files
from tracegrad.schemas.errors import ConfigurationError, LogGapError, UnavailableError
from tracegrad.schemas.log.protocol import Position, Record
from tracegrad.schemas.otlp.signal import LOGS
from tracegrad.schemas.records.dead_letters import dead_letter_fields
from tracegrad.schemas.topics import Topic, Topics

SPANS, OF_LOGS, DEAD = (TOPICS.name(topic) for topic in (Topic.OTLP_SPANS, Topic.OTLP_LOGS, Topic.DEAD_LETTERS))
NUM_REQUESTS = 9
CALL = {"model": "gpt-4o", "messages": [{"role": "user", "content": "2+2?"}], "answer": "4"}


class Killed(BaseException):
    """As SIGKILL: nothing of the program runs on."""


class KillableLog(MemoryLog):
    """Its process is killed at one of its steps: before or behind an append."""

    steps_left = 10**9

    def step(self) -> None:
        """Raises Killed at the one that is chosen."""
        self.steps_left -= 1
        if self.steps_left == 0:
            raise Killed

    def append(self, *args: Any, **rest: Any) -> Future[Position]:
        self.step()
        done = super().append(*args, **rest)
        self.step()
        return done


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Spans, logs of a trace and of none, calls, and damage."""
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "spans.json").write_bytes(
        json_lines(map(spans, range(NUM_REQUESTS))) + b'{broken\n{"resourceMetrics": []}\n'
    )
    traced = logs(2, trace_id=(3).to_bytes(16))
    (folder / "logs.json").write_bytes(json_lines([logs(0), traced, logs(4)], LOGS))
    (folder / "x.calls.jsonl").write_text("".join(json.dumps(CALL) + "\n" for _ in range(3)))
    (folder / "cut.pb.gz").write_bytes(gzip.compress(framed([spans(20), otlp(span("ab" * 16, 0))]))[:-20])
    return folder


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """The source's folder."""
    (tmp_path / "source").mkdir()
    return tmp_path / "source"


def new_log() -> KillableLog:
    """Of a source that is new."""
    log = KillableLog(lambda: 1.0)
    log.create_topics(TOPICS, policies=["policy"], partitions=3)
    return log


def imported(path: Path, folder: Path, log: MemoryLog, topics: Topics, **rest: Any) -> ImportProgress:
    """As a source is: what was listed at first is kept beside the progress."""
    if not (list_file := folder / "files.json").exists():
        write_record(list_file, list_files(str(path)))
    return import_files(read_record(list_file, FileList), folder / "import.json", log, topics, **rest)


def held(log: MemoryLog) -> list[Record]:
    """All that is written, with where."""
    return [record for topic in (SPANS, OF_LOGS, DEAD) for record in log.records(topic)]


def test_every_item_is_on_the_log_once_under_its_trace(files: Path, source: Path) -> None:
    """With the time of its latest end; what is none is a dead letter that says where it lay."""
    log = new_log()
    progress = imported(files, source, log, TOPICS)
    records = log.records(SPANS)
    of_calls = [record for record in records if b".calls." in dict(record.headers)[module.PIECE_HEADER]]
    of_spans = [record for record in records if record not in of_calls]
    found = Counter((one.trace_id, one.span_id) for record in of_spans for _, one in spans_of([record.value or b""]))
    wanted = Counter(
        (one.trace_id, one.span_id) for number in (*range(NUM_REQUESTS), 20) for _, one in spans_of([spans(number)])
    )
    assert found == wanted
    for record in of_spans:
        read = [one for _, one in spans_of([record.value or b""])]
        assert {one.trace_id.hex().encode() for one in read} == {record.key}
        assert record.timestamp_ms == max(one.end_time_unix_nano for one in read) // 10**6
    assert [record.timestamp_ms for record in sorted(of_calls, key=lambda one: one.timestamp_ms)] == [1, 2, 3]
    assert sorted(str(record.key) for record in log.records(OF_LOGS)) == sorted(
        str(key) for key in (None, None, (3).to_bytes(16).hex().encode())
    )
    dead = [dead_letter_fields(record.headers) for record in log.records(DEAD)]
    assert sorted((one["stage"], one["reason"]) for one in dead) == [("import", "undecodable")] * 3
    # Of the packed file, what was unpacked of its last message, and what could not be.
    damage = ["cut.pb.gz, item 2", "cut.pb.gz, item 3", "spans.json, item 10"]
    assert sorted(one["detail"].split(":")[0] for one in dead) == damage
    assert progress.is_whole
    assert progress.counts == {
        "requests": NUM_REQUESTS + 1 + 3 + 3,
        "spans": wanted.total() + 3,
        "log_records": 3,
        "records": len(records) + 3,
        "undecodable": 3,
        "metrics": 1,
        "lost_bytes": progress.counts["lost_bytes"],
    }
    assert len(progress.told) == 3
    names = (SPANS, OF_LOGS, DEAD)
    assert progress.ends == {name: [at.end for at in log.offsets(name).values()] for name in names}


def test_a_second_call_writes_nothing(files: Path, source: Path) -> None:
    """All of it is there."""
    log = new_log()
    first = imported(files, source, log, TOPICS)
    before = held(log)
    assert imported(files, source, log, TOPICS) == first
    assert held(log) == before


@pytest.mark.slow
@pytest.mark.parametrize("window", [1, 4, 500])
def test_killed_between_any_two_steps_it_ends_with_equal_bytes(
    files: Path, tmp_path: Path, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step is each append and each file that is written; again and again at the next one, too."""
    monkeypatch.setattr(module, "_WINDOW_RECORDS", window)
    monkeypatch.setattr(time, "time", lambda: 1.8e9)
    (tmp_path / "whole").mkdir()
    whole = new_log()
    progress = imported(files, tmp_path / "whole", whole, TOPICS)
    log = new_log()

    def killable(*args: Any) -> None:
        log.step()
        write_record(*args)
        log.step()

    monkeypatch.setattr(module, "write_record", killable)
    # Every few steps again, then once at each.
    for first, later in [*((number, number) for number in (3, 4, 7)), *((number, 10**9) for number in range(1, 400))]:
        folder = tmp_path / f"{window}-{first}-{later}"
        folder.mkdir()
        log, num_killed = new_log(), 0
        log.steps_left = first
        while True:
            try:
                found = imported(files, folder, log, TOPICS)
                break
            except Killed:
                num_killed += 1
                log.steps_left = later
        assert held(log) == held(whole), (first, later)
        assert found.counts == progress.counts
        if not num_killed:
            assert first > 50
            return
    pytest.fail("it has more steps than were tried")


def test_records_that_were_never_acknowledged_are_written_again(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those behind them lie there already, and stay alone."""
    monkeypatch.setattr(time, "time", lambda: 1.8e9)
    log, whole = new_log(), new_log()
    for folder in ("whole", "source"):
        (tmp_path / folder).mkdir()
    imported(files, tmp_path / "whole", whole, TOPICS)
    log.fail_next(UnavailableError("away"))
    with pytest.raises(UnavailableError):
        imported(files, tmp_path / "source", log, TOPICS)
    imported(files, tmp_path / "source", log, TOPICS)

    def once(written: MemoryLog) -> Counter[object]:
        return Counter((one.topic, one.partition, one.value, one.headers) for one in held(written))

    assert once(log) == once(whole)


def test_it_stops_when_it_is_told_and_goes_on(files: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a window, whose records are acknowledged."""
    monkeypatch.setattr(module, "_WINDOW_RECORDS", 2)
    log, stop, told = new_log(), threading.Event(), list[ImportProgress]()
    stop.set()
    progress = imported(files, source, log, TOPICS, stop=stop, tell=told.append)
    assert told == [progress]
    assert not progress.is_whole
    assert progress.counts["records"] == len(log.records(SPANS)) + len(log.records(OF_LOGS))
    assert imported(files, source, log, TOPICS).is_whole


def test_spans_of_a_trace_in_many_requests_are_one_record(tmp_path: Path, source: Path) -> None:
    """As a Collector writes them, requests hold spans of many traces; they stay in order, and below a record's size."""
    one, other, large = "ab" * 16, "cd" * 16, "x" * 600_000
    requests = [otlp(span(one, 1)), otlp(span(other, 2)), otlp(span(one, 3), span(other, 4), span(one, 5))]
    requests += [otlp(span(other, 6, text=large)), otlp(span(other, 7, text=large))]
    (tmp_path / "x").write_bytes(framed(requests))
    log = new_log()
    assert imported(tmp_path / "x", source, log, TOPICS).counts["records"] == 3
    found = [(record.key, [it.span_id[-1] for _, it in spans_of([record.value or b""])]) for record in held(log)]
    in_order = sorted(found, key=lambda one: one[1])
    assert in_order == [(one.encode(), [1, 3, 5]), (other.encode(), [2, 4, 6]), (other.encode(), [7])]


def test_a_clock_that_goes_wrong_ends_no_import(tmp_path: Path, source: Path) -> None:
    """A broker refuses records of the future, and 0 means now."""
    ends = (0, 2 * BEGAN_NS)
    (tmp_path / "x").write_bytes(framed(otlp(span(f"{at + 1:032x}", 1, at=at)) for at in ends))
    log = new_log()
    imported(tmp_path / "x", source, log, TOPICS)
    listed_ms = json.loads((source / "files.json").read_bytes())["listed_ms"]
    assert [record.timestamp_ms for record in log.records(SPANS)] == [1, listed_ms]


def test_what_no_record_holds_is_told_by_its_reason(tmp_path: Path, source: Path) -> None:
    """By reference, with its file and item; the rest of its request is there."""
    made = spans_of([spans(0)])
    broken = span("ab" * 16, 1)
    broken.span_id = b"short"
    (tmp_path / "x").write_bytes(framed([otlp(*[one for _, one in made], broken)]))
    log = new_log()
    progress = imported(tmp_path / "x", source, log, TOPICS)
    assert (progress.counts["invalid_id"], progress.counts["spans"]) == (1, len(made))
    (dead,) = log.records(DEAD)
    told = dead_letter_fields(dead.headers)
    assert (told["reason"], told["item"], told["piece"]) == ("invalid_id", "1", "1 0 x")


def test_files_of_nothing_that_is_read_are_an_error(tmp_path: Path, source: Path) -> None:
    """It says what they are."""
    (tmp_path / "x").write_text('[{"traceId":"ab"}]')
    with pytest.raises(ConfigurationError, match=r"expected requests in OTLP.*Zipkin"):
        imported(tmp_path / "x", source, new_log(), TOPICS)


def test_a_log_that_lost_records_is_not_gone_on_with(files: Path, source: Path) -> None:
    """Nothing would bring them back, for the files are read from where it was."""
    log = new_log()
    imported(files, source, log, TOPICS)
    log.cut(SPANS, 0, end=1)
    with pytest.raises(LogGapError, match="begin again"):
        imported(files, source, log, TOPICS)


def test_how_far_times_go_back_is_kept(tmp_path: Path, source: Path) -> None:
    """Of two Collectors' files, and of one in the order of time; what has no time is as old as what came before it."""
    no_time = otlp(span("ab" * 16, 0, at=0))
    for name, numbers, behind_s in (("ordered", range(6), 0), ("mixed", (0, 1, 5, 2, 3, 4), 3)):
        (file := tmp_path / f"{name}.json").write_bytes(json_lines([*map(spans, numbers), no_time]))
        done = import_files(list_files(str(file)), source / name, new_log(), TOPICS)
        assert done.behind_ms == behind_s * 1_000


def test_what_was_behind_a_packed_files_cut_is_told_as_unknown(tmp_path: Path, source: Path) -> None:
    """Where and at the end: nothing of what is there says how much that was."""
    (folder := tmp_path / "cut").mkdir()
    (folder / "spans.json.gz").write_bytes(gzip.compress(json_lines([spans(0), spans(1)]))[:-8])
    progress = imported(folder, source, new_log(), TOPICS)
    assert progress.counts["requests"] == 2 and progress.counts["lost_bytes"] == 0
    assert "an unknown number of bytes lost: expected a whole packed file" in progress.told[0]
    assert progress.text.endswith("; an unknown number of bytes lost")
