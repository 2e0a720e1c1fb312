"""What the terminal says of a run: each thing once."""

from __future__ import annotations

import io
import json
from functools import partial
from typing import Any

from msgspec.structs import replace

from tests.consumers.audit.small_run import small_run
from tests.consumers.views.folding import fold_all, new_state, read, tell
from tests.schemas.attempts import episode
from tests.streams.credit.test_credit import member
from tests.streams.make import agent_span, call, otlp, rollout
from tests.versions import held_out
from tracegrad.compose.run.show import JsonShow, Show
from tracegrad.consumers.views.activity import activity_in
from tracegrad.consumers.views.run_state import RunState
from tracegrad.consumers.views.terminal import ArrivalLines, Event, StepLines
from tracegrad.schemas.records.calls import Purpose
from tracegrad.schemas.records.episodes import EPISODES
from tracegrad.schemas.records.rollouts import GroupRef
from tracegrad.schemas.records.training import RatedWindow, RatingDrop
from tracegrad.schemas.topics import Topic


def test_each_step_and_the_first_version_are_said_once() -> None:
    """A topic that is read again says nothing new."""
    lines, state, streams = StepLines(lambda: 7), new_state(), small_run()
    events = read(lines, state, streams, (*StepLines.topics, *StepLines.topics))
    assert [event.kind for event in events] == ["step", "step", *["validation"] * 3, "version"]
    first, second = (event.step for event in events[:2])
    assert first is not None and second is not None
    assert (first.step, second.step, second.seconds, second.lag) == (1, 2, 1.0, 7)


def test_each_held_out_pass_is_said_once_with_its_interval_and_its_version() -> None:
    """For people in one line, for machines in fields; of the first also that it begins."""
    events = read(StepLines(), new_state(), small_run(), (Topic.WEIGHTS, Topic.WEIGHTS))
    assert [event.text for event in events] == [
        "held-out before training: 1 tasks begin",
        "held-out at step 0: 0.000 (95% 0.000 to 0.000, 1 tasks), version 0",
        "held-out at step 2: 1.000 (95% 1.000 to 1.000, 1 tasks), version 2",
    ]
    out = io.StringIO()
    JsonShow(out).event(events[-1])
    line = json.loads(out.getvalue())
    assert (line["kind"], line["step"], line["mean"], line["low"], line["version"], line["versions"]) == (
        "validation", 2, 1.0, 1.0, 2, [{"version": 2, "share": 1.0}],
    )  # fmt: skip


def test_what_a_run_waits_for_is_said_when_it_changed_and_at_most_each_second() -> None:
    """Of the state as it stands; by a view that is told how the run is meant."""
    now = partial(activity_in, steps=2, groups_per_step=1, concurrency=4)
    lines, state, streams = StepLines(now=now), new_state(), small_run()
    assert Topic.PROCESS_STATUS in lines.topics
    said = [event.text for at in (1.0, 1.5, 2.0) for event in lines.news(state, at)]
    read(StepLines(), state, streams, StepLines.topics)
    said += [event.text for at in (2.5, 3.0) for event in lines.news(state, at) if event.kind == "now"]
    assert said == [
        "The engine loads its model; nothing is sampled until it serves.",
        "All 2 steps are done; the report follows, and --keep goes on serving.",
    ]
    out = io.StringIO()
    for show in (Show(out), JsonShow(out)):
        show.event(Event(kind="now", text=said[0]))
    assert out.getvalue() == ""


def test_the_held_out_pass_that_is_under_way_is_known_until_its_score() -> None:
    """Training waits for the first one."""
    state, seen = new_state(), []
    for word in (held_out(0, step=0), held_out(0, 0.0, version=0, step=0)):
        tell(state, Topic.WEIGHTS, word)
        seen.append(activity_in(state, steps=2, groups_per_step=1, concurrency=4).held_out)
    assert seen == [f"{held_out(0, step=0).num_tasks} tasks", ""]


