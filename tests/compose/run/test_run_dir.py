"""A run's folder: one supervisor, the same name resumes, what contradicts the log is refused; its processes."""

from __future__ import annotations

import base64
import shutil
import socket
import stat
import time
from pathlib import Path

import msgspec
import pytest

from tests.compose.run.example_settings import SETTINGS
from tests.memory_log import MemoryLog
from tracegrad.compose.files import RunKey, write_record
from tracegrad.compose.kafka.client_settings import KafkaConfig
from tracegrad.compose.kafka.positions import TopicStart
from tracegrad.compose.run.pipeline import prepare_run
from tracegrad.compose.run.run_dir import RunDir
from tracegrad.compose.run.supervisor import Outcome, OutcomeKind
from tracegrad.compose.run.wiring import Wiring
from tracegrad.producers.llm_gateway.config import LlmConfig, PolicyConfig
from tracegrad.producers.tasks.config import TasksConfig
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.ids import RunHash
from tracegrad.schemas.log.follow import read_to_end
from tracegrad.schemas.log.protocol import TopicPartition
from tracegrad.schemas.metrics import UNVERIFIED, Metrics
from tracegrad.schemas.topics import Topic
from tracegrad.streams.config import SelectConfig
from tracegrad.trainer.config import TrainerConfig


def test_the_same_name_resumes_with_its_hash_and_ports(tmp_path: Path) -> None:
    """A supervisor that was killed starts again where it was."""
    first = prepare_run(SETTINGS, tmp_path / "mine")
    record, endpoints = first.record, first.endpoints
    again = prepare_run(msgspec.structs.replace(SETTINGS), tmp_path / "mine")
    assert again.record == record and again.endpoints == endpoints
    assert len({endpoints.bootstrap_servers, endpoints.llm_url, endpoints.otlp_endpoint, endpoints.engine_urls[0]}) == 4


def test_two_runs_that_start_at_once_listen_at_different_ports(tmp_path: Path) -> None:
    """Both would like the port that OTLP over gRPC is registered for, and neither listens before its broker is up."""
    first, second = (prepare_run(SETTINGS, tmp_path / name).endpoints for name in ("one", "two"))
    assert first.otlp_grpc != second.otlp_grpc


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"seed": 4}, "seed"),
        ({"policy": PolicyConfig(model="/somewhere/else")}, "[policy] model"),
        ({"trainer": TrainerConfig(lora_rank=8)}, "[trainer] lora_rank"),
        ({"trainer": TrainerConfig(lora_alpha=64)}, "[trainer] lora_alpha"),
        ({"tasks": TasksConfig(file="/x", group_size=4)}, "[tasks] group_size"),
        ({"kafka": KafkaConfig(topics={"otlp_spans": "theirs"})}, "[kafka] topics"),
    ],
)
def test_settings_that_contradict_the_log_are_refused(tmp_path: Path, changes: dict[str, object], key: str) -> None:
    """With the key, and how to start anew."""
    prepare_run(SETTINGS, tmp_path)
    with pytest.raises(ConfigurationError) as refused:
        RunDir.create(tmp_path, msgspec.structs.replace(SETTINGS, **changes))
    assert key in str(refused.value) and "--run NAME" in str(refused.value)
    with pytest.raises(ConfigurationError, match="holds run 'mine'"):
        RunDir.create(tmp_path, msgspec.structs.replace(SETTINGS, run="other"))


def test_a_port_that_is_taken_is_named_with_its_key(tmp_path: Path) -> None:
    """Before anything starts."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        settings = msgspec.structs.replace(SETTINGS, llm=LlmConfig(port=port))
        with pytest.raises(ConfigurationError, match=rf"\[llm\] port: {port} is taken by another program"):
            prepare_run(settings, tmp_path, port_wait_s=0.0)


def test_a_run_has_a_key_of_its_own_for_ever(tmp_path: Path) -> None:
    """Drawn once; another run's is refused."""
    run = RunDir.create(tmp_path / "mine", SETTINGS)
    key = run.key()
    assert len(key) == 32 and key != RunDir.create(tmp_path / "other", SETTINGS).key()
    assert RunDir.create(tmp_path / "mine", SETTINGS).key() == RunDir.open(tmp_path / "mine").key() == key
    write_record(run.path / "key.json", RunKey(run=RunHash("00000000"), key=key))
    with pytest.raises(ConfigurationError, match="put the run's own file back"):
        run.key()
    assert base64.b64encode(key).decode() not in repr(RunKey(run=RunHash("00000000"), key=key))


def test_a_run_that_lost_its_key_is_not_resumed(tmp_path: Path) -> None:
    """By a new one nothing that it wrote would count; a start that was killed before it drew one draws it."""
    (RunDir.create(tmp_path, SETTINGS).path / "key.json").unlink()
    run = prepare_run(SETTINGS, tmp_path)
    assert len(run.key()) == 32
    (run.path / "key.json").unlink()
    with pytest.raises(ConfigurationError, match=r"no key\.json in .*put the file back"):
        prepare_run(SETTINGS, tmp_path)


