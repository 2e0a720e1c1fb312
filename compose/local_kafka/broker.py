"""A real single-node Apache Kafka on loopback, without Docker or system Java.

In: a data folder, perhaps a port. Out: a broker that takes records (`bootstrap_servers`) until `stop`. Also a
process, which says `ready HOST:PORT` (where logs are JSON, in a line of its log): `python -m
tracegrad.compose.local_kafka.broker --data DIR [--port P]`.

Invariants: the broker dies with this process, however that dies (die_with_parent.py); the same folder keeps the same
records, also after SIGKILL. Failure: ConfigurationError or UnavailableError
that quotes the broker's last log lines.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import itertools
import logging
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from tracegrad.schemas.beat import beat
from tracegrad.schemas.errors import FATAL_EXIT_STATUS, ConfigurationError, FatalError, TracegradError, UnavailableError
from tracegrad.schemas.topics import MAX_MESSAGE_BYTES

from ..beats import beating
from ..die_with_parent import guarded
from ..files import hold_lock
from ..loopback import LOOPBACK, free_port, is_free
from ..printable_log import LOG_FORMAT, LogFormat, log_to_stderr
from .installation import aot_cache, cache_dir, class_path, find_java

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
_MAKING = ".cache-"
"""Begins the name of the folder in which a class-data cache is made."""
_LOG_LINES = 15
_LOOK_S = 0.2
_ASK_EVERY = 10
"""Looks from one question to the broker to the next."""
_VERSION = "kafka-4.3.1"
_SERVER = Path(__file__).with_name("server.properties")
_METADATA_V1 = struct.pack(">hhihi", 3, 1, 1, -1, 0)
"""Request header (api, version, correlation id, no client id) and an empty list of topics."""


class LocalKafka:
    """One broker on one data folder; a context manager that starts and stops it. Start it from a lasting thread.

    Args:
        data_dir: made if missing; records, configuration and logs lie here. One broker at a time.
        port: None: a free one; the same at each start.
    """

    def __init__(
        self, data_dir: Path | str, *, port: int | None = None, extra_java_options: Sequence[str] = ()
    ) -> None:
        self.data_dir = Path(data_dir).absolute()
        self.port = free_port() if port is None else port
        self._extra_java_options = extra_java_options
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> LocalKafka:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    @property
    def bootstrap_servers(self) -> str:
        """`127.0.0.1:port`."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def pid(self) -> int | None:
        """The broker's process id; None when it does not run."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def start(self) -> None:
        """Returns when the broker takes requests. Downloads the jars the first time."""
        if self.pid is not None:
            return
        if not is_free(self.port):
            raise ConfigurationError(f"expected port {self.port} free for Kafka, got it taken; choose another")
        self.data_dir.mkdir(parents=True, exist_ok=True)
        java = self._java_command()
        config = self._write_config(free_port(excluding=[self.port]))
        if not (self.data_dir / "log" / "meta.properties").exists():
            self._format(java, config)
        # Takes only what the JVM itself says; the broker's own log rolls, by log4j2.properties.
        with (self.data_dir / "broker.out").open("wb") as output:
            self._process = subprocess.Popen(
                guarded([*java, "kafka.Kafka", str(config)]),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.data_dir,
                # Ctrl-C in a terminal is for us; we then stop the broker in order.
                start_new_session=True,
            )
        # Not sooner: the first start of all downloads the jars.
        started_at = time.monotonic()
        while not is_ready(self.port):
            if self.pid is None:
                raise UnavailableError(f"expected Kafka to start, got its end:\n{self.last_log_lines()}")
            if time.monotonic() - started_at > _START_TIMEOUT_S:
                self.kill()
                raise UnavailableError(f"expected Kafka within {_START_TIMEOUT_S} s, got:\n{self.last_log_lines()}")
            time.sleep(0.02)
        logger.info("kafka ready at %s in %.2f s", self.bootstrap_servers, time.monotonic() - started_at)

    def stop(self, timeout_s: float = _STOP_TIMEOUT_S) -> None:
        """Asks the broker to end, waits, and kills it when it does not."""
        self._end(signal.SIGTERM, timeout_s)

    def kill(self) -> None:
        """SIGKILL, as a crash would: nothing is flushed or said."""
        self._end(signal.SIGKILL, _STOP_TIMEOUT_S)

    def last_log_lines(self) -> str:
        """The end of what the broker wrote, for error messages."""
        lines: list[str] = []
        for name in ("broker.out", "broker.log"):
            with contextlib.suppress(OSError):
                lines += (self.data_dir / name).read_text(errors="replace").splitlines()[-_LOG_LINES:]
        return "\n".join(lines)

    def _java_command(self) -> list[str]:
        java, jars, cache = _installation()
        extra = self._extra_java_options
        if not extra and cache.exists():
            extra = (f"-XX:AOTCache={cache}", *_CACHE_LOG_OPTIONS)
        log4j = Path(__file__).with_name("log4j2.properties")
        log_options = (f"-Dlog4j2.configurationFile={log4j}", f"-Dtracegrad.kafka.log={self.data_dir / 'broker.log'}")
        return [str(java), *_JAVA_OPTIONS, *extra, *log_options, "-cp", os.pathsep.join(map(str, jars))]

    def _write_config(self, controller: int) -> Path:
        """The node's server.properties; every listener is on loopback."""
        config = self.data_dir / _SERVER.name
        values = {"broker": self.port, "controller": controller, "log_dir": self.data_dir / "log"}
        config.write_text(_SERVER.read_text().format(**values, max_message_bytes=MAX_MESSAGE_BYTES))
        return config

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


