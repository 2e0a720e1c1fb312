"""Learning curves of recipes on the demo's task: each a whole `tracegrad train`, one after the other.

    python benchmarks/recipes.py grpo:0 grpo:1 ppo:0 [--steps 40] [--runs-dir runs] [--set trainer.lr=5e-4]

Real parts throughout, with the demo's settings and tasks; `NAME:SEED` names a run, so that the same command goes on
with what is unfinished and reads what is done. Out: a Markdown table, from each run's results.json: mean final reward
of sampled rollouts by quarters of the run (bonuses of AIR left out) and of the last ten steps, the held-out score
before and after, steps that trained nothing, seconds.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import msgspec

from tracegrad.compose.run.demo import CALCULATOR
from tracegrad.consumers.views.results import HeldOut, Results

_TRACEGRAD = Path(sys.executable).with_name("tracegrad")
_LIMIT_S = 3600.0


def _results_of(recipe: str, seed: int, args: argparse.Namespace) -> Results | int:
    """What a run came to, or the exit status with which it failed."""
    name = re.sub(r"[^a-z0-9]+", "-", f"{recipe} {seed}").strip("-")
    found: Path = args.runs_dir / name / "results" / "results.json"
    if not found.is_file():
        chosen = [f"--set={given}" for given in (f"algorithm.recipe={recipe}", *args.set)]
        steps = ["--steps", str(args.steps), "--seed", str(seed), "--run", name, "--runs-dir", str(args.runs_dir)]
        done = subprocess.run(
            [str(_TRACEGRAD), "train", str(CALCULATOR), *steps, *chosen, "--json"],
            stdout=subprocess.DEVNULL,
            timeout=_LIMIT_S,
            check=False,
        )
        if done.returncode:
            return done.returncode
    return msgspec.json.decode(found.read_bytes(), type=Results)


def _row(recipe: str, seed: int, results: Results) -> str:
    rewards = [value for value in results.curves["reward"] if value is not None]
    quarter = max(1, len(rewards) // 4)
    quarters = " ".join(_short(fmean(rewards[at : at + quarter])) for at in range(0, 4 * quarter, quarter))
    last = "" if results.reward_last_ten is None else _short(results.reward_last_ten)
    idle = results.steps - results.version
    cells = [
        quarters,
        last,
        _score(results.before),
        _score(results.after),
        str(idle),
        f"{results.seconds['total']:.0f}",
    ]
    return f"| `{recipe}`, {seed} | " + " | ".join(cells) + " |"


def _score(of: HeldOut | None) -> str:
    if of is None or of.mean is None or of.low is None or of.high is None:
        return ""
    return f"{_short(of.mean)} ({_short(of.low)} to {_short(of.high)})"


def _short(value: float) -> str:
    return f"{value:.2f}".removeprefix("0")


def _asked(text: str) -> tuple[str, int]:
    recipe, _, seed = text.rpartition(":")
    if not recipe or not seed.isdigit():
        raise argparse.ArgumentTypeError(f"expected NAME:SEED, got {text!r}")
    return recipe, int(seed)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs what is not there yet; prints each row as it is known."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=_asked, metavar="NAME:SEED")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--runs-dir", type=Path, default=Path("runs/recipes"))
    parser.add_argument("--set", action="append", default=[], help="any other key of the settings")
    args = parser.parse_args(arguments)
    print("| recipe, seed | reward by quarters | last ten | held-out before | after | steps without update | seconds |")
    print("|---|---|---|---|---|---|---|")
    for recipe, seed in args.runs:
        found = _results_of(recipe, seed, args)
        line = f"| `{recipe}`, {seed} | ended with {found} |" if isinstance(found, int) else _row(recipe, seed, found)
        print(line, flush=True)


if __name__ == "__main__":
    main()
