"""Gateways, agents and the command line can be imported where there is no Linux."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.packaging.programs import PROGRAMS

MASKED_IMPORTS = """
import builtins, ctypes, importlib, os, signal, sys

def load():
    return [importlib.import_module(name) for name in sys.argv[1:]]

load()
# Second time, ours only: what the libraries do on another system is theirs to know.
for name in [name for name in sys.modules if name.split(".")[0] == "tracegrad"]:
    del sys.modules[name]
for module, names in {
    os: ("fork", "getpgid", "getuid", "killpg", "posix_spawn", "sched_getaffinity", "sched_yield", "setsid", "uname"),
    signal: ("SIGALRM", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGUSR1", "SIGUSR2", "pthread_sigmask"),
}.items():
    for name in names:
        delattr(module, name)
for name in ("fcntl", "grp", "pty", "pwd", "resource", "termios"):
    sys.modules[name] = None

def no_library(*_):
    raise OSError("no such library here")

ctypes.CDLL = no_library
load()
"""


@pytest.mark.slow
@pytest.mark.parametrize("extra", ["agent", "cli", "gateway"])
def test_imports_need_no_linux(extra: str) -> None:
    """Locks, death signals and process groups are looked up when they are used."""
    modules = [name for name in PROGRAMS[extra] if not name.endswith("__main__")]
    names = ["tracegrad.compose.cli", *modules] if extra == "cli" else modules
    command = [sys.executable, "-W", "ignore", "-c", MASKED_IMPORTS, *names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
