"""A run's folder: one supervisor, the same name resumes, what contradicts the log is refused; its processes."""

from __future__ import annotations

import base64
import shutil
import socket
import stat
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.memory_log import MemoryLog
from tracegrad.compose.engine.config import EngineConfig
from tracegrad.compose.kafka.client_settings import KafkaConfig
from tracegrad.compose.kafka.positions import TopicStart
from tracegrad.compose.run import serve
from tracegrad.compose.run.pipeline import Part, prepare_run, specs
from tracegrad.compose.run.run_dir import RunDir
from tracegrad.compose.run.settings import RunSettings
from tracegrad.compose.run.supervisor import Outcome, OutcomeKind
from tracegrad.compose.run.wiring import Wiring
from tracegrad.compose.run_files import RunKey, write_record
from tracegrad.consumers.page.config import PageConfig
from tracegrad.producers.llm_gateway.config import GRACE_S, LlmConfig, PolicyConfig
from tracegrad.producers.rewards.config import FeedbackConfig
from tracegrad.producers.runner.config import AgentConfig, RewardConfig
from tracegrad.producers.tasks.config import TasksConfig
from tracegrad.schemas.credentials import credential, engine_holder
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.ids import RunHash
from tracegrad.schemas.log.follow import read_to_end
from tracegrad.schemas.log.protocol import TopicPartition
from tracegrad.schemas.metrics import UNVERIFIED, Metrics
from tracegrad.schemas.topics import Stage, Topic
from tracegrad.streams.assemble.air.rules import AirConfig, AirRule
from tracegrad.streams.config import SelectConfig, ServiceConfig, StreamsConfig
from tracegrad.trainer.config import AlgorithmConfig, TrainerConfig

SETTINGS = RunSettings(
    run="mine",
    seed=3,
    agent=AgentConfig(command="python agent.py --fast", cwd="/somewhere"),
    tasks=TasksConfig(file="/somewhere/tasks.jsonl"),
    reward=RewardConfig(grader="/somewhere/grade.py:score", sources=("human:*",)),
    policy=PolicyConfig(model="/somewhere/model"),
    air=AirConfig(rules=(AirRule(name="ok", status="succeeded", value=0.5, cap=2),)),
    streams=StreamsConfig(workers=2),
)


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


