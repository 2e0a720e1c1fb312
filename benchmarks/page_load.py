"""What the page costs a live run: its share of the run's CPU, and its memory, with many clients, some that never read.

    PYTHONPATH=. python benchmarks/page_load.py --run runs/demo [--clients 50] [--mute 10] [--seconds 120] [..]

Beside a run that is up. Clients follow the Run view as tabs do; mute ones ask for it and read nothing. CPU seconds are
those of the run's supervisor and of all below it, the page among them, over the same time. `--kill-broker` kills the
run's broker at half time, and tells how many clients heard of the run again.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import msgspec
import psutil

from tracegrad.compose.run.run_dir import RunDir
from tracegrad.compose.run.wiring import Wiring

_EVERY_S, _POLL_S = 1.0, 2.0


def cpu_s(root: int) -> float:
    """Of a process and all below it, those that have ended too."""
    found = 0.0
    process = psutil.Process(root)
    for one in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = one.cpu_times()
            found += times.user + times.system + times.children_user + times.children_system
    return found


def resident_mib(pid: int) -> float:
    """Of a process, now."""
    return float(psutil.Process(pid).memory_info().rss) / 2**20


def pids_of(run: Path) -> dict[str, int]:
    """Of the run's processes, by name."""
    command = [sys.executable, "-m", "tracegrad.compose.cli", "status", "--json", str(run)]
    told = msgspec.json.decode(subprocess.run(command, capture_output=True, check=True).stdout)
    return {one["process"]: one["pid"] for one in told["processes"] if one.get("pid")}


async def follow(link: str, heard: list[float], until: float) -> None:
    """Asks for a view every two seconds, as a tab that is seen."""
    base, tag = link.partition("/?")[0], ""
    async with httpx.AsyncClient(follow_redirects=True, timeout=30) as client:
        await client.get(link)
        while time.monotonic() < until:
            with contextlib.suppress(httpx.HTTPError):
                answer = await client.get(f"{base}/", headers={"hx-request": "true", "if-none-match": tag})
                if answer.status_code == 200:
                    heard[0], tag = time.monotonic(), answer.headers["etag"]
            await asyncio.sleep(_POLL_S)


def mute(link: str, cookie: str) -> socket.socket:
    """Asks for a view, and reads nothing of it."""
    at = urlsplit(link)
    found = socket.create_connection((at.hostname or "", at.port or 80), timeout=10)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    found.sendall(f"GET / HTTP/1.1\r\nHost: {at.netloc}\r\nCookie: {cookie}\r\n\r\n".encode())
    return found


async def measure(run: Path, arguments: argparse.Namespace) -> None:
    """Prints what it comes to."""
    link, pids = Wiring(RunDir.open(run)).page_link, pids_of(run)
    assert link is not None, "expected a run with a page"
    page = pids["page"]
    supervisor = psutil.Process(page).ppid()
    with httpx.Client(follow_redirects=True) as client:
        client.get(link)
        cookie = "; ".join(f"{name}={value}" for name, value in client.cookies.items())
    began = time.monotonic()
    until, heard = began + arguments.seconds, [[0.0] for _ in range(arguments.clients - arguments.mute)]
    of_page, of_run, sizes = cpu_s(page), cpu_s(supervisor), [resident_mib(page)]
    killed_at = None
    with contextlib.ExitStack() as ends:
        for _ in range(arguments.mute):
            ends.enter_context(mute(link, cookie))
        tabs = [asyncio.create_task(follow(link, one, until)) for one in heard]
        while time.monotonic() < until:
            await asyncio.sleep(_EVERY_S)
            sizes.append(resident_mib(page))
            if arguments.kill_broker and killed_at is None and time.monotonic() > began + arguments.seconds / 2:
                os.kill(pids["kafka"], signal.SIGKILL)
                killed_at = time.monotonic()
        of_page, of_run = cpu_s(page) - of_page, cpu_s(supervisor) - of_run
        for tab in tabs:
            tab.cancel()
    print(f"{arguments.seconds} s, {arguments.clients} clients, {arguments.mute} of which never read")
    print(f"CPU: page {of_page:.1f} s of the run's {of_run:.1f} s, {of_page / of_run:.1%}")
    print(f"memory: {sizes[0]:.0f} MiB at first, {max(sizes):.0f} at most, {sizes[-1]:.0f} at the end")
    print(f"heard in the last 20 s: {sum(one[0] > until - 20 for one in heard)} of {len(heard)}")
    if killed_at is not None:
        print(
            f"broker killed at half time; heard since: {sum(one[0] > killed_at + 1 for one in heard)} of {len(heard)}"
        )


def main() -> None:
    """Beside a run that is up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--mute", type=int, default=10)
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--kill-broker", action="store_true")
    arguments = parser.parse_args()
    asyncio.run(measure(arguments.run, arguments))


if __name__ == "__main__":
    main()
