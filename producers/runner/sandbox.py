"""`[agent] sandbox = "bubblewrap"`: agents see their own folder, their Python and the system, and nothing else of ours.

In: `[agent]`, what must stay hidden, an argv. Out: the argv behind `bwrap`. Invariant: the file system is a list of
what is let in, read-only, and what is hidden is hidden where that list would show it; no other process is visible;
what an agent writes goes to memory and ends with its process. Of the network there are the gateways alone, at the
addresses that they have outside, carried through by `hosted/relay.py`, or all of it (`sandbox_network = "host"`).
Failure: ConfigurationError at the start, with the remedy. Graders are trusted and run outside.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from tracegrad.schemas.errors import ConfigurationError

from .agent_environment import inherited
from .config import AgentConfig
from .hosted.relay import serve

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc", "/etc/resolv.conf", "/opt", "/nix")
_ASK_PYTHON = "import json, sys; print(json.dumps([sys.prefix, sys.base_prefix, *sys.path]))"
_HOSTED = Path(__file__).parent.resolve() / "hosted"
_HERE = ("127.0.0.1", "localhost", "::1", "0.0.0.0", "::")
_TIMEOUT_S = 60.0
_KEY = '[agent] sandbox = "bubblewrap"'
_OFF = 'or set sandbox = "off", which leaves keys and tasks readable'


def options(visible: Iterable[str], hidden: Iterable[str], *, home: str) -> list[str]:
    """bwrap's options for a file system in which the first are read-only, the second empty, and the home folder too.

    A hidden folder that holds a visible one is not hidden: who names both hides what else is in it by name.
    """
    binds = dict(_binds(visible))
    sources = [Path(source) for source in binds.values()]
    found = ["--tmpfs", "/tmp", "--tmpfs", home]
    for target in sorted(binds):
        found += ["--ro-bind", binds[target], target]
    for path in sorted({os.path.realpath(path) for path in hidden if os.path.exists(path)}):
        if not any(source.is_relative_to(path) for source in sources):
            found += ["--tmpfs", path] if os.path.isdir(path) else ["--ro-bind", "/dev/null", path]
    return found


def _binds(visible: Iterable[str]) -> Iterator[tuple[str, str]]:
    """(where, what): each at its own name and at its real one, unless that lies in another."""
    pairs = {name: os.path.realpath(path) for path in visible for name in (path, os.path.realpath(path))}
    for target, source in pairs.items():
        if os.path.exists(source) and not any(str(above) in pairs for above in Path(target).parents):
            yield target, source


class Sandbox:
    """Where the agents of one runner run. Blocks for a second or two while it is made.

    Raises ConfigurationError when there is no bwrap, it may not make a sandbox, the home folder would be seen, or the
    agent's program would not.
    """

    def __init__(self, agent: AgentConfig, hidden: Sequence[str], gateways: Sequence[str] = ()) -> None:
        program = shutil.which("bwrap")
        if program is None:
            raise ConfigurationError(
                f"{_KEY}: expected the program bwrap on PATH, found none; install it (Debian, Ubuntu: apt install "
                f"bubblewrap), {_OFF}"
            )
        self._env = {**inherited(os.environ, agent.pass_env), **agent.env}
        home, folder = os.path.realpath(os.environ.get("HOME") or "/tmp"), agent.cwd or os.getcwd()
        visible = [*_own_folders(agent, folder), *_python_folders(agent.python or sys.executable, folder, self._env)]
        for path in visible:
            if Path(home).is_relative_to(os.path.realpath(path)):
                raise ConfigurationError(
                    f"{_KEY}: {path} holds the home folder {home}, which agents must not see; move the agent (its cwd, "
                    "its Python, sandbox_paths) into a folder of its own"
                )
        is_cut_off = agent.sandbox_network == "gateways"
        self._python = agent.python or sys.executable
        self._gateways = [_address(url) for url in gateways] if is_cut_off else []
        self._sockets = tempfile.mkdtemp(prefix="tracegrad-") if self._gateways else ""
        self._argv = [
            *(program, "--die-with-parent", "--unshare-user-try", "--unshare-pid", "--unshare-ipc", "--unshare-uts"),
            *(("--unshare-net",) if is_cut_off else ()),
            *("--cap-drop", "ALL", "--proc", "/proc", "--dev", "/dev"),
            *options([*_SYSTEM, *visible, *filter(None, [self._sockets])], hidden, home=home),
            *("--chdir", folder, "--setenv", "TMPDIR", "/tmp", "--"),
        ]
        self._check(agent)

    def _check(self, agent: AgentConfig) -> None:
        if (said := self._try("true")) is not None:
            raise ConfigurationError(
                f"{_KEY}: bwrap cannot make a sandbox here: {said}; allow user namespaces (sysctl "
                "kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0; in a container, "
                f"its security profile), {_OFF}"
            )
        if agent.argv and self._try("sh", "-c", 'command -v "$0"', agent.argv[0]) is not None:
            raise ConfigurationError(
                f"{_KEY}: expected the program {agent.argv[0]!r} inside, found none; name its folder in sandbox_paths"
            )

    def wrap(self, argv: Sequence[str]) -> list[str]:
        """The command line that runs this one inside."""
        if not self._gateways:
            return [*self._argv, *argv]
        pairs = [f"{address}={self._sockets}/{number}" for number, address in enumerate(self._gateways)]
        return [*self._argv, self._python, "-I", "-S", str(_HOSTED / "relay.py"), *pairs, "--", *argv]

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Within it the gateways are reached from inside."""
        servers = [await serve(f"{self._sockets}/{number}", address) for number, address in enumerate(self._gateways)]
        try:
            yield
        finally:
            for server in servers:
                server.close()
            if self._sockets:
                shutil.rmtree(self._sockets, ignore_errors=True)

    def _try(self, *argv: str) -> str | None:
        """What is said when it fails, without a gateway; None when it does not."""
        command = [*self._argv, *argv]
        done = subprocess.run(command, env=self._env, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        return done.stderr.strip()[:300] if done.returncode else None


def _own_folders(agent: AgentConfig, folder: str) -> Iterator[str]:
    """The agent's own, and of what runs it there."""
    yield folder
    yield str(_HOSTED)
    yield from agent.sandbox_paths
    if agent.callable is not None:
        yield os.path.dirname(os.path.join(folder, agent.callable.rpartition(":")[0]))
    elif agent.argv and "/" in agent.argv[0]:
        yield os.path.dirname(os.path.join(folder, agent.argv[0]))


def _address(url: str) -> str:
    """HOST:PORT of a gateway that can be at the same address inside."""
    parts = urlsplit(url)
    if parts.hostname not in _HERE:
        raise ConfigurationError(
            f"{_KEY}: expected gateways on loopback, got {url}; a sandbox that reaches others needs "
            'sandbox_network = "host"'
        )
    return f"{parts.hostname}:{parts.port}"


def _python_folders(python: str, folder: str, env: Mapping[str, str]) -> list[str]:
    """Where that Python and its packages are, as it says itself."""
    try:
        said = subprocess.run(
            [python, "-c", _ASK_PYTHON], cwd=folder, env=env, capture_output=True, timeout=_TIMEOUT_S, check=True
        )
        return [path for path in json.loads(said.stdout) if path]
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise ConfigurationError(
            f"[agent] python: expected one that tells its folders, got {python}: {error}"
        ) from error
