"""The report: intervals by hand, the verdict on served weights, the chart, the live view, arrivals."""

from __future__ import annotations

import io
import json
import xml.etree.ElementTree as ElementTree

import msgspec
import pytest

from tests.consumers.audit.small_run import memory_log, small_run
from tests.streams.make import RUN_HASH, TOPICS, agent_span, call, otlp
from tracegrad.compose.run.arrivals import Arrivals
from tracegrad.compose.run.report import _verdict_line, chart_of
from tracegrad.compose.run.show import JsonShow, PlainShow
from tracegrad.compose.verify.recheck_served import COARSE, EXACT, compare
from tracegrad.compose.verify.served_proof import Proof, ServedCall, find_proof
from tracegrad.consumers.views.chart import Panel, Series, draw
from tracegrad.consumers.views.results import collect, wilson
from tracegrad.consumers.views.watch import RunView
from tracegrad.schemas.ids import RunHash
from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.records.calls import CALLS
from tracegrad.schemas.topics import Topic


def test_wilson_interval_by_hand() -> None:
    """Known values: 0 of 10 and 5 of 10 (z = 1.96)."""
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert wilson(0, 0) == (0.0, 1.0)


def test_results_of_a_small_run() -> None:
    """Two steps; of two held-out tasks one is in each pass."""
    results = collect(memory_log(small_run()), TOPICS, run="test", policy="policy", num_held_out=1)
    assert results.steps == 2 and results.version == 2
    assert results.curves["reward"] == [0.25, 0.5] and results.curves["air:tool_success"] == [0.5, 0.5]
    assert results.before is not None and (results.before.mean, results.before.num_scored) == (0.0, 1)
    assert results.after is not None and results.after.mean == 1.0
    assert results.seconds == {"wait": 1.0, "total": 1.9}
    drawn = chart_of(results)
    assert ElementTree.fromstring(drawn).tag.endswith("svg") and "held-out after" in drawn


def test_a_run_without_steps_has_a_report_too() -> None:
    """An interrupted run."""
    streams = small_run()
    streams.log[Topic.TRAINING_STEPS] = []
    results = collect(memory_log(streams), TOPICS, run="test", policy="policy", num_held_out=0)
    assert results.steps == 0 and results.before is None and results.reward_last_ten is None
    ElementTree.fromstring(chart_of(results))


def test_a_chart_of_odd_numbers_is_valid() -> None:
    """Gaps, one point, equal values, names with markup."""
    series = Series(name="<a>&", points=((1.0, None), (2.0, float("nan")), (3.0, 1.0)))
    drawn = draw("t", [Panel(title="p", series=(series,)), Panel(title="empty", series=())])
    assert "nan" not in drawn
    ElementTree.fromstring(drawn)


def proof(logprobs: list[float]) -> Proof:
    """One call of three tokens."""
    made = ServedCall(call_id="c", prompt_ids=[1], sampled_ids=[2, 3, 4], logprobs=logprobs, temperature=1.0)
    return Proof(version=2, folder="a", previous_version=1, previous_folder="b", calls=(made,))


@pytest.mark.parametrize(
    ("recorded", "holds", "why"),
    [
        ([-1.0, -2.0, -0.5], True, ""),
        ([-1.0, -2.01, -0.5], False, "0.01 nats from version 2's own"),
        ([-1.5, -2.5, -0.5], False, "nats from version 2's own"),
    ],
    ids=["own", "off", "previous"],
)
def test_the_verdict_follows_the_nearer_version(recorded: list[float], holds: bool, why: str) -> None:
    """Own logprobs are -1, -2, -0.5; the previous version's differ in two tokens."""
    verdict = compare(proof(recorded), [[-1.0, -2.0, -0.5]], [[-1.5, -2.5, -0.5]], tolerance=EXACT)
    assert verdict.holds is holds and why in verdict.why
    assert verdict.num_telling == 2 and verdict.num_tokens == 3


def test_equal_versions_tell_nothing_but_hold() -> None:
    """A learning rate of 0: no token can tell the versions apart."""
    verdict = compare(proof([-1.0, -2.0, -0.5]), [[-1.0, -2.0, -0.5]], [[-1.0, -2.0, -0.5]], tolerance=EXACT)
    assert verdict.holds and verdict.num_telling == 0 and verdict.num_differing == 0
    assert "version 1 gives the same" in _verdict_line(verdict)