def test_who_begins_to_read_in_the_midst_is_told_of_the_passes_from_there_on() -> None:
    """As `up` does when its run is started again: of one that had begun its score, and then the next ones."""
    lines, state = StepLines(), new_state()
    words = [held_out(3, 0.5, version=6, step=6), held_out(4, step=8), held_out(4, 1.0, version=8, step=8)]
    said = []
    for word in words:
        said += [event.text.split(":")[0] for event in lines.news(tell(state, Topic.WEIGHTS, word), 0.0)]
    assert said == ["held-out at step 6", "held-out at step 8"]


def test_held_out_rollouts_are_no_arrivals() -> None:
    """Nobody waits for them, and what lacks beside them is lacking: only the agent that is no runner's is told of."""
    lines, state = ArrivalLines(), new_state()
    tell(state, Topic.OTLP_SPANS, otlp(agent_span(rollout(0) + "a001", 1, "helper")))
    tell(state, Topic.LLM_CALLS, call("a", rollout(0), purpose=Purpose.VALIDATION))
    assert list(lines.news(state, 30.0)) == [] and state.first_sign_s is None


RATED_WORSE = RatingDrop(
    before=RatedWindow(from_version=12, to_version=27, num=508, mean=0.7, std=0.46),
    newest=RatedWindow(from_version=28, to_version=43, num=511, mean=0.5, std=0.5),
    drop_least=0.05,
    look=9,
)


def test_an_alarm_is_said_when_it_begins() -> None:
    """Not again while it holds, nor of the step that was the last when the run was started; with what is done."""
    lines, state = StepLines(on_alarm="stop"), new_state()
    fold_all(state, small_run(), [Topic.TRAINING_STEPS])
    (known, *_) = state.steps
    said = []
    for number, alarms in ((11, ("ess_low",)), (12, ("ess_low", "clip_high")), (13, ())):
        tell(state, Topic.TRAINING_STEPS, replace(known, step=number, alarms=alarms))
        said.append([event.text.split(" (")[0] for event in lines.news(state, 0.0)])
    assert said == [["step 11"], ["step 12", "alarm at step 12: clip_high"], ["step 13"]]
    for number, alarms in ((14, ("gradient_spike",)), (15, ())):
        tell(state, Topic.TRAINING_STEPS, replace(known, step=number, alarms=alarms))
    told = [event.text.split(" (")[0] for event in lines.news(state, 0.0)]
    assert told == ["step 15", "alarm at step 14: gradient_spike"], "two steps at once: nothing is passed over"


def test_that_nothing_trains_is_said_once_whoever_knows_it_first() -> None:
    """Of closed groups with reason, share and remedy; the step that finds the same adds nothing."""
    lines, state = StepLines(groups_per_step=2), new_state()
    fold_all(state, small_run(), [Topic.TRAINING_STEPS])
    list(lines.news(state, 0.0))
    said = []
    for index in range(7):
        group = GroupRef(id=f"g{index}", size=1, member=0, index=index)
        tell(state, Topic.EPISODES, replace(member(index, calls=()), group=group))
        said += [event.text for event in lines.news(state, 0.0) if event.kind == "alarm"]
    last = state.steps[-1]
    step = replace(last, step=last.step + 1, num_tokens=0, alarms=("nothing_trains",))
    tell(state, Topic.TRAINING_STEPS, step)
    said += [event.text for event in lines.news(state, 0.0) if event.kind == "alarm"]
    assert said == [
        "alarm: nothing_trains (docs/watching.md): none of the last 6 closed groups can train: 100% of groups "
        "`all_members_excluded`, 100% of their excluded members `no_calls`: Its agent never called the policy. Let the "
        "agent's client use OPENAI_BASE_URL, which names the LLM gateway"
    ]


