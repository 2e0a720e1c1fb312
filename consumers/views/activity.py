"""What goes on in a run at this moment, and what it waits for, in one sentence.

In: numbers that the run's topics and processes tell. Out: `Activity`, and its sentence. Invariants: pure; it says the
first thing that holds the rest up, in the order of the flow, and nothing that the numbers do not tell. Failure: none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from tracegrad.schemas.metrics import OPEN
from tracegrad.schemas.records.process_status import ProcessReport, ProcessState, SupervisedProcess, engine_of
from tracegrad.schemas.topics import Stage

from .run_state import RunState


class Activity(msgspec.Struct, frozen=True, kw_only=True):
    """A run at this moment."""

    is_live: bool
    step: int
    """Of the last batch; 0: none yet."""
    steps: int | None
    """That it is asked for; None: until a person stops it."""
    num_running: int
    """Agents at work."""
    concurrency: int | None
    """How many may be; None: agents come by themselves."""
    num_open_episodes: int = 0
    """Whose records are not all there."""
    num_open_groups: int = 0
    """Some of whose members are there."""
    num_waiting_groups: int | None = None
    """On `transitions`, of the batch that comes next; None: not known."""
    groups_per_step: int = 1
    lag: int | None = None
    """Records that no stage has done with."""
    trouble: tuple[str, ...] = ()
    """Processes that do not run, and why."""
    is_served: bool = True
    """Whether an engine has said that it serves."""
    held_out: str = ""
    """How large the held-out pass is that is under way; empty: none is."""


def open_of(reports: Iterable[ProcessReport], stage: str) -> int:
    """What the workers of a stage hold open."""
    mine = (report for report in reports if report.process.startswith(f"streams-{stage}-"))
    return int(sum(report.counters.get(OPEN.name, 0) for report in mine))


def activity_in(state: RunState, *, steps: int | None, groups_per_step: int, concurrency: int | None) -> Activity:
    """Of a live run, as far as its state tells; an agent counts as at work until its episode is there."""
    reports, step = state.reports.values(), state.newest_step.step if state.newest_step else 0
    return Activity(
        is_live=True,
        step=step,
        steps=steps,
        num_running=len(state.open_attempts),
        concurrency=concurrency,
        num_open_episodes=open_of(reports, Stage.ASSEMBLE.value),
        num_open_groups=open_of(reports, Stage.CREDIT.value),
        num_waiting_groups=state.num_waiting_groups,
        groups_per_step=groups_per_step,
        trouble=trouble_of(state.supervised.values()),
        is_served=bool(state.serving) or (step > 0 and not any(map(engine_of, state.supervised))),
        held_out=_pass_under_way(state),
    )


def _pass_under_way(state: RunState) -> str:
    by_number = state.held_out.by_number
    newest = by_number[max(by_number)] if by_number else None
    return f"{newest.num_tasks} tasks" if newest is not None and newest.score is None else ""


def trouble_of(processes: Iterable[SupervisedProcess]) -> tuple[str, ...]:
    """Who has died, and how; in the order of their names."""
    found = []
    for one in sorted(processes, key=lambda one: one.process):
        if one.state is ProcessState.FATAL:
            found.append(f"{one.process} cannot go on: {one.why}")
        elif one.state is ProcessState.WAITING and one.num_restarts:
            found.append(f"{one.process} died and is started again: {one.why}")
    return tuple(found)


def waiting_text(now: Activity) -> str:
    """One sentence."""
    if not now.is_live:
        goes_on = f" of {now.steps}: its command, given again, goes on" if (now.steps or 0) > now.step else ""
        return f"The run has ended after step {now.step}{goes_on}."
    if now.trouble:
        return f"{now.trouble[0]}."
    if not now.is_served:
        return "The engine loads its model; nothing is sampled until it serves."
    if now.steps is not None and now.step >= now.steps:
        last = (
            f"the last held-out pass is under way: {now.held_out}"
            if now.held_out
            else "the report follows, and --keep goes on serving"
        )
        return f"All {now.steps} steps are done; {last}."
    if now.step == 0 and now.held_out:
        return f"Training waits for the first held-out pass: {now.held_out}, {_agents(now)}."
    there = now.num_waiting_groups
    if there is None:
        return "Nothing is known of the groups that wait yet."
    if there >= now.groups_per_step:
        return f"The trainer works on step {now.step + 1}."
    words = [f"{there} of {now.groups_per_step} groups of step {now.step + 1} are there", *_reasons(now)]
    return f"The trainer waits for rollouts: {', '.join(words)}."


def _agents(now: Activity) -> str:
    if now.concurrency is None:
        return "agents come by themselves"
    if now.num_running >= now.concurrency:
        return f"all {now.concurrency} agents are at work"
    return f"{now.num_running} of {now.concurrency} agents are at work"


def _counted(num: int, one: str, many: str) -> str:
    return f"{num} {one if num == 1 else many}"


def _reasons(now: Activity) -> Sequence[str]:
    """What the missing groups are held up by."""
    found = []
    if now.num_running or now.concurrency is None:
        found.append(_agents(now))
    if now.num_open_episodes:
        found.append(_counted(now.num_open_episodes, "episode is open", "episodes are open"))
    if now.num_open_groups:
        found.append(_counted(now.num_open_groups, "group misses attempts", "groups miss attempts"))
    return found or ["no agent is at work, for no new group may be admitted until a newer version serves"]
