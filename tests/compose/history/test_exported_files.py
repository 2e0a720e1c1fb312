"""Exported files are read whole in each form, from any place of them, and damage costs what it must."""

from __future__ import annotations

import gzip
import json
import re
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from tests.compose.history.exporting import (
    BEGAN_NS,
    FORMS,
    collector_json,
    framed,
    json_lines,
    logs,
    read,
    spans,
    value_of,
    zstd,
)
from tracegrad.compose.history.exports import file_items
from tracegrad.compose.history.exports.exported_files import Place, list_files, read_files
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.otlp.signal import LOGS, TRACES

VALUES = [spans(number) for number in range(4)]
RANDOM = bytes((i * 7919 + i // 3) % 256 for i in range(40))


@pytest.mark.parametrize("form", FORMS)
def test_each_form_gives_the_same_requests(form: str, tmp_path: Path) -> None:
    """Equal bytes, their signal, their latest end."""
    (tmp_path / "x").write_bytes(FORMS[form](VALUES))
    found, damage = read(tmp_path / "x")
    assert list(map(value_of, found)) == VALUES
    assert {one.signal for one in found} == {TRACES}
    assert [one.ended_ms for one in found] == [BEGAN_NS // 10**6 + 1000 * number for number in range(4)]
    assert damage == []


@pytest.mark.parametrize("form", FORMS)
def test_reading_goes_on_behind_any_place(form: str, tmp_path: Path) -> None:
    """Nothing twice, nothing left out."""
    (tmp_path / "x").write_bytes(FORMS[form](VALUES))
    whole, _ = read(tmp_path / "x")
    for number, one in enumerate(whole, 1):
        assert read(tmp_path / "x", one.place)[0] == whole[number:]


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_a_cut_loses_only_what_it_must(form: str, tmp_path: Path) -> None:
    """Wherever a file ends too early: the requests that end before it are there, and what is missing is told."""
    file, values = tmp_path / "x", [spans(number, 1) for number in range(3)]
    ends = [len(FORMS[form](values[:num])) for num in range(len(values) + 1)]
    for end in range(1, ends[-1], 3):
        file.write_bytes(FORMS[form](values)[:end])
        found, damage = read(file)
        assert list(map(value_of, found)) == values[: len(found)]
        if form in ("json-lines", "lengths", "lengths-of-zstd", "gzip-members", "zstd-frames-of-lengths"):
            num_before = max(num for num, at in enumerate(ends) if at <= end)
            # A line without its line feed is one.
            assert len(found) - num_before in ((0, 1) if form in ("json-lines", "gzip-members") else (0,))
            assert damage or end in ends or len(found) > num_before
        elif "-of-" in form and not form.startswith("lengths"):
            assert damage


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 3), st.integers(0, 30), st.binary(min_size=1, max_size=60))
def test_a_broken_line_costs_itself(tmp_path_factory: pytest.TempPathFactory, at: int, begin: int, put: bytes) -> None:
    """Whatever stands in it."""
    lines = json_lines(VALUES).split(b"\n")[:-1]
    lines[at] = b"!" + lines[at][:begin] + put.replace(b"\n", b" ") + b"!"
    file = tmp_path_factory.mktemp("broken") / "x.json"
    file.write_bytes(b"\n".join(lines))
    found, damage = read(file)
    assert list(map(value_of, found)) == VALUES[:at] + VALUES[at + 1 :]
    assert [(one.place, one.num_bytes) for one in damage] == [(Place("x.json", at + 1), len(lines[at].strip()))]


def test_a_broken_message_costs_itself(tmp_path: Path) -> None:
    """Of a known length, packed or not."""
    for broken in (b"\n" + RANDOM, zstd(VALUES[1])[:-3], b'{"resourceSpans": 1}'):
        (tmp_path / "x").write_bytes(framed([VALUES[0], broken, VALUES[2]]))
        found, damage = read(tmp_path / "x")
        assert list(map(value_of, found)) == [VALUES[0], VALUES[2]]
        assert [(one.place.item, one.num_bytes) for one in damage] == [(2, len(broken))]


def test_a_length_beyond_the_end_loses_the_rest_of_that_file_alone(tmp_path: Path) -> None:
    """Nothing says where its next message begins."""
    rest = (1_000_000).to_bytes(4) + VALUES[1] + framed([VALUES[2]])
    (tmp_path / "a").write_bytes(framed(VALUES[:1]) + rest)
    (tmp_path / "b").write_bytes(framed(VALUES[3:]))
    found, damage = read(tmp_path)
    assert list(map(value_of, found)) == [VALUES[0], VALUES[3]]
    assert [(one.place, one.num_bytes) for one in damage] == [(Place("a", 2), len(rest))]
    assert "1000000 bytes" in damage[0].why


def test_what_is_too_long_is_never_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It fits no record; its neighbours do."""
    monkeypatch.setattr(file_items, "MAX_ITEM_BYTES", 2_000)
    long = json_lines([spans(9, text="x" * 70_000)])
    (tmp_path / "x").write_bytes(json_lines(VALUES[:1]) + long + json_lines(VALUES[1:]))
    found, damage = read(tmp_path / "x")
    assert list(map(value_of, found)) == VALUES
    assert [(one.place.item, one.num_bytes) for one in damage] == [(2, len(long))]
    (tmp_path / "x").write_bytes(framed([zstd(b"\0" * 9_000), VALUES[0]]))
    found, damage = read(tmp_path / "x")
    assert list(map(value_of, found)) == VALUES[:1]
    assert "at most 2000 bytes" in damage[0].why


def test_files_of_a_folder_are_read_in_the_order_of_time(tmp_path: Path) -> None:
    """Whatever a rotation calls them, at any depth, spans and logs mixed; hidden and empty ones are none."""
    names = ["spans.json.2.gz", "spans.json.1", "spans-2023-11-14T22-13-22.000.json", "year=2023/day=14/spans.json.zst"]
    for number, name in enumerate([*names, "spans.json"]):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        data = json_lines([spans(number)])
        file.write_bytes(gzip.compress(data) if name.endswith("gz") else zstd(data) if name.endswith("zst") else data)
    (tmp_path / "logs.json").write_bytes(json_lines([logs(8), logs(9)], LOGS))
    (tmp_path / "logs.pb").write_bytes(framed([logs(5), spans(6), logs(7)]))
    (tmp_path / ".hidden").write_bytes(json_lines([spans(99)]))
    (tmp_path / "empty").touch()
    found, damage = read(tmp_path)
    assert list(map(value_of, found)) == [*map(spans, range(5)), logs(5), spans(6), logs(7), logs(8), logs(9)]
    assert [one.signal for one in found[5:]] == [LOGS, TRACES, LOGS, LOGS, LOGS]
    assert damage == []
    by_glob = list(read_files(list_files(str(tmp_path / "**/spans.json*"))))
    assert [one.place.file for one in by_glob] == [names[0], names[1], names[3], "spans.json"]


def test_one_message_is_read_however_it_is_spread(tmp_path: Path) -> None:
    """An object of the S3 exporter, and what a person has made readable."""
    (tmp_path / "a.binpb").write_bytes(VALUES[0])
    spread = json.dumps(json.loads(collector_json(TRACES, VALUES[1])), indent=2)
    (tmp_path / "b.json").write_text(spread)
    found, damage = read(tmp_path)
    assert list(map(value_of, found)) == VALUES[:2]
    assert damage == []


@pytest.mark.parametrize(
    ("begins", "named"),
    [
        (b'{"data":[{"traceID":"ab","spans":[]}]}', "Jaeger"),
        (b'[{"traceId":"ab","id":"1","localEndpoint":{}}]', "Zipkin"),
        (b'{"id":"1","trace_id":"2","type":"GENERATION","project_id":"3"}\n{}\n', "Langfuse"),
        (b'[{"id":"1","traceId":"2","type":"GENERATION","input":{}}]', "Langfuse"),
        (b'{"model":"m","messages":[]}\n', r"calls\.jsonl"),
        (b'[{"resourceSpans":[]}]', "one request a line"),
        (b"PAR1\x15\x04", "Parquet"),
        (b"id,name,latency\n1,2,3\n", "CSV"),
        (b"# Notes\n\nhello\n", "begins with bytes 23 20"),
        (b"\x00\x01", "begins with bytes 00 01"),
    ],
)
def test_another_file_is_named_and_lost_as_a_whole(begins: bytes, named: str, tmp_path: Path) -> None:
    """One line of a report, not one for each of its lines; the files beside it are read."""
    (tmp_path / "other").write_bytes(begins)
    (tmp_path / "spans.json").write_bytes(json_lines(VALUES))
    found, damage = read(tmp_path)
    assert len(found) == len(VALUES)
    assert [(one.place, one.num_bytes) for one in damage] == [(Place("other", 1), len(begins))]
    assert re.search(named, damage[0].why)


def metrics() -> bytes:
    """A request of one metric."""
    made = ExportMetricsServiceRequest()
    metric = made.resource_metrics.add().scope_metrics.add().metrics.add(name="requests")
    metric.gauge.data_points.add(as_int=7)
    value: bytes = made.SerializeToString()
    return value


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (json_lines(VALUES[:1]) + b'{"resourceMetrics":[]}', "metrics"),
        (framed([VALUES[0], metrics()]), "metrics"),
        (json_lines(VALUES[:1]) + b'{"other": 1}', "undecodable"),
    ],
    ids=["metrics-in-json", "metrics-in-protobuf", "another-object"],
)
def test_what_is_neither_spans_nor_logs_is_told(data: bytes, reason: str, tmp_path: Path) -> None:
    """Between requests; metrics are no damage, for a Collector's pipelines may share a file."""
    (tmp_path / "x").write_bytes(data)
    first, second = read_files(list_files(str(tmp_path / "x")))
    assert first.lost == ()
    assert (second.request, [one.reason for one in second.lost]) == (None, [reason])


def test_a_list_stands_while_a_collector_writes_on(tmp_path: Path) -> None:
    """What comes behind it, or half of it, is not read; another file under the name is refused."""
    file = tmp_path / "x"
    file.write_bytes(json_lines(VALUES[:2]))
    listed = list_files(str(file))
    file.write_bytes(json_lines(VALUES))
    assert list(map(value_of, read_files(listed))) == VALUES[:2]
    for other in (json_lines(VALUES[:1]), json_lines(VALUES[2:])):
        file.write_bytes(other)
        with pytest.raises(ConfigurationError, match=r"expected the file that was listed.*put it back"):
            list(read_files(listed))


def test_no_file_is_an_error(tmp_path: Path) -> None:
    """Before anything is begun."""
    for asked in (tmp_path, tmp_path / "none", tmp_path / "*.json"):
        with pytest.raises(ConfigurationError, match="expected a file, a folder"):
            list_files(str(asked))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "num_spans"), [("json-lines", 2_000), ("gzip-of-lengths", 100_000), ("zstd-frames-of-lengths", 100_000)]
)
def test_memory_is_flat(form: str, num_spans: int, tmp_path: Path) -> None:
    """A hundred thousand spans take what one request takes, and the packing's own."""
    whole = FORMS[form]([spans(number, 50, text="x" * 4_000) for number in range(20)])
    with (tmp_path / "x").open("wb") as out:
        for _ in range(num_spans // 1_000):
            out.write(whole)
    listed, num_read = list_files(str(tmp_path / "x")), 0
    tracemalloc.start()
    try:
        for one in read_files(listed):
            assert not one.lost
            num_read += len(one.request.resource_spans[0].scope_spans[0].spans)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert num_read == num_spans
    assert peak < 6 * 1024 * 1024, "the spans of a file are 8 to 400 MB"
