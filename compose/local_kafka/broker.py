"""A real single-node Apache Kafka on loopback, without Docker or system Java.

In: a data folder, perhaps a port. Out: a broker that takes records (`bootstrap_servers`) until `stop`. Also a
process, which says `ready HOST:PORT`: `python -m tracegrad.compose.local_kafka.broker --data DIR [--port P]`.

Invariants: the broker dies with this process, however that dies (die_with_parent.py); the same folder keeps the same
records and, when it is free, the same port, also after SIGKILL. Failure: ConfigurationError or UnavailableError
that quotes the broker's last log lines.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from tracegrad.schemas.errors import FATAL_EXIT_STATUS, ConfigurationError, FatalError, TracegradError, UnavailableError

from ..run.die_with_parent import guarded
from . import node as kafka_node
from .jars import cache_dir, class_path
from .java import aot_cache, find_java

__all__ = ["LocalKafka", "main", "prepare"]

logger = logging.getLogger(__name__)

_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 15.0
_CACHE_STOP_TIMEOUT_S = 120.0
"""The run that makes the class-data cache writes it while it stops."""
_JAVA_OPTIONS = (
    "-Xmx256m",
    "-Xms64m",
    "-XX:+UseSerialGC",
    "-XX:MaxDirectMemorySize=256m",
    "-XX:TieredStopAtLevel=1",
    "-Djava.net.preferIPv4Stack=true",
)
_CACHE_LOG_OPTIONS = ("-Xlog:aot=off", "-Xlog:cds=off")
"""Java's own word on a cache that does not fit, which it then does without."""
_VERSION = "kafka-4.3.1"


