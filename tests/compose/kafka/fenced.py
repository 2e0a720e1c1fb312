"""A way to the broker on which the cluster can look as if all its brokers were fenced for a moment.

Answers pass as they are, but name this port as the broker's; while `is_fenced`, those that name the broker with its
topics name no broker, and no leader. Metadata is told by its bytes, in the version that librdkafka asks for.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from types import TracebackType

_HOST = b"127.0.0.1"
_LED = struct.pack(">bhii", 2, 0, 0, 1)
"""One partition: no error, number 0, led by node 1."""
_UNLED = struct.pack(">bhii", 2, 5, 0, -1)


class FencedWay:
    """To a broker of one node on loopback; a context manager."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._port = int(bootstrap_servers.rpartition(":")[2])
        self._listener = socket.create_server((_HOST.decode(), 0))
        self._own_port = self._listener.getsockname()[1]
        self._open: list[socket.socket] = [self._listener]
        self.is_fenced = False
        self.num_fenced = 0
        """Answers without a broker so far."""

    @property
    def bootstrap_servers(self) -> str:
        """What clients are told."""
        return f"{_HOST.decode()}:{self._own_port}"

    def __enter__(self) -> FencedWay:
        self._start(self._accept)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _start(self, work: Callable[..., None], *arguments: socket.socket) -> None:
        def run() -> None:
            with contextlib.suppress(OSError):
                work(*arguments)
            for connection in arguments:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

        threading.Thread(target=run, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            broker = socket.create_connection((_HOST.decode(), self._port))
            self._open += [client, broker]
            self._start(self._requests, client, broker)
            self._start(self._answers, broker, client)

    def _requests(self, client: socket.socket, broker: socket.socket) -> None:
        while data := client.recv(1 << 16):
            broker.sendall(data)

    def _answers(self, broker: socket.socket, client: socket.socket) -> None:
        with broker.makefile("rb") as answers:
            while len(length := answers.read(4)) == 4:
                answer = self._changed(answers.read(struct.unpack(">i", length)[0]))
                client.sendall(struct.pack(">i", len(answer)) + answer)

    def _changed(self, answer: bytes) -> bytes:
        there, here = (_HOST + struct.pack(">i", port) for port in (self._port, self._own_port))
        # A list of one: node 1, host and port, no rack; an empty one.
        broker = struct.pack(">bib", 2, 1, len(_HOST) + 1) + there + bytes(2)
        if self.is_fenced and broker in answer:
            self.num_fenced += 1
            return answer.replace(broker, b"\x01").replace(_LED, _UNLED)
        return answer.replace(there, here)
