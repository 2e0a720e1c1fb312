"""The lines that a terminal shows of a run: a step each, what arrives from an agent, what is missing.

In: `RunState`, after each record and a few times a second. Out: `Event`s, each thing once; a printer shows them.
Invariant: a view keeps only what it has said already; all else is the state's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Protocol

import msgspec

from tracegrad.schemas.alarms import NOTHING_TRAINS, alarm_text
from tracegrad.schemas.alarms.causes import Cause
from tracegrad.schemas.records.episodes import Episode
from tracegrad.schemas.records.training import TrainingStep
from tracegrad.schemas.topics import Topic

from .activity import Activity, waiting_text
from .captured import TrafficLine, versions_per_s
from .held_out import HeldOut, held_out_of, held_out_text
from .run_state import RunState

_PATIENCE_S = 20.0
"""After a first sign of the agent, how long the other signs may take before their absence is said."""
_EPISODES_A_LINE = 100
_WAITING_EVERY_S = 1.0


class StepLine(msgspec.Struct, frozen=True, kw_only=True):
    """One step as the terminal shows it."""

    step: int
    version: int
    reward: float | None
    """Mean final reward of the batch."""
    tool_success: float | None
    """Succeeded / executed tool calls."""
    staleness: float
    """Mean over trained tokens, in versions."""
    lag: int | None
    """Records that the stages have not committed; None: Kafka did not say in time."""
    open_episodes: int
    waiting_groups: int
    """Complete training groups that no batch has consumed yet."""
    seconds: float
    """Since the step before."""
    lost_groups: int = 0
    """Training groups that do not close; others were admitted in their stead."""
    skipped: str = ""
    """Why the optimiser did not step."""


_ON_ALARM = {
    None: "",
    "warn": "",
    "pause": "; before more is trained: Ctrl-C, then the same command again",
    "stop": "; the run ends",
}
"""What is said besides, by `[alarms] on`."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something worth a line."""

    kind: str
    """`step`, `alarm`, `cause`, `rollback`, `version`, `validation`, `lost`, `first_span`, `first_call`,
    `first_upstream_call`, `upstream_calls`, `episode`, `missing`, `unjoined`, `traffic`, `stale`; `now`: what the run
    waits for, where a line can be written over."""
    text: str
    step: StepLine | None = None
    held_out: HeldOut | None = None
    traffic: TrafficLine | None = None


class Lines(Protocol):
    """A view on the terminal."""

    topics: tuple[Topic, ...]
    """What it needs folded."""
    whole: tuple[Topic, ...]
    """Those of which the past matters, also where a view is of what comes from now on."""

    def news(self, state: RunState, now_s: float) -> Iterator[Event]:
        """What the state holds and was not said yet."""


