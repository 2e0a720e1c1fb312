"""Records that no key of the run vouches for: named up to a bound, and evidence of nothing."""

from __future__ import annotations

import msgspec
import pytest

from tests.consumers.audit.small_run import KEY, audited, memory_log, small_run
from tests.memory_log import MemoryLog
from tests.streams.make import RUN_HASH, TOPICS, call, rollout
from tracegrad.consumers.audit import evidence
from tracegrad.schemas.ids import RunHash
from tracegrad.schemas.log.mac import KeyRing
from tracegrad.schemas.records.calls import LLM_CALLS
from tracegrad.schemas.topics import Topic

RUN, OTHER = RunHash(RUN_HASH), RunHash("0" * 8)


def test_unverified_records_beyond_a_bound_are_counted_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever may write could write millions."""
    monkeypatch.setattr(evidence, "MAX_NAMED", 1)
    log = memory_log(small_run())
    for name in ("one", "two"):
        forged = LLM_CALLS.encode(call(name, rollout(0)))
        MemoryLog.append(log, TOPICS.name(Topic.LLM_CALLS), rollout(0).encode(), forged, (), 0)
    report = audited(log)
    assert (len(report.unverified), report.num_unverified) == (1, 2)


def test_a_call_that_another_gateway_wrote_is_named_and_not_counted() -> None:
    """It says that it is of this run's rollout; normalize leaves it out, so that it is no loss."""
    log = memory_log(small_run())
    expected = audited(log)
    name = TOPICS.name(Topic.LLM_CALLS)
    forged = [call("forged", rollout(0)), call("forged too", None, trace_id=rollout(0) + "a001")]
    for made in forged:
        MemoryLog.append(log, name, rollout(0).encode(), LLM_CALLS.encode(made), (), 0)
    report = audited(log)
    ends = [f"{name}/0/{len(log.records(name)) - back}: unproved" for back in (2, 1)]
    assert report == msgspec.structs.replace(expected, unverified=ends, num_unverified=2)


def test_a_call_of_a_selected_runs_gateway_is_no_call_of_a_rollout_of_this_run() -> None:
    """It knows no key of this run, and hands on whatever trace its clients claim; normalize leaves it out as well."""
    log, trace = memory_log(small_run()), rollout(0) + "a001"
    value = LLM_CALLS.encode(call("forged", None, trace_id=trace))
    header = KeyRing(OTHER, {OTHER: bytes(32)}).sign(Topic.LLM_CALLS, trace.encode(), value)
    MemoryLog.append(log, TOPICS.name(Topic.LLM_CALLS), trace.encode(), value, (header,), 0)
    selecting = KeyRing(RUN, {RUN: KEY, OTHER: bytes(32)})
    assert audited(log, ring=selecting).num_unverified == 1