class LocalKafka:
    """One broker on one data folder; a context manager that starts and stops it. Start it from a lasting thread.

    Args:
        data_dir: made if missing; records, configuration and logs lie here. One broker at a time.
        port: None: the port of the last start on this folder, else a free one.
    """

    def __init__(
        self, data_dir: Path | str, *, port: int | None = None, extra_java_options: Sequence[str] = ()
    ) -> None:
        self.data_dir = Path(data_dir).absolute()
        self._asked_port = port
        self._extra_java_options = extra_java_options
        self._port: int | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> LocalKafka:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    @property
    def bootstrap_servers(self) -> str:
        """`127.0.0.1:port` of the started broker."""
        if self._port is None:
            raise ConfigurationError("expected a started local Kafka, got one without port; call start() first")
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int | None:
        """The broker's process id; None when it does not run."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def start(self) -> None:
        """Returns when the broker takes requests. Downloads the jars the first time."""
        if self.pid is not None:
            return
        self.data_dir.mkdir(parents=True, exist_ok=True)
        java = self._java_command()
        started_at = time.monotonic()
        for attempt in (1, 2, 3):
            self._port = self._choose_port(reuse=attempt == 1)
            controller = kafka_node.free_port(excluding=[self._port])
            config = kafka_node.write_config(self.data_dir, self._port, controller)
            if not (self.data_dir / "log" / "meta.properties").exists():
                self._format(java, config)
            self._process = self._spawn([*java, "kafka.Kafka", str(config)])
            if self._wait_until_ready():
                break
            # Another program may have taken the port between our look and the broker's bind.
            if self._asked_port is not None or attempt == 3 or "in use" not in self.last_log_lines(200):
                raise UnavailableError(f"expected Kafka to start, got its end:\n{self.last_log_lines()}")
        self._port_file.write_text(str(self._port))
        logger.info("kafka ready at %s in %.2f s", self.bootstrap_servers, time.monotonic() - started_at)

    def stop(self, timeout_s: float = _STOP_TIMEOUT_S) -> None:
        """Asks the broker to end, waits, and kills it when it does not."""
        self._end(signal.SIGTERM, timeout_s)

    def kill(self) -> None:
        """SIGKILL, as a crash would: nothing is flushed or said."""
        self._end(signal.SIGKILL, _STOP_TIMEOUT_S)

    def last_log_lines(self, count: int = 15) -> str:
        """The end of what the broker wrote, for error messages."""
        lines: list[str] = []
        for name in ("broker.out", "broker.log"):
            with contextlib.suppress(OSError):
                lines += (self.data_dir / name).read_text(errors="replace").splitlines()[-count:]
        return "\n".join(lines)

    def _java_command(self) -> list[str]:
        java, jars, cache = _installation()
        extra = self._extra_java_options
        if not extra and cache is not None and cache.exists():
            extra = (f"-XX:AOTCache={cache}", *_CACHE_LOG_OPTIONS)
        log4j = f"-Dlog4j2.configurationFile={self.data_dir / 'log4j2.properties'}"
        return [str(java), *_JAVA_OPTIONS, *extra, log4j, "-cp", os.pathsep.join(map(str, jars))]

    @property
    def _port_file(self) -> Path:
        return self.data_dir / "port"

    def _choose_port(self, *, reuse: bool) -> int:
        """The port asked for, else the last start's, where clients look for it, else a free one."""
        if self._asked_port is not None:
            if not kafka_node.is_free(self._asked_port):
                raise ConfigurationError(
                    f"expected port {self._asked_port} free for Kafka, got it taken; choose another"
                )
            return self._asked_port
        if reuse:
            with contextlib.suppress(OSError, ValueError):
                last = int(self._port_file.read_text())
                if kafka_node.is_free(last):
                    return last
        return kafka_node.free_port()

    def _format(self, java: Sequence[str], config: Path) -> None:
        # Never two arguments: an id may begin with a dash.
        cluster_id = "--cluster-id=" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        command = [*java, "kafka.tools.StorageTool", "format", cluster_id, "-c", str(config), "--ignore-formatted"]
        result = subprocess.run(guarded(command), capture_output=True, text=True, timeout=60, check=False)
        if result.returncode != 0:
            raise UnavailableError(
                f"expected Kafka's storage tool to format {self.data_dir}, got status {result.returncode}:\n"
                f"{(result.stderr or result.stdout)[-2000:]}"
            )

    def _spawn(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        # Takes only what the JVM itself says; the broker's own log rolls, see kafka_node.
        with (self.data_dir / "broker.out").open("wb") as output:
            return subprocess.Popen(
                guarded(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.data_dir,
                # Ctrl-C in a terminal is for us; we then stop the broker in order.
                start_new_session=True,
            )

    def _wait_until_ready(self) -> bool:
        assert self._process is not None and self._port is not None
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                return False
            if kafka_node.is_ready(self._port):
                return True
            time.sleep(0.02)
        self.kill()
        raise UnavailableError(f"expected Kafka within {_START_TIMEOUT_S} s, got:\n{self.last_log_lines()}")

    def _end(self, signal_number: signal.Signals, timeout_s: float) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal_number)
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(_STOP_TIMEOUT_S)


def _installation() -> tuple[Path, list[Path], Path | None]:
    """The Java, the jars and where their AOT cache lies."""
    java = find_java()
    folder = cache_dir() / _VERSION
    jars = class_path(folder)
    return java.executable, jars, aot_cache(folder, java, _JAVA_OPTIONS, jars)


def prepare() -> None:
    """Downloads the jars and makes the class-data cache, if missing; about 8 s after the download."""
    _, _, cache = _installation()
    if cache is None or cache.exists():
        return
    with tempfile.TemporaryDirectory(prefix=".cache-", dir=cache.parent) as folder:
        output = Path(folder) / cache.name
        make = (f"-XX:AOTCacheOutput={output}", *_CACHE_LOG_OPTIONS)
        kafka = LocalKafka(Path(folder) / "data", extra_java_options=make)
        kafka.start()
        kafka.stop(_CACHE_STOP_TIMEOUT_S)
        if output.exists():
            # By rename, so that a broker that starts meanwhile sees a whole cache or none.
            output.replace(cache)
        else:
            logger.warning("no class-data cache was made; Kafka starts without it:\n%s", kafka.last_log_lines())


def _prepare_apart() -> subprocess.Popen[bytes]:
    """`prepare` in the background, at low priority, so that later starts are faster."""
    # By its full name: a module that is run calls itself `__main__`.
    return subprocess.Popen(
        guarded(["nice", "-n", "19", sys.executable, "-m", "tracegrad.compose.local_kafka.broker", "--prepare"]),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The foreground process; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tracegrad.compose.local_kafka.broker", description=__doc__)
    parser.add_argument("--data", type=Path, help="data folder")
    parser.add_argument("--port", type=int, help="loopback port (default: the last one, else a free one)")
    parser.add_argument("--prepare", action="store_true", help="download and make the class-data cache, then end")
    given = parser.parse_args(arguments)
    if given.data is None and not given.prepare:
        parser.error("--data DIR is needed")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        if given.prepare:
            prepare()
            return 0
        return _serve(LocalKafka(given.data, port=given.port), stop)
    except TracegradError as error:
        print(error, file=sys.stderr)
        return FATAL_EXIT_STATUS if isinstance(error, FatalError) else 1


def _serve(kafka: LocalKafka, stop: threading.Event) -> int:
    kafka.start()
    print(f"ready {kafka.bootstrap_servers}", flush=True)
    _, _, cache = _installation()
    builder = _prepare_apart() if cache is not None and not cache.exists() else None
    try:
        while not stop.wait(0.2):
            if kafka.pid is None:
                raise UnavailableError(f"expected Kafka to run on, got its end:\n{kafka.last_log_lines()}")
    finally:
        kafka.stop()
        if builder is not None:
            builder.kill()
            builder.wait(_STOP_TIMEOUT_S)
    return 0


if __name__ == "__main__":
    sys.exit(main())