def test_a_port_that_is_taken_is_named_with_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything starts."""
    monkeypatch.setattr("tracegrad.compose.run.pipeline._PORT_WAIT_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        settings = msgspec.structs.replace(SETTINGS, llm=LlmConfig(port=port))
        with pytest.raises(ConfigurationError, match=rf"\[llm\] port: {port} is taken by another program"):
            prepare_run(settings, tmp_path)


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
    assert run_dir.outcome is not None
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
    with pytest.raises(ConfigurationError, match="--run-dir"):
        RunDir.open(tmp_path)
    with pytest.raises(ConfigurationError, match="start the run with"):
        _ = RunDir(tmp_path).endpoints


def test_the_processes_of_a_training_run(tmp_path: Path) -> None:
    """One process per ordinal; trainer and tasks are the jobs; gateways gate what is above them."""
    wiring = Wiring(prepare_run(SETTINGS, tmp_path))
    found = {spec.name: spec for spec in specs(wiring, for_training=True)}
    assert {name for name in found if name.startswith("streams")} == {
        f"streams-{stage}-{ordinal}" for stage in ("normalize", "assemble", "credit") for ordinal in (0, 1)
    }
    assert {name for name, spec in found.items() if spec.is_job} == {"trainer", "tasks"}
    assert {name for name, spec in found.items() if spec.is_ready} == {"kafka", "otlp", "llm"}
    assert found["kafka"].layer < found["engine"].layer < found["llm"].layer < found["runner"].layer
    only = [spec.name for spec in specs(wiring, for_training=False, only=Part.CAPTURE)]
    assert only == ["kafka", "engine", "otlp", "llm", "page"]
    assert max(found.values(), key=lambda spec: spec.layer) is found["page"] and found["page"].is_spare


CAPTURING = msgspec.structs.replace(
    SETTINGS,
    tasks=TasksConfig(eval_file="/somewhere/eval.jsonl"),
    select=SelectConfig(train=True),
    feedback=FeedbackConfig(),
    algorithm=AlgorithmConfig(recipe="rloo_batch"),
)
"""Trains on captured traffic, with held-out tasks."""


def test_a_run_on_captured_traffic_has_tasks_and_runner_where_something_is_held_out(tmp_path: Path) -> None:
    """Besides what it has without; a part of it has neither."""
    wiring = Wiring(prepare_run(CAPTURING, tmp_path / "with"))
    without = Wiring(prepare_run(msgspec.structs.replace(CAPTURING, tasks=None), tmp_path / "without"))
    names, fewer = ([spec.name for spec in specs(one, for_training=False)] for one in (wiring, without))
    assert sorted(names) == sorted([*fewer, "runner", "tasks"])
    for part in Part:
        assert not {"runner", "tasks"} & {spec.name for spec in specs(wiring, for_training=False, only=part)}
    assert wiring.tasks().rewards_awaited == ("reward",)
    assert "/somewhere/eval.jsonl" in wiring.runner().hidden


def test_a_gateway_is_stopped_later_than_its_calls_may_take(tmp_path: Path) -> None:
    """One that waits for an engine in its start takes all of that; to be killed as it ends by itself is no end."""
    found = {spec.name: spec for spec in specs(Wiring(prepare_run(SETTINGS, tmp_path)), for_training=True)}
    assert found["llm"].stop_timeout_s > GRACE_S


def test_a_run_may_be_without_its_page(tmp_path: Path) -> None:
    """`--no-page`: no process, no address, no link."""
    without = msgspec.structs.replace(SETTINGS, page=PageConfig(enabled=False))
    wiring = Wiring(prepare_run(without, tmp_path))
    assert "page" not in {spec.name for spec in specs(wiring, for_training=True)}
    assert (wiring.endpoints.page_url, wiring.page_link) == ("", "")


def test_held_out_tasks_may_be_added_to_a_run_on_captured_traffic(tmp_path: Path) -> None:
    """And taken away: nothing on its log is of a group's size."""
    for tasks in (None, CAPTURING.tasks, None):
        prepare_run(msgspec.structs.replace(CAPTURING, tasks=tasks), tmp_path)


@pytest.mark.parametrize(
    ("engine", "started"),
    [({"replicas": 3}, ["engine", "engine-1", "engine-2"]), ({"url": ("http://a:1", "http://b:2", "http://c:3")}, [])],
    ids=["ours", "theirs"],
)
def test_several_engines_have_a_weight_sync_each(tmp_path: Path, engine: dict[str, Any], started: list[str]) -> None:
    """And gateway and tasks know all of them, by the ids under which they acknowledge."""
    settings = msgspec.structs.replace(SETTINGS, engine=EngineConfig(**engine))
    wiring = Wiring(prepare_run(settings, tmp_path))
    names = [spec.name for spec in specs(wiring, for_training=True)]
    assert [name for name in names if name.startswith("engine")] == started
    syncing = [name for name in names if name.startswith("weight-sync")]
    assert syncing == ["weight-sync", "weight-sync-1", "weight-sync-2"]
    engines = wiring.llm({}).engines
    syncs = [wiring.weight_sync(ordinal) for ordinal in range(3)]
    assert [(one.id, one.url) for one in engines] == [(sync.engine_id, sync.engine_url) for sync in syncs]
    assert wiring.tasks().engine_ids == tuple(one.id for one in engines) and len({one.url for one in engines}) == 3
    if started:
        ports = [wiring.engine(ordinal).port for ordinal in range(3)]
        assert [one.url for one in engines] == [f"http://127.0.0.1:{port}" for port in ports]
        assert prepare_run(settings, tmp_path).endpoints == wiring.endpoints


