"""Where a process begins that runs user code: `host_main.py .../agent_host.py FILE.py:NAME`, or `.../grader_host.py`.

Started by path with the user's Python; imports only the standard library. In: JSON lines on stdin, whose end ends it.
Out: JSON lines on stdout, the first `ready`, or `unusable` when the user's function cannot be loaded; the rest is the
named host's, whose `prepare` gives what serves the lines. What user code prints goes to stderr, and its stdin is
empty. Invariant: the folder of this file is not on the user's module path; our lines go by descriptors of high numbers,
and each begins a line of its own, so that what user code writes or closes by number 0, 1, 2, ... breaks none.
"""

from __future__ import annotations

import functools
import importlib.util
import io
import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any


def load_callable(reference: str) -> Callable[..., Any]:
    """The function that `FILE.py:NAME` names; its folder becomes importable."""
    place, _, name = reference.rpartition(":")
    if not place.endswith(".py") or not os.path.exists(place):
        raise FileNotFoundError(f"expected FILE.py:NAME of a file that exists, got {reference!r}")
    path = os.path.abspath(place)
    sys.path.insert(0, os.path.dirname(path))
    found = getattr(load_file(path, os.path.basename(path)[:-3]), name, None)
    if not callable(found):
        raise AttributeError(f"{place} has no callable {name!r}")
    return found  # type: ignore[no-any-return]


def load_file(path: str, name: str) -> Any:
    """The module of a file, under a name of our choice: ours must not meet the user's."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class _Prints(io.TextIOWrapper):
    """stdout and stderr of all user code in this process; one that closes it closes it for nobody."""

    def close(self) -> None:
        """Only flushes."""
        self.flush()


def _out_of_reach(fd: int) -> int:
    """A duplicate with a number that no loop over the low ones meets; programs that are started do not get it."""
    import fcntl  # Unix alone has them; this file can be imported elsewhere
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, max(3, min(limit, 1024) - 16))


def _take_streams() -> tuple[Iterable[bytes], Callable[..., None]]:
    """Keeps stdin and stdout for the protocol; user code gets an empty stdin and stderr for its prints."""
    lines = os.fdopen(_out_of_reach(0), "rb")
    out = os.fdopen(_out_of_reach(1), "wb", buffering=0)
    prints = _Prints(os.fdopen(_out_of_reach(2), "wb", buffering=0), errors="backslashreplace", write_through=True)
    os.dup2(2, 1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    sys.stdout = sys.stderr = prints
    lock = threading.Lock()

    def send(op: str, **fields: Any) -> None:
        # User code may have left half a line in the pipe.
        data = b"\n" + json.dumps({"op": op, **fields}).encode() + b"\n"
        with lock:
            while data:
                data = data[out.write(data) :]

    return lines, send


def main() -> None:
    """Entry point of the process."""
    script, reference = sys.argv[1:]
    lines, send = _take_streams()
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(name)s: %(message)s")
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path.remove(folder)  # it must not shadow the user's modules
    raised = load_file(os.path.join(folder, "raised.py"), "tracegrad_raised").raised
    try:
        host = load_file(script, "tracegrad_host")
        ready, serve = host.prepare(functools.partial(load_callable, reference), load_file, send, raised)
    except BaseException as error:  # a file that exits when it is loaded is told from a host that died
        send("unusable", error=raised("loading it", error, 500))
        raise
    send("ready", **ready)
    serve(lines)


if __name__ == "__main__":
    main()