class StepLines:
    """Of a training run: steps, the first version served, how the held-out passes go."""

    whole: tuple[Topic, ...] = ()
    topics: tuple[Topic, ...] = (
        Topic.TRAINING_STEPS,
        Topic.WEIGHTS,
        Topic.WEIGHT_ACKS,
        Topic.ROLLOUT_EVENTS,
        Topic.EPISODES,
    )

    def __init__(
        self,
        lag: Callable[[], int | None] = lambda: None,
        on_alarm: str | None = None,
        now: Callable[[RunState], Activity] | None = None,
        groups_per_step: int = 1,
    ) -> None:
        """`lag` asks Kafka; called once a step. `on_alarm` is `[alarms] on`. `now`: of what is told what it waits for;
        None: of nothing."""
        self._lag = lag
        self._now = now
        self._waiting, self._waiting_s = "", 0.0
        if now is not None:
            self.topics = (*self.topics, Topic.PROCESS_STATUS)
        self._on_alarm = on_alarm
        self._last: TrainingStep | None = None
        self._is_served = False
        self._next_pass = 0
        self._is_begun = False
        self._num_lost = 0
        self._groups_per_step = groups_per_step
        self._cause: Cause | None = None
        """That of all attempts, once it is said."""
        self._nothing_trains = False
        """Whether it is said, of groups or of steps, and still so."""

    def news(self, state: RunState, now_s: float) -> Iterator[Event]:
        """As Lines.news."""
        step, serving = state.newest_step, state.serving
        is_said, is_untrained = self._nothing_trains, state.untrained.holds(self._groups_per_step)
        self._nothing_trains = is_untrained or (step is not None and NOTHING_TRAINS in step.alarms)
        if is_untrained and not is_said:
            yield Event(kind="alarm", text=f"alarm: {NOTHING_TRAINS} (docs/watching.md): {state.untrained.text}")
        if self._cause is None and (cause := state.causes.stopping(0)) is not None:
            self._cause = cause
            goes_on = " The run goes on, since [alarms] on = 'warn'" if self._on_alarm == "warn" else ""
            yield Event(kind="cause", text=f"cause: {cause.text}{goes_on}")
        if step is not None and (self._last is None or step.step > self._last.step):
            began_ms = self._last.ended_at_ms if self._last else step.started_at_ms
            # The first step that is seen of a run that goes on was told before.
            seen = [one for one in state.steps if self._last and one.step >= self._last.step]
            self._last = step
            yield Event(kind="step", text=f"step {step.step}", step=self._line(state, step, began_ms))
            told = {NOTHING_TRAINS} if is_said or is_untrained else set[str]()
            for before, one in pairwise(seen):
                for name in sorted({*one.alarms} - {*before.alarms} - told):
                    words = alarm_text(name, [step for step in state.steps if step.step <= one.step])
                    text = f"alarm at step {one.step}: {name} (docs/watching.md): {words}"
                    yield Event(kind="alarm", text=text + _ON_ALARM[self._on_alarm])
                if one.rated_worse is not None:
                    yield Event(kind="rollback", text=f"step {one.step}: {one.rated_worse.text}")
        if serving and not self._is_served:
            self._is_served, ack = True, serving[0]
            yield Event(kind="version", text=f"{ack.engine_id} serves version {ack.version} of {ack.policy}")
        num_lost = state.num_lost_groups
        if num_lost > self._num_lost:
            text = f"{num_lost} groups lost: of a member no episode comes, even given up; others are admitted instead"
            yield Event(kind="lost", text=text)
        self._num_lost = num_lost
        yield from self._passes(state)
        if self._now is not None and now_s - self._waiting_s >= _WAITING_EVERY_S:
            self._waiting_s, said = now_s, self._waiting
            self._waiting = waiting_text(self._now(state))
            if self._waiting != said:
                yield Event(kind="now", text=self._waiting)

    def _line(self, state: RunState, step: TrainingStep, began_ms: int) -> StepLine:
        return StepLine(
            step=step.step,
            version=step.version,
            reward=step.reward,
            tool_success=step.tool_success,
            staleness=step.staleness_mean,
            lag=self._lag(),
            open_episodes=len(state.open_attempts),
            waiting_groups=state.num_waiting_groups,
            seconds=max(0.0, (step.ended_at_ms - began_ms) / 1000),
            lost_groups=state.num_lost_groups,
            skipped="" if step.is_updated else step.skipped or "no step",
        )

    def _passes(self, state: RunState) -> Iterator[Event]:
        """Each as its score is there; of the first that it began too, for nothing else moves meanwhile."""
        for number in sorted(number for number in state.held_out.by_number if number >= self._next_pass):
            one = state.held_out.by_number[number]
            held_out = held_out_of(one)
            if held_out is not None:
                self._next_pass = number + 1
                text = f"held-out at step {held_out.step}: {held_out_text(held_out)}"
                yield Event(kind="validation", text=text, held_out=held_out)
                continue
            if one.number == 0 and not self._is_begun:
                self._is_begun = True
                yield Event(kind="validation", text=f"held-out before training: {one.num_tasks} tasks begin")
            return


class ArrivalLines:
    """Of `up`: what arrives from an agent, in the order in which a person wonders, and what does not."""

    topics: tuple[Topic, ...] = (Topic.OTLP_SPANS, Topic.LLM_CALLS, Topic.EPISODES)
    whole: tuple[Topic, ...] = ()

    def __init__(self) -> None:
        self._said: set[Event] = set()

    def news(self, state: RunState, now_s: float) -> Iterator[Event]:
        """As Lines.news."""
        for event in _arrived(state, now_s):
            if event not in self._said:
                self._said.add(event)
                yield event