@pytest.mark.parametrize(
    "engine",
    [{"url": ()}, {"url": ("http://a:1", "http://a:1/")}, {"url": "http://a:1", "replicas": 2}, {"url": "a:1"}],
)
def test_engines_that_contradict_each_other_are_refused(engine: dict[str, Any]) -> None:
    """Before anything starts."""
    with pytest.raises(ConfigurationError, match=r"expected .*, got|expected none"):
        EngineConfig(**engine)


def test_the_trainer_may_have_an_interpreter_of_its_own(tmp_path: Path) -> None:
    """Its libraries and Faust's do not resolve together."""
    trainer = msgspec.structs.replace(SETTINGS.trainer, python="/other/bin/python")
    wiring = Wiring(prepare_run(msgspec.structs.replace(SETTINGS, trainer=trainer), tmp_path))
    found = {spec.name: spec.argv[0] for spec in specs(wiring, for_training=True)}
    assert {name for name, python in found.items() if python != sys.executable} == {"trainer"}
    assert found["trainer"] == "/other/bin/python"


def test_each_room_gets_its_own_record(tmp_path: Path) -> None:
    """The settings reach the rooms."""
    wiring = Wiring(prepare_run(SETTINGS, tmp_path))
    run_hash = wiring.record.hash
    streams = wiring.streams(Stage.ASSEMBLE, 1)
    rules = wiring.stream_rules()
    assert streams.instance_id == "assemble-1" and rules.run_hash == run_hash
    assert rules.reward_sources == ("grader:score", "human:*") and rules.air == SETTINGS.air
    assert SETTINGS.agent is not None and SETTINGS.agent.argv == ("python", "agent.py", "--fast")
    tasks = wiring.tasks()
    assert (tasks.seed, tasks.concurrency, tasks.rewards_awaited, tasks.run_hash) == (3, 32, ("reward",), run_hash)
    llm, sync = wiring.llm({}), wiring.weight_sync()
    assert llm.engines[0].id == sync.engine_id and llm.engines[0].url == sync.engine_url
    token = credential(wiring.run_dir.key(), engine_holder(run_hash))
    assert {llm.engines[0].token, sync.engine_token, wiring.engine().token} == {token}
    assert sync.weight_root == str(wiring.run_dir.weights)
    assert wiring.otlp().port != llm.port


@pytest.mark.parametrize(
    ("streams", "pause_s"),
    [
        (StreamsConfig(), 2.5),
        (StreamsConfig(idle_s=1.0), 0.25),
        (StreamsConfig(services={"web": ServiceConfig(idle_s=4.0), "batch": ServiceConfig(deadline_s=1.0)}), 1.0),
        (StreamsConfig(idle_s=2.0, services={"web": ServiceConfig(idle_s=60.0)}), 0.5),
    ],
    ids=["default", "short", "short-service", "long-service"],
)
def test_the_gateway_knows_the_silence_that_closes_an_episode(
    tmp_path: Path, streams: StreamsConfig, pause_s: float
) -> None:
    """A quarter of the least of anybody: the next record rests on no prompt that another episode may hold."""
    settings = msgspec.structs.replace(SETTINGS, streams=streams)
    assert Wiring(prepare_run(settings, tmp_path)).llm({}).pause_s == pause_s


@pytest.mark.parametrize(("ordinal", "is_refused"), [(0, True), (1, False)])
def test_a_process_is_alone_under_its_name(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    ordinal: int,
    is_refused: bool,
) -> None:
    """Two stream workers with one instance id would take the partitions from each other for ever."""
    monkeypatch.setattr(serve, "_LOCK_WAIT_S", 0.0)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    served = list[int]()
    monkeypatch.setattr(serve, "_run", lambda name, stage, ordinal, *_: served.append(ordinal))
    run_dir = prepare_run(SETTINGS, tmp_path)
    with run_dir.lock("serve-streams-credit-0"):
        status = serve.serve("streams", run_dir.path, stage="credit", ordinal=ordinal)
    assert (status, served) == ((78, []) if is_refused else (0, [ordinal]))
    assert ("already is the serve-streams-credit-0" in caplog.text) == is_refused
