"""Learning curves of recipes on the demo's task: each a whole `tracegrad train`, one after the other.

    python benchmarks/recipes.py grpo:0 grpo:1 ppo:0 [--steps 40] [--runs-dir runs] [--set trainer.lr=5e-4]
    python benchmarks/recipes.py rloo_clip,rows={segments,transitions,concatenated}:{0,1,2} --tokens 60000 \\
        --set agent.callable=examples/calculator/counting.py:solve --runs-dir runs/rows

Real parts throughout, with the demo's settings and tasks. `NAME[,KEY=VALUE]...:SEED` is a recipe with other keys of
`[algorithm]`; it names a run, so that the same command goes on with what is unfinished and reads what is done. By
`--tokens` a run that trained fewer tokens gets more steps, so that runs are compared at equal tokens, up to a step.
Out: a Markdown table, from each run's results.json: mean final reward of sampled rollouts by quarters of the run
(bonuses of AIR left out) and of the last ten steps, the held-out score before and after, steps and how many trained
nothing, thousands of trained tokens, rows, thousands of tokens in these (what the trainer reads), seconds in all and in
the trainer's passes; then the mean and standard deviation over each recipe's seeds. By `--chart FILE.svg` also the mean
reward of the last five steps over the tokens trained, a line a run, a colour a recipe.
"""

from __future__ import annotations

import argparse
import math
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from statistics import fmean, stdev

import msgspec

from tracegrad.compose.cli.run import CALCULATOR
from tracegrad.consumers.page.charts import running_mean
from tracegrad.consumers.views.held_out import HeldOut
from tracegrad.consumers.views.results import Results

_TRACEGRAD = Path(sys.executable).with_name("tracegrad")
_LIMIT_S = 3600.0
_HEAD = (
    "recipe, seed", "reward by quarters", "last ten", "held-out before", "after", "steps, idle", "k tokens", "rows",
    "k row tokens", "seconds, passes",
)  # fmt: skip


def _results_of(recipe: str, seed: int, args: argparse.Namespace) -> Results | int:
    """What a run came to, or the exit status with which it failed."""
    name = re.sub(r"[^a-z0-9]+", "-", f"{recipe} {seed}").strip("-")
    path: Path = args.runs_dir / name / "results" / "results.json"
    steps: int = args.steps
    while True:
        found = msgspec.json.decode(path.read_bytes(), type=Results) if path.is_file() else None
        if found is not None:
            steps = max(args.steps, found.steps + _missing(found, args.tokens))
            if steps == found.steps:
                return found
        of_recipe, *keys = recipe.split(",")
        chosen = [
            f"--set={key}" for key in (*(f"algorithm.{key}" for key in (f"recipe={of_recipe}", *keys)), *args.set)
        ]
        told = ["--steps", str(steps), "--seed", str(seed), "--run", name, "--runs-dir", str(args.runs_dir)]
        done = subprocess.run(
            [str(_TRACEGRAD), "train", str(CALCULATOR), *told, *chosen, "--json"],
            stdout=subprocess.DEVNULL,
            timeout=_LIMIT_S,
            check=False,
        )
        if done.returncode:
            return done.returncode


def _missing(found: Results, num_tokens: int) -> int:
    """Steps until so many tokens are trained, as its last ten go."""
    trained = _curve(found, "num_tokens")
    left = num_tokens - sum(trained)
    return max(1, math.ceil(left / (fmean(trained[-10:]) or math.inf))) if left > 0 else 0


def _curve(results: Results, name: str) -> list[float]:
    return [value for value in results.curves[name] if value is not None]


