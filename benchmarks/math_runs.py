"""What runs of examples/math learnt: a table, a row a held-out pass, and paired differences.

    PYTHONPATH=. python benchmarks/math_runs.py RUN_DIR... [--samples]

In: folders of runs that have ended. Out, for the first and the last pass of each: tasks right, with Wilson's 95 %
interval; rollouts that end by the tool `answer`, how many of these are right; rollouts that used `calculator`; calls
of each. Then the mean difference, last minus first, over the same tasks, with its 95 % interval by 10,000 bootstrap
samples of tasks; and the same of each run's last pass against the first run's. `--samples`: the first ten tasks before
and after. Nothing is judged here: rewards are those on `episodes`, of the grader alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tracegrad.compose.history.run_broker import open_broker
from tracegrad.compose.run.run_dir import RunDir
from tracegrad.compose.run.wiring import Wiring
from tracegrad.producers.tasks.score import wilson
from tracegrad.schemas.log.follow import read_to_end
from tracegrad.schemas.records.calls import Purpose, ToolCall
from tracegrad.schemas.records.episodes import EPISODES, Episode
from tracegrad.schemas.records.held_out import HeldOutPass
from tracegrad.schemas.records.weights import WEIGHTS
from tracegrad.schemas.topics import Topic

_DRAWS = 10_000


class Pass(NamedTuple):
    """A held-out pass: its episodes by task."""

    step: int
    episodes: Mapping[str, Episode]

    @property
    def rewards(self) -> dict[str, float]:
        """Of the grader."""
        return {task: one.reward for task, one in self.episodes.items() if one.reward is not None}

    def row(self) -> str:
        """Of the table."""
        all_, rewards = list(self.episodes.values()), self.rewards
        num_right = sum(reward == 1 for reward in rewards.values())
        low, high = wilson(num_right, len(rewards))
        formed = [task for task, one in self.episodes.items() if any(c.name == "answer" for c in _tool_calls(one))]
        right = sum(rewards.get(task) == 1 for task in formed)
        used = sum(any(tool.name == "calculator" for call in one.calls for tool in call.tools) for one in all_)
        calls = sum(len(one.calls) for one in all_) / max(len(all_), 1)
        return (
            f"{num_right} of {len(rewards)}: {num_right / max(len(rewards), 1):.3f} ({low:.3f} to {high:.3f}) | "
            f"{len(formed)} | {right} | {used} | {calls:.2f}"
        )


def _tool_calls(episode: Episode) -> list[ToolCall]:
    return [call for one in episode.calls[-1:] for call in one.tool_calls]


def passes_of(folder: Path) -> list[Pass]:
    """The first and the last one that has a score."""
    run_dir = RunDir.open(folder)
    with open_broker(run_dir) as servers:
        wiring = Wiring(run_dir, bootstrap_servers=servers)
        log, topics = wiring.log(), wiring.topics
        weights = [WEIGHTS.decode(one.value or b"") for one in read_to_end(log, topics.name(Topic.WEIGHTS))]
        episodes = [EPISODES.decode(one.value or b"") for one in read_to_end(log, topics.name(Topic.EPISODES))]
    scored = [one for one in weights if isinstance(one, HeldOutPass) and one.score is not None]
    held_out = [one for one in episodes if one.purpose is Purpose.VALIDATION and one.is_final]
    found = []
    for one in (scored[0], scored[-1]):
        own = range(one.first_group, one.first_group + one.num_tasks)
        of_pass = {e.task_id or "": e for e in held_out if e.group is not None and e.group.index in own}
        found.append(Pass(one.step, of_pass))
    return found


def difference(after: Mapping[str, float], before: Mapping[str, float]) -> str:
    """Of means over the tasks that both have, and its interval."""
    tasks = sorted(after.keys() & before.keys())
    each = np.array([after[task] - before[task] for task in tasks])
    drawn = np.random.default_rng(0).integers(0, len(each), (_DRAWS, len(each)))
    low, high = np.quantile(each[drawn].mean(axis=1), (0.025, 0.975))
    better, worse = int((each > 0).sum()), int((each < 0).sum())
    return f"{each.mean():+.3f} ({low:+.3f} to {high:+.3f}), {len(tasks)} tasks, {better} better, {worse} worse"


def show_samples(first: Pass, last: Pass) -> None:
    """The first ten tasks by id."""
    for task in sorted(first.episodes, key=lambda name: (len(name), name))[:10]:
        for when, one in (("before", first.episodes.get(task)), ("after", last.episodes.get(task))):
            if one is not None:
                turns = [
                    [f"{call.name}({call.arguments})" for call in turn.tool_calls] or [(turn.content or "")[:120]]
                    for turn in one.calls
                ]
                print(f"  {task} {when}: {one.reward} {turns}")


def main(folders: Sequence[Path], *, samples: bool) -> None:
    """Prints it."""
    print("run | pass after step | right | final call `answer` | of these right | `calculator` used | calls each")
    found = {folder.name: passes_of(folder) for folder in folders}
    for name, passes in found.items():
        for one in passes:
            print(f"{name} | {one.step} | {one.row()}")
    names = list(found)
    for name, (first, last) in found.items():
        print(f"{name}, last minus first: {difference(last.rewards, first.rewards)}")
        if name != names[0]:
            print(f"{names[0]} minus {name}, last passes: {difference(found[names[0]][1].rewards, last.rewards)}")
        if samples:
            show_samples(first, last)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--samples", action="store_true")
    asked = parser.parse_args()
    main(asked.folders, samples=asked.samples)