def test_a_run_is_given_the_keys_of_the_runs_that_it_selects(tmp_path: Path) -> None:
    """By folder or by a copy of the key; without it what the other run wrote would not count, so that is refused."""
    folders = {name: prepare_run(msgspec.structs.replace(SETTINGS, run=name), tmp_path / name) for name in ("a", "b")}
    shutil.copy(folders["b"].path / "key.json", tmp_path / "b.json")
    selects = SelectConfig(runs=(str(folders["a"].path), str(tmp_path / "b.json")))
    settings = msgspec.structs.replace(SETTINGS, select=selects)
    wiring = Wiring(prepare_run(settings, tmp_path / "mine"))
    others = {other.record.hash: other.key() for other in folders.values()}
    assert wiring.keys == {wiring.record.hash: wiring.run_dir.key(), **others}
    assert wiring.stream_rules().runs == wiring.keys.keys()
    (tmp_path / "b.json").unlink()
    with pytest.raises(ConfigurationError, match=r"\[select\] runs: expected a run's folder or key\.json: .*b\.json"):
        _ = Wiring(wiring.run_dir).keys


def test_the_log_that_rooms_are_handed_is_signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the run's key, and what it leaves out is counted in the process's own metrics."""
    wiring, raw, metrics = Wiring(prepare_run(SETTINGS, tmp_path)), MemoryLog(), Metrics()
    raw.create_topics(wiring.topics, policies=["policy"], partitions=1)
    monkeypatch.setattr(wiring, "kafka", lambda **_: raw)
    name = wiring.topics.name(Topic.WEIGHTS)
    raw.append(name, b"policy", b"forged", (), 0)
    wiring.log().writer().append(name, key=b"policy", value=b"own").result(1)
    assert [record.value for record in read_to_end(wiring.log(metrics), name)] == [b"own"]
    assert metrics.value(UNVERIFIED, Topic.WEIGHTS, "unsigned") == 1


def test_nobody_else_reads_what_a_run_keeps_secret(tmp_path: Path) -> None:
    """Neither its key nor its settings, which hold tokens; the folder of an earlier release is closed too."""
    (tmp_path / "mine").mkdir(mode=0o755)
    run = prepare_run(SETTINGS, tmp_path / "mine")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (run.path, *run.path.glob("*.json"))}
    assert (modes["mine"], modes["key.json"], modes["config.json"]) == (0o700, 0o600, 0o600)


def test_a_start_takes_away_how_the_last_one_ended(tmp_path: Path) -> None:
    """Its word, and what was counted then: read later, they would tell of what came since."""
    run_dir = prepare_run(SETTINGS, tmp_path / "mine")
    endpoints = run_dir.endpoints
    run_dir.write_outcome(Outcome(kind=OutcomeKind.STOPPED, why="asked"))
    (run_dir.results / "audit.json").write_text("{}")
    assert run_dir.outcome is not None and abs(run_dir.outcome.at_ms - 1000 * time.time()) < 60_000
    run_dir.write_start(SETTINGS, endpoints)
    assert run_dir.outcome is None and not (run_dir.results / "audit.json").exists()


def test_two_supervisors_cannot_share_a_folder(tmp_path: Path) -> None:
    """The lock goes with its holder."""
    run_dir = RunDir(tmp_path)
    with run_dir.lock():
        assert run_dir.is_locked()
        with pytest.raises(ConfigurationError, match="already is the supervisor"), RunDir(tmp_path).lock():
            pass
    assert not run_dir.is_locked()


def test_start_offsets_are_kept_from_the_first_start(tmp_path: Path) -> None:
    """Of raw topics; of the run's own it keeps the id alone."""
    run_dir = RunDir(tmp_path)
    assert run_dir.starts == {}
    kept = {"llm_calls": TopicStart("id-1", (0, 7)), "mine.episodes": TopicStart("id-2")}
    run_dir.write_starts(kept)
    assert run_dir.topic_starts == kept
    assert run_dir.starts == {TopicPartition("llm_calls", 0): 0, TopicPartition("llm_calls", 1): 7}


@pytest.mark.parametrize(
    "damaged",
    [b'{"llm_calls": {"id":', b'{"llm_calls": 1}', b'{"\xff": {"id": ""}}', b""],
    ids=["torn", "other", "bytes", "empty"],
)
def test_damaged_start_offsets_are_refused(tmp_path: Path, damaged: bytes) -> None:
    """Taken for none, they would say that the run began at the beginning of topics that it shares with others."""
    (tmp_path / "starts.json").write_bytes(damaged)
    with pytest.raises(ConfigurationError, match=r"starts\.json: .*written by another release"):
        _ = RunDir(tmp_path).starts


def test_a_folder_that_is_no_run_is_said_so(tmp_path: Path) -> None:
    """For `serve`, `status` and the like."""
    with pytest.raises(ConfigurationError, match="name the folder"):
        RunDir.open(tmp_path)
    with pytest.raises(ConfigurationError, match="start the run with"):
        _ = RunDir(tmp_path).endpoints
