"""The second tier of tests: what `make test` leaves out, and what of it this tree owes since it was green last.

In: tiers.toml, git. Out: one line, or a run of what is owed. Invariants: an item is owed when a file that its globs
name differs from the commit `tested`, or when that cannot be seen; only what was green on a tree without changes gets
a commit. Failure: status 1: one failed, or time was over.

    python -m tests.tiers                       says what is owed
    python -m tests.tiers --run [--within S]    runs it, two items at a time
        --all                                   runs the second tier whole
        --mark                                  writes HEAD as `tested` of each item that was green
"""

from __future__ import annotations

import argparse
import functools
import re
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
_FILE = ROOT / "tests" / "tiers.toml"
_TOLD = tomllib.loads(_FILE.read_text())
_LOGS = ROOT / ".cache" / "owed"
_BESIDE = 2
"""Items at a time: half of their time they wait for processes. Of three on two cores those that kill a broker waited
too long for their own processes."""
_TAIL = 200
"""Lines that are shown of one that failed."""


class Item(NamedTuple):
    """Tests that are run, or not, together."""

    name: str
    tests: tuple[str, ...]
    """Files, folders, or FILE::FUNCTION."""
    globs: tuple[str, ...]
    """What they are about; `*` spans folders. Their own files count besides."""
    tested: str = ""
    """The commit on which they were green last."""

    def is_about(self, name: str) -> bool:
        """Whether a file that changed may change what they see."""
        own = [test.partition("::")[0] for test in self.tests]
        return any(name == test or name.startswith(f"{test}/") for test in own) or any(
            fnmatchcase(name, glob) for glob in (*self.globs, *_TOLD["always"])
        )

    def is_owed(self) -> bool:
        """Whether such a file changed since; also where nobody knows the changes."""
        names = changed_since(self.tested)
        return names is None or any(map(self.is_about, names))


ITEMS = tuple(Item(one["name"], tuple(one["tests"]), tuple(one["globs"]), one["tested"]) for one in _TOLD["item"])


def is_left_out(test: str, named: Iterable[str] = ()) -> bool:
    """Whether a file, folder or FILE::FUNCTION is of the second tier, and not named on the command line."""
    found = [second for item in ITEMS for second in item.tests if _is_in(test, second)]
    return bool(found) and not any(_is_in(name, second.partition("::")[0]) for name in named for second in found)


def _is_in(test: str, of: str) -> bool:
    return test == of or test.startswith((f"{of}/", f"{of}::", f"{of}["))


@functools.cache
def changed_since(commit: str) -> frozenset[str] | None:
    """The files that differ from a commit; None where that commit, or git, is not here."""
    return _changed_since(commit)


def _changed_since(commit: str) -> frozenset[str] | None:
    asked = (("diff", "--name-only", "--no-renames", commit), ("ls-files", "-o", "--exclude-standard"))
    names = set[str]()
    for words in asked:
        told = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
        if told.returncode:
            return None
        names |= set(told.stdout.splitlines())
    return frozenset(names)


def _line(items: Sequence[Item]) -> str:
    if not items:
        return "test-all: nothing is owed: each item was green since a file that it is about changed"
    names = ", ".join(item.name for item in items)
    return f"test-all: {len(items)} of {len(ITEMS)} items are owed; `make owed` runs {names}"


class Run:
    """A run of items, some beside each other, until time is over."""

    def __init__(self, within_s: float, mark: bool) -> None:
        self._end = time.monotonic() + within_s
        self._mark = mark
        self._head = _git("rev-parse", "HEAD") if mark else ""
        self._lock = threading.Lock()
        _LOGS.mkdir(parents=True, exist_ok=True)

    def run(self, items: Sequence[Item]) -> int:
        """Status 0 when all were green."""
        with ThreadPoolExecutor(_BESIDE) as pool:
            return 0 if all(list(pool.map(self._run_one, items))) else 1

    def _run_one(self, item: Item) -> bool:
        started = time.monotonic()
        if started >= self._end:
            print(f"{item.name}: expected time to run it, got none; run `make owed`", flush=True)
            return False
        log = _LOGS / f"{item.name}.log"
        with log.open("w") as file:
            command = [sys.executable, "-m", "pytest", "-m", "", "-rP", "--durations=20", *item.tests]
            process = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT)
            status = self._wait(process)
        took = f"{time.monotonic() - started:.0f} s"
        with self._lock:
            lines = log.read_text(errors="replace").splitlines()
            if status == 0 and " skipped" in lines[-1]:
                print(f"{item.name}: green, {took}, and not marked, for not all was run: {lines[-1]}", flush=True)
            elif status == 0:
                print(f"{item.name}: green, {took}", flush=True)
                self._write_tested(item)
            else:
                said = "got no end of it in time" if status is None else f"got status {status}"
                tail = "\n".join(lines[-_TAIL:])
                print(f"{item.name}: expected green tests, {said}, {took}; {log} ends with\n{tail}", flush=True)
        return status == 0

    def _wait(self, process: subprocess.Popen[bytes]) -> int | None:
        try:
            return process.wait(self._end - time.monotonic())
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)  # pytest ends what its fixtures started
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            return None

    def _write_tested(self, item: Item) -> None:
        if not self._mark:
            return
        own = _FILE.relative_to(ROOT).as_posix()
        changed = _changed_since(self._head)
        if changed is None or changed - {own}:
            print(f"{item.name}: not marked: files differ from commit {self._head[:8]}", flush=True)
            return
        pattern = rf'(?m)^(name = "{item.name}"\ntested = )".*"$'
        _FILE.write_text(re.sub(pattern, rf'\1"{self._head}"', _FILE.read_text()))


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--mark", action="store_true")
    parser.add_argument("--within", type=float, default=24 * 3600.0, metavar="S")
    given = parser.parse_args(arguments)
    items = [item for item in ITEMS if given.all or item.is_owed()]
    print(_line(items), flush=True)
    return Run(given.within, given.mark).run(items) if given.run else 0


if __name__ == "__main__":
    sys.exit(main())