def is_ready(port: int) -> bool:
    """Whether the broker at a loopback port answers requests and counts itself among the cluster's brokers: it accepts
    connections before that, and topics made then fail. One Metadata request by hand, for no client library is known
    here. Blocks for some seconds at most."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=1.0) as connection:
            connection.settimeout(2.0)
            connection.sendall(struct.pack(">i", len(_METADATA_V1)) + _METADATA_V1)
            with connection.makefile("rb") as answers:
                # Length, correlation id, then the number of brokers.
                answer = answers.read(12)
    except OSError:
        return False
    return len(answer) == 12 and int(struct.unpack(">iii", answer)[2]) >= 1


def _installation() -> tuple[Path, list[Path], Path]:
    """The Java, the jars and where their AOT cache lies."""
    java, folder = find_java(), cache_dir() / _VERSION
    jars = class_path(folder)
    return java, jars, aot_cache(folder, java, _JAVA_OPTIONS, jars)


def _prepare() -> None:
    """Makes the class-data cache, if it is missing and nobody else makes it; about 8 s."""
    _, _, cache = _installation()
    if cache.exists():
        return
    # On Linux that of this thread, and of what it starts.
    os.nice(19)
    with (
        contextlib.suppress(UnavailableError),
        hold_lock(cache.parent / ".making", refusal=lambda holder: UnavailableError(f"process {holder} makes it")),
    ):
        _make_cache(cache)


def _make_cache(cache: Path) -> None:
    """Alone; a maker that was killed has left its folder, of some 38 MB."""
    for left in cache.parent.glob(f"{_MAKING}*"):
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_MAKING, dir=cache.parent) as folder:
        output = Path(folder) / cache.name
        make = (f"-XX:AOTCacheOutput={output}", *_CACHE_LOG_OPTIONS)
        kafka = LocalKafka(Path(folder) / "data", extra_java_options=make)
        with contextlib.suppress(TracegradError):
            kafka.start()
            kafka.stop(_CACHE_STOP_TIMEOUT_S)
        if output.exists():
            # By rename, so that a broker that starts meanwhile sees a whole cache or none.
            output.replace(cache)
        else:
            logger.warning("no class-data cache was made; Kafka starts without it:\n%s", kafka.last_log_lines())


def main(arguments: Sequence[str] | None = None) -> int:
    """The foreground process; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tracegrad.compose.local_kafka.broker", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="data folder")
    parser.add_argument("--port", type=int, help="loopback port (default: a free one)")
    parser.add_argument("--beats", type=Path, help="file that shows whether the broker answers (compose/beats.py)")
    given = parser.parse_args(arguments)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    log_to_stderr(logging.INFO, "%(message)s", run=given.data.resolve().parent.name, process="kafka")
    kafka = LocalKafka(given.data, port=given.port)
    num_answers = 0
    try:
        with beating(given.beats, lambda: num_answers) if given.beats else contextlib.nullcontext():
            kafka.start()
            if os.environ.get(LOG_FORMAT) != LogFormat.JSON:  # of which each line is one
                print(f"ready {kafka.bootstrap_servers}", flush=True)
            # So that later starts are faster. The kernel ends what the thread started when this process ends.
            threading.Thread(target=_prepare, daemon=True).start()
            for turn in itertools.count(1):
                if stop.wait(_LOOK_S):
                    break
                if kafka.pid is None:
                    raise UnavailableError(f"expected Kafka to run on, got its end:\n{kafka.last_log_lines()}")
                # Its own sign of life, not this process's.
                if turn % _ASK_EVERY == 0 and is_ready(kafka.port):
                    num_answers += 1
                    beat()
    except TracegradError as error:
        logger.error("%s", error)
        return FATAL_EXIT_STATUS if isinstance(error, FatalError) else 1
    finally:
        kafka.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
