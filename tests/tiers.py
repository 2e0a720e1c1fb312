"""The second tier of tests: what `make test` leaves out, and what of it this tree owes since all of it was green last.

In: tiers.toml, git. Out: one line, or a run of what is owed. Invariants: an item is owed when a file that its globs
name differs from the commit `tested`, or when that cannot be seen. Failure: status 1: one failed, or time was over.

    python -m tests.tiers                       says what is owed
    python -m tests.tiers --run [--within S]    runs it
    python -m tests.tiers --tested              writes HEAD as `tested`, behind a green `make test-all`
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Collection, Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
_FILE = ROOT / "tests" / "tiers.toml"
_TOLD = tomllib.loads(_FILE.read_text())
_RUNS = ("tests/e2e/", "tests/compose/")
"""They wait for processes half of their time, so they run beside the others."""


class Item(NamedTuple):
    """Tests that are run, or not, together."""

    name: str
    tests: tuple[str, ...]
    """Files, folders, or FILE::FUNCTION."""
    globs: tuple[str, ...]
    """What they are about; `*` spans folders. Their own files count besides."""

    def is_about(self, name: str) -> bool:
        """Whether a file that changed may change what they see."""
        own = [test.partition("::")[0] for test in self.tests]
        return any(name == test or name.startswith(f"{test}/") for test in own) or any(
            fnmatchcase(name, glob) for glob in (*self.globs, *_TOLD["always"])
        )


ITEMS = tuple(Item(one["name"], tuple(one["tests"]), tuple(one["globs"])) for one in _TOLD["item"])


def is_left_out(test: str, named: Iterable[str] = ()) -> bool:
    """Whether a file, folder or FILE::FUNCTION is of the second tier, and not named on the command line."""
    found = [second for item in ITEMS for second in item.tests if _is_in(test, second)]
    return bool(found) and not any(_is_in(name, second.partition("::")[0]) for name in named for second in found)


def _is_in(test: str, of: str) -> bool:
    return test == of or test.startswith((f"{of}/", f"{of}::", f"{of}["))


def changed() -> set[str] | None:
    """The files that differ from `tested`; None where that commit, or git, is not here."""
    asked = (("diff", "--name-only", "--no-renames", _TOLD["tested"]), ("ls-files", "-o", "--exclude-standard"))
    names = set[str]()
    for words in asked:
        told = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
        if told.returncode:
            return None
        names |= set(told.stdout.splitlines())
    return names


def owed(names: Collection[str] | None) -> list[Item]:
    """The items that these changes are about; all when nobody knows the changes."""
    return [item for item in ITEMS if names is None or any(map(item.is_about, names))]


def _line(items: Sequence[Item], names: Collection[str] | None) -> str:
    tested = f"commit {_TOLD['tested'][:8]}"
    since = f"{tested} is not in this clone" if names is None else f"{len(names)} files changed since {tested}"
    if not items:
        return f"test-all: nothing is owed: {since}"
    return f"test-all: {len(items)} of {len(ITEMS)} items are owed ({since}); `make owed` runs " + ", ".join(
        item.name for item in items
    )


def _run(items: Sequence[Item], within_s: float) -> int:
    """Runs them, those of whole runs beside the others."""
    tests = [test for item in items for test in item.tests]
    parts = [[test for test in tests if test.startswith(_RUNS) is beside] for beside in (True, False)]
    command = [sys.executable, "-m", "pytest", "-m", "", "-rP", "--durations=20"]
    running = [subprocess.Popen([*command, *part], cwd=ROOT) for part in parts if part]
    end = time.monotonic() + within_s
    try:
        return max((process.wait(max(0.0, end - time.monotonic())) for process in running), default=0)
    except subprocess.TimeoutExpired:
        print(f"test-all: expected what is owed to end within {within_s:g} s, got no end; run `make test-all`")
        return 1
    finally:
        for process in running:
            process.terminate()


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--within", type=float, default=24 * 3600.0, metavar="S")
    parser.add_argument("--tested", action="store_true")
    given = parser.parse_args(arguments)
    if given.tested:
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
        text = re.sub(r'(?m)^tested = ".*"$', f'tested = "{head.stdout.strip()}"', _FILE.read_text())
        _FILE.write_text(text)
        return 0
    names = changed()
    items = owed(names)
    print(_line(items, names), flush=True)
    return _run(items, given.within) if given.run else 0


if __name__ == "__main__":
    sys.exit(main())
