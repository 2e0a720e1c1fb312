"""The processes of a run: which there are, and what each is handed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.compose.run.example_settings import CAPTURING, SETTINGS
from tracegrad.compose.engine.config import EngineConfig
from tracegrad.compose.run import serve
from tracegrad.compose.run.pipeline import PipelinePart, prepare_run, specs
from tracegrad.compose.run.wiring import Wiring
from tracegrad.consumers.page.config import PageConfig
from tracegrad.producers.llm_gateway.config import GRACE_S
from tracegrad.schemas.credentials import credential, engine_holder
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.topics import Stage
from tracegrad.streams.config import ServiceConfig, StreamsConfig
from tracegrad.trainer.config import TrainerConfig


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
    only = [spec.name for spec in specs(wiring, for_training=False, only=PipelinePart.CAPTURE)]
    assert only == ["kafka", "engine", "otlp", "llm", "page"]
    assert max(found.values(), key=lambda spec: spec.layer) is found["page"] and found["page"].is_spare


def test_a_run_on_captured_traffic_has_tasks_and_runner_where_something_is_held_out(tmp_path: Path) -> None:
    """Besides what it has without; a part of it has neither."""
    wiring = Wiring(prepare_run(CAPTURING, tmp_path / "with"))
    without = Wiring(prepare_run(msgspec.structs.replace(CAPTURING, tasks=None), tmp_path / "without"))
    names, fewer = ([spec.name for spec in specs(one, for_training=False)] for one in (wiring, without))
    assert sorted(names) == sorted([*fewer, "runner", "tasks"])
    for part in PipelinePart:
        assert not {"runner", "tasks"} & {spec.name for spec in specs(wiring, for_training=False, only=part)}
    assert wiring.tasks().rewards_awaited == ("reward",)
    assert "/somewhere/eval.jsonl" in wiring.runner().hidden


def test_a_gateway_is_stopped_later_than_its_calls_may_take(tmp_path: Path) -> None:
    """One that waits for an engine in its start takes all of that; to be killed as it ends by itself is no end."""
    found = {spec.name: spec for spec in specs(Wiring(prepare_run(SETTINGS, tmp_path)), for_training=True)}
    assert found["llm"].stop_timeout_s > GRACE_S


@pytest.mark.parametrize(
    ("trainer", "engine", "share"),
    [
        ("auto", {}, 0.4),
        ("cuda", {"gpu_memory_utilization": 0.3}, 0.3),
        ("cuda:1", {}, 0.0),
        ("cuda:1", {"replicas": 2}, 0.4),
        ("auto", {"device": "cpu"}, 0.0),
        ("auto", {"url": "http://127.0.0.1:9"}, 0.0),
    ],
)
def test_the_trainer_is_told_what_an_engine_takes_of_its_gpu(
    trainer: str, engine: dict[str, Any], share: float, tmp_path: Path
) -> None:
    """What vLLM is told for that GPU; nothing where they are on different ones, or the engine is not ours."""
    changes = {"trainer": TrainerConfig(device=trainer), "engine": EngineConfig(**engine)}
    wiring = Wiring(prepare_run(msgspec.structs.replace(SETTINGS, **changes), tmp_path))
    assert wiring.trainer().engine_share == share


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
    monkeypatch.setattr("signal.signal", lambda *_: None)
    served = list[int]()
    monkeypatch.setattr(serve, "_run", lambda name, stage, ordinal, *_: served.append(ordinal))
    run_dir = prepare_run(SETTINGS, tmp_path)
    with run_dir.lock("serve-streams-credit-0"):
        status = serve.serve("streams", run_dir.path, stage="credit", ordinal=ordinal)
    assert (status, served) == ((78, []) if is_refused else (0, [ordinal]))
    assert ("already is the serve-streams-credit-0" in caplog.text) == is_refused
