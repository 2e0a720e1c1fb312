"""Carries connections across the wall of a sandbox without network: `relay.py LISTEN=TARGET ... -- ARGV`.

An address is HOST:PORT or the path of a unix socket. Inside, started by path with the agent's Python and the standard
library alone, it listens where the gateways are outside, runs ARGV with its own stdin, stdout and stderr, and ends with
it, with its status; outside, the runner serves the other end. In: bytes. Out: the same bytes. Failure: where the target
does not answer the connection is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys

_CHUNK_BYTES = 65_536


async def serve(listen: str, target: str) -> asyncio.AbstractServer:
    """Carries each connection to `listen` on to `target`, until the server is closed."""

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            far_reader, far_writer = await _open(target)
            try:
                await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))
            finally:
                far_writer.close()
        writer.close()

    if listen.startswith("/"):
        return await asyncio.start_unix_server(carry, listen)
    host, _, port = listen.rpartition(":")
    return await asyncio.start_server(carry, host, int(port))


async def _open(target: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if target.startswith("/"):
        return await asyncio.open_unix_connection(target)
    host, _, port = target.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until one side ends, which the other is told; the way back may still be in use."""
    while data := await reader.read(_CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
    writer.write_eof()


async def main(arguments: list[str]) -> int:
    """Entry point of the process; returns its exit status."""
    end = arguments.index("--")
    servers = [await serve(*pair.split("=", 1)) for pair in arguments[:end]]
    process = await asyncio.create_subprocess_exec(*arguments[end + 1 :])
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1):
        os.dup2(null, fd)  # or whoever reads the child's output would not see it end
    status = await process.wait()
    for server in servers:
        server.close()
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    os._exit(asyncio.run(main(sys.argv[1:])))
