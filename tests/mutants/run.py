"""Does a fault that was mended once turn a test of `make test` red? Each is brought back alone into a copy of the tree.

In: mended.toml, seeded.toml. Out: a table, and status 1 when more of them survive than may. Of each its own test runs;
where that stays green, the tests that import the touched file or lie in its folder; where these do, all of `make test`.
The working tree is only read. What was found is kept in .cache/mutants.json, and found again for equal files alone.

    python -m tests.mutants.run [NAME ..]      NAME: a part of a mutant's name; without one, all
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.house import ROOT, imports, module_of

__all__ = ["Mutant", "mutants"]

_FOLDER = Path(__file__).parent
_KEPT = ROOT / ".cache" / "mutants.json"
_MAY_SURVIVE = {"mended": 3, "seeded": 1}
"""Of 30 and of 12."""
_COLLECTED_NONE = 5
"""pytest's status for it."""
_OURS = (
    "import site, sys; site.addsitedir({packages!r}); "
    "[m.MAPPING.update({{name: path.replace({tree!r}, {copy!r}, 1) for name, path in m.MAPPING.items()}}) "
    "for key, m in list(sys.modules.items()) if key.startswith('__editable___tracegrad')]\n"
)
"""A .pth file: the packages of the tree's environment, but ours from the copy."""


class Mutant(NamedTuple):
    """One fault."""

    name: str
    kind: str
    """`mended` or `seeded`."""
    file: str
    old: str
    """Stands in the file once."""
    new: str
    test: str
    """Turns red: FILE::FUNCTION."""

    def applied(self) -> str:
        """The file's text with it. Raises ValueError unless `old` stands there once."""
        text = (ROOT / self.file).read_text()
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: expected `old` once in {self.file}, got {text.count(self.old)} times")
        return text.replace(self.old, self.new)

    def digest(self) -> str:
        """Of all that its own test's verdict hangs on, as far as two files tell."""
        parts = (self.applied(), self.test, (ROOT / self.test.partition("::")[0]).read_text())
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def mutants() -> list[Mutant]:
    """All, in their order."""
    return [
        Mutant(one["name"], kind, one["file"], one["old"], one["new"], one["test"])
        for kind in _MAY_SURVIVE
        for one in tomllib.loads((_FOLDER / f"{kind}.toml").read_text())["mutant"]
    ]


def near(file: str) -> list[str]:
    """The test files that import it, perhaps by a support module of theirs, and those that lie in its folder."""
    wanted = {module_of(ROOT / file)}
    paths = sorted((ROOT / "tests").rglob("*.py"))
    reaching: set[Path] = set()
    while True:
        found = {path for path in paths if path not in reaching and wanted & set(_named_by(path))}
        if not found:
            break
        reaching |= found
        wanted |= {_test_module(path) for path in found}
    folder = ROOT / "tests" / Path(file).parent
    return [
        path.relative_to(ROOT).as_posix()
        for path in paths
        if path.name.startswith("test_") and (path in reaching or path.parent == folder)
    ]


def _named_by(path: Path) -> Iterator[str]:
    for found in imports(path):
        yield found.module
        yield from (f"{found.module}.{name}" for name in found.names)


def _test_module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


class Copy:
    """A copy of the tree, whose tests import the copy's packages by the environment of the tree."""

    def __init__(self, folder: Path) -> None:
        self._root = folder / "tree"
        listed = subprocess.run(
            ["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True, text=True
        )
        for name in filter(None, listed.stdout.split("\0")):
            if (ROOT / name).is_file():
                (self._root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self._root / name)
        for name in (".cache",):  # brokers, models: made once
            if (ROOT / name).is_dir():
                (self._root / name).symlink_to(ROOT / name)
        self._make_environment()
        self._env = os.environ | {"OMP_NUM_THREADS": "1"}
        self._env.pop("CI", None)

    def _make_environment(self) -> None:
        """By an interpreter of its own, which processes that the tests start run too, whatever their variables."""
        tree, copy = ROOT / ".venv", self._root / ".venv"
        (packages,) = (tree / "lib").glob("python*/site-packages")
        own = copy / packages.relative_to(tree)
        own.mkdir(parents=True)
        (own / "ours.pth").write_text(_OURS.format(packages=str(packages), tree=str(ROOT), copy=str(self._root)))
        shutil.copy2(tree / "pyvenv.cfg", copy)
        (copy / "bin").mkdir()
        for path in (tree / "bin").iterdir():
            made, shebang = copy / "bin" / path.name, f"#!{tree}/".encode()
            if path.name.startswith("python"):
                made.symlink_to(path.resolve())
            elif path.is_file() and path.read_bytes().startswith(shebang):
                made.write_bytes(path.read_bytes().replace(shebang, f"#!{copy}/".encode(), 1))
                made.chmod(0o755)
            else:
                made.symlink_to(path)

    def is_red(self, mutant: Mutant | None, tests: list[str]) -> bool:
        """Whether some of these fail with the fault. Raises RuntimeError where none could be run."""
        path = self._root / mutant.file if mutant else None
        try:
            if mutant and path:
                path.write_text(mutant.applied())
                # Of a second's grain, and of equal size: compiled files would be taken for its own.
                os.utime(path, (time.time(), time.time() - 1_000_000 + time.monotonic() % 900_000))
            command = [
                str(self._root / ".venv/bin/python"),
                "-m",
                "pytest",
                "-q",
                "-x",
                "-m",
                "",
                "-p",
                "no:cacheprovider",
                *tests,
            ]
            ended = subprocess.run(command, cwd=self._root, env=self._env, capture_output=True, text=True)
        finally:
            if mutant and path:
                shutil.copy2(ROOT / mutant.file, path)
        if ended.returncode not in (0, 1, 2):
            raise RuntimeError(f"pytest ended with {ended.returncode}: {ended.stdout[-2000:]}{ended.stderr[-2000:]}")
        return ended.returncode != 0


def held_by(copy: Copy, mutant: Mutant) -> str:
    """What turns red: `its test`, `near`, `all`, or nothing where it survives."""
    if copy.is_red(mutant, [mutant.test]):
        return "its test"
    if copy.is_red(mutant, near(mutant.file)):
        return "near"
    return "all" if copy.is_red(mutant, []) else ""


def main(arguments: list[str]) -> int:
    """The table."""
    kept: dict[str, Any] = json.loads(_KEPT.read_text()) if _KEPT.exists() else {}
    chosen = [one for one in mutants() if not arguments or any(part in one.name for part in arguments)]
    survivors = dict.fromkeys(_MAY_SURVIVE, 0)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Copy(Path(folder))
        new = [mutant.test for mutant in chosen if mutant.digest() not in kept]
        if new and copy.is_red(None, new):
            print("expected the tests that mutants name to pass without any, got failures; mend those first")
            return 1
        for mutant in chosen:
            began, digest = time.monotonic(), mutant.digest()
            held = kept.get(digest) or held_by(copy, mutant)
            if held == "its test":
                kept[digest] = held
                _KEPT.parent.mkdir(exist_ok=True)
                _KEPT.write_text(json.dumps(kept))
            survivors[mutant.kind] += not held
            print(f"{mutant.kind}  {held or 'SURVIVES':9} {time.monotonic() - began:6.1f} s  {mutant.name}", flush=True)
    print("survive: " + ", ".join(f"{num} {kind} of {_MAY_SURVIVE[kind]} that may" for kind, num in survivors.items()))
    return int(any(num > _MAY_SURVIVE[kind] for kind, num in survivors.items()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