def _cells(results: Results) -> list[str]:
    rewards = _curve(results, "reward")
    quarter = max(1, len(rewards) // 4)
    last, passes = results.reward_last_ten, results.seconds.get("forward_backward", 0.0)
    return [
        " ".join(_short(fmean(rewards[at : at + quarter])) for at in range(0, min(4 * quarter, len(rewards)), quarter)),
        "" if last is None else _short(last),
        _score(results.before),
        _score(results.after),
        f"{results.steps}, {results.steps - results.version}",
        f"{sum(_curve(results, 'num_tokens')) / 1000:.1f}",
        f"{sum(_curve(results, 'num_rows')):.0f}",
        f"{sum(_curve(results, 'num_row_tokens')) / 1000:.1f}",
        f"{sum(results.seconds.values()) - results.seconds['total']:.0f}, {passes:.1f}",
    ]


def _score(of: HeldOut | None) -> str:
    if of is None or of.mean is None or of.low is None or of.high is None:
        return ""
    return f"{_short(of.mean)} ({_short(of.low)} to {_short(of.high)})"


def _short(value: float) -> str:
    return f"{value:.2f}".removeprefix("0")


def _over_seeds(recipe: str, all_: Sequence[Results]) -> str:
    """Of the last ten steps, and held-out after."""
    lasts = [one.reward_last_ten for one in all_ if one.reward_last_ten is not None]
    afters = [one.after.mean for one in all_ if one.after is not None and one.after.mean is not None]
    told = [f"{_short(fmean(each))} (sd {_short(stdev(each))})" if each[1:] else "" for each in (lasts, afters)]
    return _line([f"`{recipe}`, {len(all_)} seeds", "", told[0], "", told[1], "", "", "", "", ""])


def _draw(by_recipe: Mapping[str, Sequence[Results]], path: Path) -> None:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "tracegrad", "font.size": 9.0}):
        figure = Figure(figsize=(8.0, 4.5), layout="constrained")
        axes = figure.subplots()
        axes.set(xlabel="thousand trained tokens", ylabel="mean reward of the last five steps", ylim=(-0.03, 1.03))
        for number, (recipe, all_) in enumerate(by_recipe.items()):
            for seed, results in enumerate(all_):
                tokens = [(value or 0) / 1000 for value in results.curves["num_tokens"]]
                rewards = running_mean(results.curves["reward"], 5)
                style = {"color": f"C{number % 10}", "linestyle": "-" if number < 10 else "--"}
                axes.plot([*accumulate(tokens)], rewards, label=recipe if seed == 0 else None, **style)
        axes.legend(loc="upper left", frameon=False)
        figure.savefig(path, format="svg", metadata={"Date": None})


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _asked(text: str) -> tuple[str, int]:
    recipe, _, seed = text.rpartition(":")
    if not recipe or not seed.isdigit():
        raise argparse.ArgumentTypeError(f"expected NAME[,KEY=VALUE]...:SEED, got {text!r}")
    return recipe, int(seed)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs what is not there yet; prints each row as it is known."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=_asked, metavar="NAME[,KEY=VALUE]...:SEED")
    parser.add_argument("--steps", type=int, default=40, help="at least")
    parser.add_argument("--tokens", type=int, default=0, help="trained tokens, at least")
    parser.add_argument("--runs-dir", type=Path, default=Path("runs/recipes"))
    parser.add_argument("--chart", type=Path, help="an SVG file to write")
    parser.add_argument("--set", action="append", default=[], help="any other key of the settings")
    args = parser.parse_args(arguments)
    print(_line(_HEAD), _line(["---"] * len(_HEAD)), sep="\n")
    by_recipe: defaultdict[str, list[Results]] = defaultdict(list)
    for recipe, seed in args.runs:
        found = _results_of(recipe, seed, args)
        if isinstance(found, int):
            cells = [f"ended with {found}", *[""] * (len(_HEAD) - 2)]
        else:
            cells = _cells(found)
            by_recipe[recipe].append(found)
        print(_line([f"`{recipe}`, {seed}", *cells]), flush=True)
    for recipe, all_ in by_recipe.items():
        if all_[1:]:
            print(_over_seeds(recipe, all_))
    if args.chart:
        _draw(by_recipe, args.chart)


if __name__ == "__main__":
    main()
