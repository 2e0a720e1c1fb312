"""How far a training run is, as a person sees it at a glance: the step with the time left, the reward as a sparkline,
the held-out score before training and now; and the words around it, at the beginning and at the end.

In: the events of `StepLines` of a live run, `Results` of any. Out: lines, none wider than the terminal. Invariant:
bounded, by the last 20,000 rewards. Failure: none; what is not known yet is left out.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from statistics import fmean, median

from .held_out import HeldOut, held_out_text
from .results import Results
from .terminal import Event, StepLine

_BLOCKS = "".join(chr(0x2581 + height) for height in range(8))
_ASCII = "_.-=+*#@"
_REWARDS = 20_000
_PACE = 20
"""Steps by whose median the time left is told: one slow step, such as with a held-out pass, moves it little."""
_MIN_PACE = 2
_MAX_SPARK = 60
_GREATEST = 1e300


def sparkline(values: Sequence[float | None], width: int, *, is_ascii: bool = False) -> str:
    """The values in at most `width` characters, each the mean of its share; from 0, or the least, to the greatest, or
    1 where the greatest is less. A share without a number is a blank."""
    levels = _ASCII if is_ascii else _BLOCKS
    if not (known := _numbers(values)) or width < 1:
        return ""
    low, high = min(0.0, *known), max(1.0, *known)
    num = min(width, len(values))
    cells = []
    for index in range(num):
        found = _numbers(values[index * len(values) // num : (index + 1) * len(values) // num])
        level = (sum(found) / len(found) - low) / (high - low) if found else -1.0
        cells.append(levels[min(len(levels) - 1, int(level * len(levels)))] if found else " ")
    return "".join(cells)


def _numbers(values: Sequence[float | None]) -> list[float]:
    """Those that there are, within what can be added and compared."""
    found = (value for value in values if value is not None and math.isfinite(value))
    return [max(-_GREATEST, min(value, _GREATEST)) for value in found]


def duration(seconds: float) -> str:
    """As people say it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def sampled_text(*, temperature: float, held_out_temperature: float | None) -> str:
    """What the two numbers mean, in a line; without held-out tasks there is one."""
    reward = f"reward: the mean of rollouts that training learns from, sampled at temperature {temperature:g}"
    if held_out_temperature is None:
        return reward
    how = "by the likeliest tokens" if not held_out_temperature else f"at temperature {held_out_temperature:g}"
    higher = ", which is the higher score" if held_out_temperature < temperature else ""
    return f"{reward}; held-out: the mean of tasks that it never trains on, answered {how}{higher}"


def now_line(sentence: str, for_s: float, width: int) -> str:
    """What is done now, and for how long; where that is too wide, without its last clauses, for half a word tells
    nothing."""
    clauses, last = sentence.split(", "), f", {duration(for_s)}"
    while clauses[1:] and len(", ".join(clauses) + last) > width:
        clauses.pop()
    return (", ".join(clauses) + last)[:width]


def last_steps(num: int) -> str:
    """What `reward_last_ten` is the mean of."""
    return "the last ten" if num > 10 else f"all {num}"


def next_lines(run: str, *, has_agent: bool, activate: str | None = None) -> list[str]:
    """What a person may want to do with a run that is done; `activate`: the script by which their shell finds us."""
    offered = [
        *([(f". {activate}", "first, so that this shell finds `tracegrad`")] if activate is not None else []),
        *([(f"tracegrad chat {run} --before", "ask the policy, beside what it was before")] if has_agent else []),
        (f"tracegrad page {run}", "look at it in a browser: what it learned, and every episode"),
        (f"tracegrad episodes --run {run} -n 5", "look at its last episodes"),
        ("tracegrad up FILE", "your own agent: docs/your_agent.md, or docs/first-hour.md step by step"),
    ]
    width = max(len(command) for command, _ in offered)
    return ["what next:", *(f"  {command:{width}}  {what}" for command, what in offered)]


def glance_lines(
    results: Results, *, steps: int, served: Mapping[str, int], width: int, is_ascii: bool = False
) -> list[str]:
    """Where a run stands, none wider than `width`: step, reward, held-out, who serves what; of what there is.

    Args:
        results: of its topics, or of results.json.
        steps: that it is asked for.
        served: engine -> the version that it acknowledged last.
    """
    where = f"step {results.steps} of {steps}, version {results.version}" if results.steps else ""
    rewards = results.curves.get("reward", [])
    lines = _lines(where, rewards, results.before, results.after, width=width, is_ascii=is_ascii)
    if served:
        told = ", ".join(f"version {version} by {id_}" for id_, version in sorted(served.items()))
        lines.append(f"served: {told}"[:width])
    return lines


def _lines(
    where: str,
    rewards: Sequence[float | None],
    before: HeldOut | None,
    after: HeldOut | None,
    *,
    width: int,
    is_ascii: bool,
) -> list[str]:
    """Of what is known."""
    lines = []
    if where:
        last = [reward for reward in rewards[-10:] if reward is not None]
        head = f"reward {f'{fmean(last):.3f}' if last else '-'} ({last_steps(len(rewards))}) "
        lines += [where, head + sparkline(rewards, min(_MAX_SPARK, width - len(head)), is_ascii=is_ascii)]
    lines += [f"held-out before: {held_out_text(before)}"] if before is not None else []
    lines += [f"held-out now:    {held_out_text(after)}"] if after is not None else []
    return [line[:width] for line in lines]


class RunProgress:
    """Of one start of a run."""

    def __init__(self, steps: int) -> None:
        """`steps` that it is asked for."""
        self._steps = steps
        self._line: StepLine | None = None
        self._rewards: deque[float | None] = deque(maxlen=_REWARDS)
        self._pace: deque[float] = deque(maxlen=_PACE)
        self._passes: list[HeldOut] = []
        """The first, and the last where it is another."""

    def add_event(self, event: Event) -> None:
        """What happened."""
        if event.held_out is not None:
            self._passes = [*self._passes[:1], event.held_out]
        if event.step is not None:
            if self._line is not None:
                self._pace.append(event.step.seconds)
            self._line = event.step
            self._rewards.append(event.step.reward)

    @property
    def left_s(self) -> float | None:
        """Seconds until the last step is done; None: too little is known."""
        if self._line is None or len(self._pace) < _MIN_PACE:
            return None
        return max(0, self._steps - self._line.step) * median(self._pace)

    def lines(self, width: int, *, is_ascii: bool = False) -> list[str]:
        """As `glance_lines`, with the time left. Empty before the first score or step."""
        where = f"step {self._line.step} of {self._steps}, version {self._line.version}" if self._line else ""
        where += f", {duration(self.left_s)} left" if self.left_s else ""
        before, after = (*self._passes, None, None)[:2]
        return _lines(where, list(self._rewards), before, after, width=width, is_ascii=is_ascii)
