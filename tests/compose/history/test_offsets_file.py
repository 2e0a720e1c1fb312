"""`--from-file`: the lines that kafka-consumer-groups writes and reads, and what is refused by file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracegrad.compose.history.offsets_file import checked_begins, digest_of, read_begins
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.log.protocol import Offsets, TopicPartition

SPANS = TopicPartition("otlp_spans", 0)
KEPT = {SPANS: Offsets(5, 20)}


def written(tmp_path: Path, text: str) -> Path:
    """A file of these lines."""
    path = tmp_path / "offsets.csv"
    path.write_text(text)
    return path


def test_lines_are_read_as_kafkas_tool_writes_them(tmp_path: Path) -> None:
    """Quoted or not, with blanks and blank lines, and with the mark that spreadsheets put first."""
    found = read_begins(written(tmp_path, '\ufeffotlp_spans,0,7\r\n\n"llm,calls", 3 , 0\n'))
    assert found == {SPANS: 7, TopicPartition("llm,calls", 3): 0}


@pytest.mark.parametrize(
    "line",
    [
        "otlp_spans,0",
        "group,otlp_spans,0,7",
        "topic,partition,offset",
        "otlp_spans,0,-1",
        ",0,7",
        f"otlp_spans,0,{2**63}",
    ],
)
def test_what_is_no_such_line_is_named(tmp_path: Path, line: str) -> None:
    """With its number, and an example of one that is."""
    with pytest.raises(ConfigurationError, match="line 2: expected topic,partition,offset, such as otlp_spans,0,1200"):
        read_begins(written(tmp_path, f"otlp_spans,1,3\n{line}\n"))


def test_a_partition_that_is_named_twice_is_refused(tmp_path: Path) -> None:
    """Nobody could say which counts."""
    with pytest.raises(ConfigurationError, match="line 2: expected each partition once, got otlp_spans,0 again"):
        read_begins(written(tmp_path, "otlp_spans,0,3\notlp_spans,0,3\n"))


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xff\xfe"])
def test_a_file_without_lines_is_refused(tmp_path: Path, content: bytes) -> None:
    """Also one that is no text; also none at all."""
    path = tmp_path / "offsets.csv"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"--from-file .*offsets\.csv: expected"):
        read_begins(path)
    with pytest.raises(ConfigurationError, match=r"--from-file .*none\.csv: expected"):
        read_begins(tmp_path / "none.csv")


def test_an_offset_must_not_lie_behind_the_log() -> None:
    """Before what retention has left it is no error: there is nothing more to begin with."""
    assert checked_begins({SPANS: 3}, KEPT) == {SPANS: 3}
    assert checked_begins({SPANS: 20}, KEPT) == {SPANS: 20}
    with pytest.raises(ConfigurationError, match="expected an offset up to 20, where otlp_spans,0 ends, got 21"):
        checked_begins({SPANS: 21}, KEPT)
    with pytest.raises(
        ConfigurationError, match="expected partitions of otlp_spans, which a replay reads, got other,0"
    ):
        checked_begins({TopicPartition("other", 0): 0}, KEPT)


def test_files_that_say_the_same_are_equal() -> None:
    """In whatever order; no file is none of them."""
    other = TopicPartition("llm_calls", 1)
    assert digest_of({SPANS: 3, other: 4}) == digest_of({other: 4, SPANS: 3}) != digest_of({SPANS: 4, other: 3})
    assert digest_of(None) == ""
