"""Real frameworks' recordings through the real folds: nothing is wrong, and the page says what is seen."""

from __future__ import annotations

import lzma
import random
from functools import cache
from pathlib import Path

import msgspec
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.frameworks.catalogue import CATALOGUE
from tests.frameworks.fixture import Raw, fixtures, load
from tests.frameworks.judge import score
from tests.frameworks.report import PAGE, page, scores
from tests.frameworks.scrub import scrubbed
from tracegrad.schemas.topics import Topic

pytestmark = pytest.mark.slow

NAMES = [(entry.name, way) for entry in CATALOGUE for way in ("runner", "captured")]
WRONG: frozenset[str] = frozenset()
"""Recordings of which something is still understood wrongly; docs/frameworks.md counts it."""
counted = cache(scores)


def test_each_row_of_the_catalogue_is_recorded_and_nothing_else() -> None:
    """A recording without its row could not be made again."""
    assert sorted(counted()) == sorted(NAMES)


@pytest.mark.parametrize(("name", "way"), NAMES, ids=str)
def test_no_call_agent_or_tool_is_wrong(name: str, way: str) -> None:
    """Wrong is worse than unknown: a wrong name would be trained on."""
    _, found = counted()[name, way]
    assert (found.agents_wrong, found.tools_wrong, found.mixed, found.lost) == (0, 0, 0, 0)


@pytest.mark.parametrize("path", [*fixtures()], ids=lambda path: path.name)
def test_what_is_left_when_spans_are_lost_is_no_wrong_tool(path: Path) -> None:
    """An outcome that the lost span told alone is unknown, and no call goes astray: four of ten spans, three times."""
    whole = load(path)
    for seed in range(3):
        chance = random.Random(f"{path.name}-{seed}")
        recording = msgspec.structs.replace(whole, records=tuple(thinned(raw, chance) for raw in whole.records))
        found = score(recording)
        assert (found.tools_wrong, found.mixed, found.lost) == (0, 0, 0)


def thinned(raw: Raw, chance: random.Random) -> Raw:
    """A record of spans without four of ten."""
    if raw.topic != Topic.OTLP_SPANS:
        return raw
    request = ExportTraceServiceRequest.FromString(raw.value)
    for resource in request.resource_spans:
        for scope in resource.scope_spans:
            kept = [span for span in scope.spans if chance.random() >= 0.4]
            del scope.spans[:]
            scope.spans.extend(kept)
    return msgspec.structs.replace(raw, value=request.SerializeToString())


def test_the_page_is_what_the_recordings_show() -> None:
    """Remake it by `python -m tests.frameworks.report`."""
    assert PAGE.read_text() == page(counted())


def test_the_truth_is_whole() -> None:
    """Every conversation of every recording made calls and executed tools, one of which failed."""
    for (name, way), (recording, found) in counted().items():
        assert found.conversations == (1 if way == "runner" else 2), name
        in_text = {entry.name for entry in CATALOGUE if entry.asks_in_text}
        assert {one.failed for one in recording.executed} == (set() if name in in_text else {True, False}), name


def test_a_recording_tells_nothing_of_its_machine() -> None:
    """Neither its paths nor the host's attributes; scrubbing once more changes nothing."""
    for path in fixtures():
        raw = lzma.decompress(path.read_bytes())
        assert not any(word in raw for word in (b"process.pid", b"host.name", b"/root/", b"/site-packages/"))
        for record in load(path).records:
            assert scrubbed(Topic(record.topic), record.value, "") == record.value


def test_a_recording_is_read_as_it_was_written() -> None:
    """Equal recordings are equal bytes."""
    path = next(iter(fixtures()))
    assert msgspec.msgpack.encode(load(path)) == lzma.decompress(path.read_bytes())
