"""What clients that mean harm cost a good one at each gateway: how many of its requests are refused, and its p99.

    PYTHONPATH=. python benchmarks/hostile_clients.py [--requests 500] [--clients 540]

The good client asks one after the other, undisturbed and then while a process beside the gateway's sends half bodies,
half headers, gzip that unpacks to 1,000 times its size, or bodies of a few megabytes that decode to hundreds, again and
again. The gateways are the tests' (tests/producers/hostile.py): a log in memory, a scripted engine. On a busy machine
compare ratios, not times.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gzip
import subprocess
import sys
import time
from collections.abc import Iterator

import aiohttp

from tests.producers import hostile

LARGE = 4
"""Clients at once that send large bodies."""


def _bodies(kind: str, gateway: str) -> tuple[bytes, dict[str, str]]:
    """A large body, and its headers."""
    if kind == "gzip":
        return gzip.compress(bytes(16_000_000)), {"content-encoding": "gzip", "content-type": "application/x-protobuf"}
    if gateway == "otlp":
        return b"\x0a\x00" * 2_000_000, {"content-type": "application/x-protobuf"}
    return b'{"model": [' + b"[]," * 2_000_000 + b"[]]}", {"content-type": "application/json"}


async def _attack(num: int, kind: str, gateway: str, url: str, path: str) -> None:
    """Until it is killed."""
    host, _, port = url.removeprefix("http://").partition(":")
    if kind in ("bodies", "headers"):
        head = f"POST {path} HTTP/1.1\r\nhost: {host}\r\n".encode()
        rest = b"content-length: 10001\r\n\r\n" + b"x" * 10_000 if kind == "bodies" else b"x-a: "
        writers: list[asyncio.StreamWriter] = []
        while True:
            for _ in range(num - len(writers)):
                _, writer = await asyncio.open_connection(host, int(port))
                writer.write(head + rest)
                writers.append(writer)
            await asyncio.sleep(0.2)
            writers = [writer for writer in writers if not writer.transport.is_closing()]
    body, headers = _bodies(kind, gateway)
    async with aiohttp.ClientSession(headers=headers) as http:

        async def ask() -> None:
            while True:
                with contextlib.suppress(aiohttp.ClientError):
                    async with http.post(url + path, data=body) as response:
                        await response.read()

        await asyncio.gather(*(ask() for _ in range(LARGE)))


@contextlib.contextmanager
def _attacked(kind: str, gateway: str, target: hostile.Target, num: int) -> Iterator[None]:
    command = [sys.executable, __file__, "--attack", kind, gateway, target.url, target.path, "--clients", str(num)]
    attacker = subprocess.Popen(command)
    try:
        yield
    finally:
        attacker.kill()
        attacker.wait()


async def _measure(target: hostile.Target, num: int) -> tuple[int, float]:
    """(refused, p99 in seconds)."""
    times, refused = [], 0
    for _ in range(num):
        began = time.perf_counter()
        refused += await target.send() != 200
        times.append(time.perf_counter() - began)
    return refused, sorted(times)[int(num * 0.99) - 1]


async def _compare(gateway: str, num: int, num_clients: int) -> None:
    async with hostile.TARGETS[gateway]() as target:
        await _measure(target, 50)
        refused, alone_s = await _measure(target, num)
        print(f"{gateway:5} {'undisturbed':12} refused {refused:3d}  p99 {alone_s * 1e3:7.1f} ms")
        kinds = ("bodies", "headers", "gzip", "dense") if gateway == "otlp" else ("bodies", "headers", "dense")
        for kind in kinds:
            with _attacked(kind, gateway, target, num_clients):
                await asyncio.sleep(2.0)
                refused, p99_s = await _measure(target, num)
            print(f"{gateway:5} {kind:12} refused {refused:3d}  p99 {p99_s * 1e3:7.1f} ms  x {p99_s / alone_s:.1f}")


def main() -> None:
    """A line for each gateway and kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--clients", type=int, default=540)
    parser.add_argument("--attack", nargs=4, metavar=("KIND", "GATEWAY", "URL", "PATH"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.attack:
        asyncio.run(_attack(given.clients, *given.attack))
        return
    for gateway in hostile.TARGETS:
        asyncio.run(_compare(gateway, given.requests, given.clients))


if __name__ == "__main__":
    main()