class TrafficLines:
    """Of `up` that trains on what arrives: both, and who rates, after each step."""

    whole: tuple[Topic, ...] = (Topic.TRAINING_STEPS, Topic.WEIGHTS, Topic.CLOSED_GROUPS)
    """Which step is next, and how many groups of it are there, an earlier start's steps tell too."""

    def __init__(self, steps: StepLines, *, wait_s: float, max_staleness: int, publish_every: int) -> None:
        """`wait_s`: from a conversation's last call to the end of its time for feedback."""
        self._steps, self._arrivals = steps, ArrivalLines()
        self.topics: tuple[Topic, ...] = (
            *dict.fromkeys((*steps.topics, *self._arrivals.topics)),
            Topic.CLOSED_GROUPS,
        )
        self._wait_s, self._max_staleness, self._publish_every = wait_s, max_staleness, publish_every
        self._last_step = 0
        self._is_stale = False

    def news(self, state: RunState, now_s: float) -> Iterator[Event]:
        """As Lines.news."""
        yield from self._arrivals.news(state, now_s)
        yield from self._steps.news(state, now_s)
        step = state.newest_step
        if step is None or step.step <= self._last_step:
            return
        self._last_step = step.step
        pace = versions_per_s(state.steps, every=self._publish_every)
        behind = None if pace is None else pace * self._wait_s
        if (line := state.captured.line(behind)) is not None:
            yield Event(kind="traffic", text=line.text, traffic=line)
        is_stale = behind is not None and behind > self._max_staleness
        if is_stale and not self._is_stale:
            yield Event(
                kind="stale",
                text=f"feedback is awaited for {behind:.1f} versions, more than [trainer] max_staleness = "
                f"{self._max_staleness}: what is rated late is excluded as `stale`; raise [trainer] groups_per_step or "
                "[publish] every, or lower [feedback] wait_s",
            )
        self._is_stale = is_stale


def _arrived(state: RunState, now_s: float) -> Iterator[Event]:
    """All that may be said now."""
    span, call, episode, number = state.first_span, state.first_call, state.last_episode, state.num_episodes
    if span is not None:
        yield Event(kind="first_span", text=f"first span: {span[0]!r} of service {span[1] or '?'}")
    if call is not None:
        text = f"first call: {call.num_sampled} tokens of {call.policy}, {call.finish_reason}"
        yield Event(kind="first_call", text=text)
    if (other := state.first_upstream_call) is not None:
        text = f"first call of another model: {other.model} by {other.upstream}, status {other.status}"
        yield Event(kind="first_upstream_call", text=text)
    if hundreds := state.num_upstream_calls // _EPISODES_A_LINE:
        yield Event(kind="upstream_calls", text=f"{hundreds * _EPISODES_A_LINE} calls of other models")
    if episode is not None and (number == 1 or number % _EPISODES_A_LINE == 0):
        which = "first episode" if number == 1 else f"episode {number}"
        yield Event(kind="episode", text=f"{which}: {_summary(episode)}")
    if state.first_sign_s is not None and now_s - state.first_sign_s >= _PATIENCE_S and (text := _missing(state)):
        yield Event(kind="missing", text=text)
    if text := state.captured.diagnosis():
        yield Event(kind="unjoined", text=text)


def _missing(state: RunState) -> str:
    if state.first_call is None and state.first_upstream_call is None:
        return "spans arrive but no model calls: does the agent's client use OPENAI_BASE_URL?"
    if state.first_span is None:
        return (
            "calls arrive but no spans: is the agent run under `opentelemetry-instrument`, with an OTLP exporter "
            "for http/protobuf? Episodes are recorded all the same, without agent names and tools"
        )
    if not state.num_episodes:
        return (
            "spans and calls arrive but no episode closed yet: a captured episode closes when it falls silent "
            "([streams] idle_s)"
        )
    return ""


def _summary(episode: Episode) -> str:
    reward = f"reward {episode.reward:g}" if episode.reward is not None else f"no reward ({episode.unscored or 'none'})"
    return f"{len(episode.calls)} calls, {episode.num_tools} tools, {reward}"