def test_what_a_captured_agent_did_is_never_said_to_train_nothing() -> None:
    """Nobody asked for it: its episodes are of no group, so `up` has nothing to warn of, whatever they lack."""
    lines, state = StepLines(), new_state()
    tell(state, Topic.EPISODES, *(replace(member(n, calls=()), group=None, rollout_id=None) for n in range(20)))
    assert state.num_episodes == 20
    assert [event for event in lines.news(state, 0.0) if event.kind == "alarm"] == []
    assert not state.untrained.holds(1)


def test_a_rollback_is_said_with_its_figures() -> None:
    """Behind its step, once."""
    lines, state = StepLines(), new_state()
    fold_all(state, small_run(), [Topic.TRAINING_STEPS])
    (known, *_) = state.steps
    said = []
    for number, why in ((11, None), (12, RATED_WORSE), (13, None)):
        tell(state, Topic.TRAINING_STEPS, replace(known, step=number, rated_worse=why))
        said.append([event.text for event in lines.news(state, 0.0)])
    words = (
        "step 12: versions 28 to 43 are rated 0.500 (511 conversations), versions 12 to 27 are rated 0.700 "
        "(508 conversations): worse by 0.200, at least 0.050; rolls back to version 27"
    )
    assert said == [["step 11"], ["step 12", words], ["step 13"]]


def test_the_last_step_shows_open_episodes_and_waiting_groups() -> None:
    """Two of three complete groups are consumed, and no attempt is open."""
    topics = (Topic.EPISODES, Topic.ROLLOUT_EVENTS, Topic.TRAINING_STEPS)
    line = read(StepLines(), new_state(), small_run(), topics)[-1].step
    assert line is not None and (line.open_episodes, line.waiting_groups) == (0, 1)


def test_arrivals_say_each_first_thing_once_and_what_is_missing() -> None:
    """Spans, then nothing else for a while."""
    lines, state = ArrivalLines(), new_state()

    def said(now_s: float, topic: Topic = Topic.LLM_CALLS, *told: Any) -> list[tuple[str, str]]:
        return [(event.kind, event.text) for event in lines.news(tell(state, topic, *told, now_s=now_s), now_s)]

    spans = otlp(agent_span("ab" * 16, 1, "helper"), service="shop")
    assert said(30.0) == []
    assert said(0.0, Topic.OTLP_SPANS, spans) == [("first_span", "first span: 'invoke_agent helper' of service shop")]
    assert said(0.0, Topic.OTLP_SPANS, spans) == []
    assert ["OPENAI_BASE_URL" in text for _, text in said(30.0)] == [True]
    assert said(30.0) == []
    (first, _), (missing, text) = said(30.0, Topic.LLM_CALLS, call("a", None, trace_id="ab" * 16))
    assert (first, missing) == ("first_call", "missing") and "no episode closed yet" in text
    assert said(30.0, Topic.LLM_CALLS, b"\xc1") == []


def test_the_cause_of_all_attempts_is_said_once() -> None:
    """By whom a run is started again that of its past is not; where it goes on all the same, that is said."""
    ended = [
        episode(
            f"t{number % 2}",
            episode_id=f"e{number}",
            group=GroupRef(id=f"g{number}", size=1, member=0, index=number),
            **{"reward": None, "unscored": "grader raised KeyError at grade.py:9: 'x'"},
        )
        for number in range(16)
    ]
    states = new_state(), new_state()
    states[1].causes_since_ms = 2**60
    for state in states:
        tell(state, Topic.EPISODES, *map(EPISODES.encode, ended))

    def said(lines: StepLines, state: RunState) -> list[str]:
        return [event.text for event in [*lines.news(state, 0.0), *lines.news(state, 1.0)] if event.kind == "cause"]

    (text,) = said(StepLines(), states[0])
    assert text.startswith("cause: grader_raised: 16 of 16 attempts: KeyError at grade.py:9 ('x'). The grader raised")
    assert said(StepLines(), states[1]) == []
    (text,) = said(StepLines(on_alarm="warn"), states[0])
    assert text.endswith("The run goes on, since [alarms] on = 'warn'")