@pytest.mark.parametrize(
    ("recorded", "holds", "words"),
    [
        ([-1.1, -2.1, -0.5], False, "cannot be told apart at this tolerance (1 nats)"),
        ([-1.06, -2.06, -0.5], False, "fit 2 no better (squared error 0.0072) than 1 (0.0032)"),
        ([-1.02, -2.01, -0.45], True, "the 2 that differ from version 1 fit 2 better"),
        ([-0.8, -1.8, -0.5], False, "are 0.16 nats (rms) from version 2's own"),
    ],
    ids=["previous", "between", "own", "neither"],
)
def test_a_coarse_tolerance_lets_no_previous_version_pass(recorded: list[float], holds: bool, words: str) -> None:
    """In bfloat16 no single token tells the two versions apart; the sum over those that differ does."""
    verdict = compare(proof(recorded), [[-1.0, -2.0, -0.5]], [[-1.1, -2.1, -0.5]], tolerance=COARSE)
    assert verdict.num_telling == 0 and verdict.num_differing == 2
    assert verdict.holds is holds and words in _verdict_line(verdict)


def test_no_proof_says_what_is_missing() -> None:
    """Folders that are gone; no acknowledgement; nothing trained."""
    streams = small_run()
    run = RunHash(RUN_HASH)
    assert "folders" in str(find_proof(memory_log(streams), TOPICS, run, "policy"))
    streams.log[Topic.WEIGHT_ACKS] = []
    assert "acknowledged" in str(find_proof(memory_log(streams), TOPICS, run, "policy"))
    streams.log[Topic.WEIGHTS] = []
    assert "trained" in str(find_proof(memory_log(streams), TOPICS, run, "policy"))


def test_a_proof_puts_prompts_together(tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """The second call's prompt is its parent's prompt, what was sampled, and its own suffix."""
    streams = small_run()
    monkeypatch.setattr("tracegrad.compose.verify.served_proof.Path.is_dir", lambda self: True)
    found = find_proof(memory_log(streams), TOPICS, RunHash(RUN_HASH), "policy")
    assert isinstance(found, Proof)
    assert (found.version, found.previous_version) == (1, 0)
    assert {(tuple(call_.prompt_ids), tuple(call_.sampled_ids)) for call_ in found.calls} == {
        ((1, 2), (3, 4)),
        ((1, 2, 3, 4, 5), (6,)),
    }


def test_the_live_view_counts_open_episodes_whatever_comes_first() -> None:
    """An episode that is read before its start leaves nothing open."""
    streams = small_run()
    view = RunView(TOPICS, RunHash(RUN_HASH), lag=lambda: 7)
    topics = (Topic.EPISODES, Topic.ROLLOUT_EVENTS, Topic.WEIGHT_ACKS, Topic.TRAINING_STEPS, Topic.TRAINING_STEPS)
    events = [event for topic in topics for record in streams.log[topic] for event in view.fold(record)]
    assert view.num_open == 0 and view.num_episodes == 9
    assert [event.kind for event in events] == ["version", "step", "step"]
    assert events[2].step is not None and events[2].step.seconds == 1.0 and events[2].step.lag == 7


def test_plain_and_json_lines() -> None:
    """One line per step each; a header once."""
    streams = small_run()
    view = RunView(TOPICS, RunHash(RUN_HASH))
    events = [event for record in streams.log[Topic.TRAINING_STEPS] for event in view.fold(record)]
    plain, machine = io.StringIO(), io.StringIO()
    for event in events:
        PlainShow(plain).event(event)
        JsonShow(machine).event(event)
    assert "reward" in plain.getvalue() and "0.250" in plain.getvalue()
    lines = [json.loads(line) for line in machine.getvalue().splitlines()]
    assert [line["kind"] for line in lines] == ["step", "step"] and lines[1]["version"] == 2


def test_arrivals_say_each_first_thing_once_and_what_is_missing() -> None:
    """Spans, then nothing else for a while."""
    now = 0.0
    view = Arrivals(TOPICS, clock=lambda: now)

    def record(topic: Topic, value: bytes) -> Record:
        return Record(topic=TOPICS.name(topic), partition=0, offset=0, key=None, value=value)

    spans = record(Topic.OTLP_SPANS, otlp(agent_span("ab" * 16, 1, "helper"), service="shop"))
    assert view.tick() == []
    assert [event.text for event in view.fold(spans)] == ["first span: 'invoke_agent helper' of service shop"]
    assert view.fold(spans) == [] and view.tick() == []
    now = 30.0
    assert ["OPENAI_BASE_URL" in event.text for event in view.tick()] == [True]
    assert view.tick() == []
    made = record(Topic.LLM_CALLS, CALLS.encode(call("a", None, trace_id="ab" * 16)))
    assert [event.kind for event in view.fold(made)] == ["first_call"]
    assert ["no episode closed yet" in event.text for event in view.tick()] == [True]
    assert view.fold(record(Topic.LLM_CALLS, b"\xc1")) == []


def test_results_are_json() -> None:
    """As they lie in results.json."""
    results = collect(memory_log(small_run()), TOPICS, run="test", policy="policy", num_held_out=1)
    assert json.loads(msgspec.json.encode(results))["steps"] == 2
