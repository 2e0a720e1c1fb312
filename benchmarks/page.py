"""How soon the page of a long run that has ended is there: seconds from the command to each view, and its memory.

    PYTHONPATH=. python benchmarks/page.py --run runs/demo [--episodes 1000000]

A copy of a run's folder, whose index is that of so many episodes (those of benchmarks/index.py) and whose page.msgpack
has the steps and versions that they make, eight groups of eight a step, each one of the run's own under another number;
no broker, since a page that an earlier one has left something for needs none. Then `tracegrad page` as a user calls it,
and each view asked for over HTTP, the first time and once more. By the clock: compare within one run.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from http.cookiejar import CookieJar
from pathlib import Path

import msgspec

from benchmarks.index import MadeLog
from tests.streams.make import TOPICS
from tracegrad.compose.history.index import mark_current
from tracegrad.compose.page.page_file import PAGE_FILE, PageFile, mark_of
from tracegrad.compose.run.run_dir import RunDir
from tracegrad.consumers.index.build import catch_up
from tracegrad.consumers.index.file import open_index, remove
from tracegrad.schemas.records.training import TRAINING_STEPS, TrainingStep
from tracegrad.schemas.records.weights import WEIGHTS, VersionManifest
from tracegrad.schemas.topics import Topic

_EPISODES_A_STEP = 64
_START_S = 120.0
_VIEWS = (
    "/",
    "/json?of=/",
    "/learned",
    "/groups",
    "/groups?where=reward%3D1",
    "/groups?where=tokens%3E100",
    "/groups?where=tokens%3E101",
    "/system",
)


def lengthened(file: PageFile, num_steps: int) -> PageFile:
    """So many steps, and versions that they led to."""
    records = list[tuple[Topic, bytes]]()
    for topic, many in itertools.groupby(file.records, key=lambda one: one[0]):
        values = [value for _, value in many]
        if topic is Topic.TRAINING_STEPS:
            values = list(_more_steps(values, num_steps))
        elif topic is Topic.WEIGHTS:
            values = list(_more_versions(values, num_steps))
        records += [(topic, value) for value in values]
    return msgspec.structs.replace(file, records=records)


def _more_steps(values: Sequence[bytes], num: int) -> Iterator[bytes]:
    known = [one for one in map(TRAINING_STEPS.decode, values) if isinstance(one, TrainingStep)]
    for step, one in zip(range(1, num + 1), itertools.cycle(known), strict=False):
        yield TRAINING_STEPS.encode(msgspec.structs.replace(one, step=step, version=step, epoch=known[0].epoch))


def _more_versions(values: Sequence[bytes], num: int) -> Iterator[bytes]:
    told = [WEIGHTS.decode(value) for value in values]
    known = [one for one in told if isinstance(one, VersionManifest)]
    yield from (WEIGHTS.encode(one) for one in told if not isinstance(one, VersionManifest))
    for version, one in zip(range(num + 1), itertools.cycle(known), strict=False):
        fields = {"version": version, "step": version, "base_version": max(0, version - 1), "epoch": known[0].epoch}
        yield WEIGHTS.encode(msgspec.structs.replace(one, **fields))


def make_long(run: Path, folder: Path, num: int) -> RunDir:
    """The folder of a run of so many episodes."""
    shutil.copytree(run, folder, symlinks=True)
    run_dir = RunDir.open(folder)
    path = folder / PAGE_FILE
    if not path.exists():
        raise SystemExit(f"expected {PAGE_FILE} in {run}; look at the run once: tracegrad page {run}")
    index = folder / "index.sqlite"
    remove(index)
    with open_index(index) as connection:
        catch_up(MadeLog(num), TOPICS, "policy", connection)  # type: ignore[arg-type]
    mark_current(run_dir)
    file = msgspec.msgpack.decode(path.read_bytes(), type=PageFile)
    long = msgspec.structs.replace(lengthened(file, -(-num // _EPISODES_A_STEP)), mark=mark_of(run_dir))
    path.write_bytes(msgspec.msgpack.encode(long))
    print(f"{PAGE_FILE}: {path.stat().st_size / 2**20:.1f} MiB; index: {index.stat().st_size / 2**20:.0f} MiB")
    return run_dir


def get(opener: urllib.request.OpenerDirector, url: str) -> int:
    """Its bytes. Raises OSError."""
    with opener.open(url, timeout=_START_S) as response:
        return len(response.read())


def main() -> None:
    """Makes the run, opens its page, asks for its views."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="a run that has ended, whose page was looked at")
    parser.add_argument("--episodes", type=int, default=1_000_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        run_dir = make_long(arguments.run, Path(scratch) / "long", arguments.episodes)
        began = time.monotonic()
        command = [sys.executable, "-m", "tracegrad.compose.cli", "page", str(run_dir.path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                measure(process.stdout.readline().strip(), process.pid, began)
            finally:
                process.terminate()


def measure(link: str, pid: int, began: float) -> None:
    """Of a page that may not listen yet."""
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
    while True:
        try:
            size = get(opener, link)
            break
        except urllib.error.URLError:
            if time.monotonic() - began > _START_S:
                raise
            time.sleep(0.02)
    print(f"{time.monotonic() - began:8.2f} s  from the command to Run, {size / 1024:.0f} KiB")
    for view in _VIEWS:
        took = []
        for _ in range(2):
            asked = time.monotonic()
            size = get(opener, urllib.parse.urljoin(link, view))
            took.append(time.monotonic() - asked)
        print(f"{took[0]:8.3f} s, then {took[1]:6.3f} s  {view}, {size / 1024:.0f} KiB")
    status = Path(f"/proc/{pid}/status").read_text()
    peak = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
    print(f"memory: {int(peak) / 1024:.0f} MiB at most")


if __name__ == "__main__":
    main()
