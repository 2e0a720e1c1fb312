"""Weight sync: the engine serves the newest sound version, whatever happens on the way."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import httpx
import msgspec
import pytest

from tests.consumers.engine.bench import ACKS_TOPIC, TOPICS, WEIGHTS_TOPIC, Bench
from tests.fake_engine.weights import write_version
from tests.serving import Background
from tests.versions import OTHER_RUN, RUN, claim, label
from tracegrad.consumers.engine import weight_sync
from tracegrad.schemas.errors import ConfigurationError, LogGapError, UnavailableError
from tracegrad.schemas.metrics import RECORDS_REFUSED, VERSIONS_REFUSED, VERSIONS_SKIPPED, Metrics
from tracegrad.schemas.records.weights import RollbackRequest


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """Epoch 1 is claimed."""
    made = Bench(tmp_path / "weights")
    made.put(claim(1))
    return made


def test_new_version_is_loaded_labelled_acknowledged_and_resumed_in_order(bench: Bench) -> None:
    """The whole handshake, once; looking again changes nothing. What it samples comes after its acknowledgement."""
    bench.put(write_version(bench.root, 0))
    acks: list[list[str]] = []
    bench.engine.before_request = lambda path: acks.append(bench.acks()) if path == "/resume" else None
    bench.look()
    bench.look()
    assert bench.engine.paths == [
        "/pause",
        "/collective_rpc",
        "/finish_weight_update",
        "/reset_prefix_cache",
        "/resume",
    ]
    assert (bench.engine.label, bench.engine.is_paused, bench.acks()) == (label(0), False, [label(0)])
    record = bench.log.records(ACKS_TOPIC)[0]
    assert (record.key, acks) == (b"e0", [[label(0)]])


def test_nothing_is_touched_before_a_version_exists(bench: Bench) -> None:
    """An engine with base weights and no manifest is left alone."""
    bench.look()
    assert bench.engine.requests == []


def test_intermediate_versions_are_skipped_when_behind(bench: Bench) -> None:
    """Only the newest of what lies on the log is loaded."""
    bench.serve(0)
    bench.put(*(write_version(bench.root, version) for version in range(1, 8)))
    bench.look()
    assert bench.engine.num_loads == 2
    assert bench.acks() == [label(0), label(7)]
    assert bench.sync.metrics.value(VERSIONS_SKIPPED) == 6


def test_restart_acknowledges_again_and_does_not_reload(bench: Bench) -> None:
    """A label that is the newest and not paused needs nothing but its acknowledgement."""
    bench.serve(3)
    bench.start()
    bench.look()
    assert bench.engine.num_loads == 1
    assert bench.acks() == [label(3), label(3)]


def test_engine_that_served_another_run_gets_this_runs_version(bench: Bench) -> None:
    """Equal number and epoch, other weights: their label names the run, so they are not taken for ours."""
    bench.engine.label = bench.engine.weights = label(3, run=OTHER_RUN)
    bench.serve(3)
    assert (bench.engine.label, bench.engine.weights) == (label(3), label(3))
    assert bench.acks() == [label(3)]


def test_restarted_engine_gets_the_newest_version_again(bench: Bench) -> None:
    """It says `default`; it is loaded and acknowledged anew."""
    bench.serve(3)
    bench.engine.restart()
    with pytest.raises(UnavailableError):
        bench.look()
    bench.look()
    assert (bench.engine.label, bench.engine.weights) == (label(3), label(3))
    assert bench.acks() == [label(3), label(3)]


@pytest.mark.parametrize("num_loads", [0, 1], ids=["before the load", "after the load"])
def test_engine_restarted_under_a_load_is_not_labelled(bench: Bench, num_loads: int) -> None:
    """Up again at once, it gets the next request: its own weights never run under the version's label."""
    bench.put(write_version(bench.root, 3))
    engine = bench.engine

    def restart(path: str) -> None:
        if "/pause" in engine.paths and engine.num_loads == num_loads:
            engine.before_request = lambda path: None
            engine.restart(down_for=0)

    engine.before_request = restart
    with pytest.raises(UnavailableError):
        bench.look()
    assert (engine.label, engine.is_paused, bench.acks()) == ("default", False, [])
    assert not any(label(3) in violation.partition("under")[2] for violation in engine.violations)
    bench.look()
    assert (engine.label, engine.weights, engine.is_paused) == (label(3), label(3), False)
    assert bench.acks() == [label(3)]


def test_engine_found_paused_is_reloaded_and_resumed(bench: Bench) -> None:
    """A killed predecessor may have left it so, half-way; its label then says nothing about its weights."""
    bench.serve(3)
    bench.engine.is_paused = True
    bench.engine.weights = "mixed"
    bench.start()
    bench.look()
    assert (bench.engine.weights, bench.engine.is_paused) == (label(3), False)


def test_higher_epoch_voids_the_old_trainers_later_versions(bench: Bench) -> None:
    """A zombie's manifest after a higher claim is never loaded; the new owner's replaces the same number."""
    bench.put(write_version(bench.root, 1), claim(2))
    bench.put(write_version(bench.root, 2), write_version(bench.root, 9))
    bench.look()
    assert bench.engine.label == label(1)
    bench.put(write_version(bench.root, 2, epoch=2))
    bench.look()
    assert bench.engine.label == label(2, 2)
    assert bench.acks() == [label(1), label(2, 2)]


def test_other_policies_rollbacks_and_garbage_are_passed_over(bench: Bench) -> None:
    """None of them stops the sync or changes what is served."""
    bench.put(claim(1, policy="other"), write_version(bench.root, 5, policy="other"))
    bench.put(RollbackRequest(policy="policy", run=RUN, to_version=0, request_id="r1", requested_by="me"))
    writer = bench.log.writer()
    for value in (b"{", b"\xff", None, b'{"type":"version","schema":"version/9"}', b"[]"):
        writer.append(WEIGHTS_TOPIC, key=b"policy", value=value)
    bench.serve(1)
    assert bench.engine.label == label(1)
    assert bench.sync.metrics.value(RECORDS_REFUSED) == 5


@pytest.mark.parametrize("num_sound", [0, 1], ids=["alone", "one after it"])
def test_a_newest_version_that_stays_damaged_ends_the_wait_with_the_remedy(bench: Bench, num_sound: int) -> None:
    """Admission, or the end of the run, waits until it is served: for ever. One after it is served in its stead."""
    bench.put(write_version(bench.root, 0))
    damaged = write_version(bench.root, 1)
    (Path(damaged.uri) / damaged.files[-1].name).write_bytes(b"damaged")
    bench.put(damaged)
    bench.look()
    if num_sound:
        bench.put(write_version(bench.root, 2))
    for _ in range(int(bench.sync.refused_patience_s / bench.sync.retry_refused_s)):
        bench.now += bench.sync.retry_refused_s
        bench.look()
    bench.now += bench.sync.retry_refused_s
    with contextlib.ExitStack() as raises:
        if not num_sound:
            raises.enter_context(pytest.raises(ConfigurationError, match=f"{damaged.label} refused .*start the run"))
        bench.look()
    assert bench.acks()[-1] == label(2 * num_sound)


def test_corrupt_version_is_refused_counted_and_never_served(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """The engine goes on with what it serves; it is not even paused; a repaired folder is taken later."""
    bench.serve(1)
    manifest = write_version(bench.root, 2)
    file = Path(manifest.uri) / "model.safetensors"
    file.write_text("2-e")
    bench.put(manifest)
    num_requests = bench.engine.paths.count("/pause")
    bench.look()
    bench.look()
    assert (bench.engine.label, bench.engine.paths.count("/pause")) == (label(1), num_requests)
    assert bench.sync.metrics.value(VERSIONS_REFUSED, "size") == 1
    assert f"version {label(2)} of policy policy is not served" in caplog.text
    file.write_text(label(2))
    bench.now += bench.sync.retry_refused_s + 1
    bench.look()
    assert bench.acks() == [label(1), label(2)]


@pytest.mark.parametrize("kind", ["lora", "sharded", "of tomorrow"])
def test_a_kind_that_the_engine_does_not_load_is_refused_counted_and_never_loaded(
    kind: str, bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """With what to do; the engine goes on with what it serves, and one that loads the kind is given it."""
    bench.serve(1)
    bench.put(msgspec.structs.replace(write_version(bench.root, 2), kind=kind))
    bench.look()
    assert (bench.engine.label, bench.engine.num_loads, bench.engine.is_paused) == (label(1), 1, False)
    assert bench.sync.metrics.value(VERSIONS_REFUSED, "kind") == 1
    assert f"kind full, which the engine loads, got {kind!r}" in caplog.text and "start an engine" in caplog.text
    bench.sync.control = able = bench.engine.control()
    able.kinds = frozenset({"full", kind})  # type: ignore[arg-type]
    bench.now += bench.sync.retry_refused_s + 1
    bench.look()
    assert bench.acks() == [label(1), label(2)]


@pytest.mark.parametrize("failure", ["clean", "mixed"])
def test_failed_load_is_followed_by_a_good_one_before_resume(bench: Bench, failure: str) -> None:
    """The version before is loaded again, under the same pause, even if the engine still bears its label."""
    bench.serve(1)
    bench.put(write_version(bench.root, 2))
    bench.engine.fail_load = failure
    bench.look()
    assert (bench.engine.label, bench.engine.weights, bench.engine.is_paused) == (label(1), label(1), False)
    assert bench.engine.violations == []
    assert bench.sync.metrics.value(VERSIONS_REFUSED, "load_failed") == 1


def test_engine_stays_paused_while_no_version_can_be_served(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """A mixture is never resumed; it is said once, and tried again later."""
    bench.put(write_version(bench.root, 1))
    bench.engine.fail_load = "mixed"
    bench.look()
    bench.look()
    assert bench.engine.is_paused
    assert caplog.text.count(f"version {label(1)} of policy policy is not served") == 1
    bench.now += bench.sync.retry_refused_s + 1
    bench.look()
    assert (bench.engine.label, bench.engine.is_paused) == (label(1), False)


def test_version_is_not_acknowledged_until_the_log_has_it(bench: Bench) -> None:
    """An append that fails is tried again at the next look, without another load."""
    bench.put(write_version(bench.root, 1))
    bench.log.fail_next(UnavailableError("away"))
    with pytest.raises(UnavailableError):
        bench.look()
    assert (bench.acks(), bench.engine.is_paused) == ([], True)
    bench.look()
    assert (bench.acks(), bench.engine.num_loads, bench.engine.is_paused) == ([label(1)], 1, False)


def test_dead_engine_is_away_not_a_reason_to_refuse_the_version(bench: Bench) -> None:
    """A 500 of an engine whose health is bad says nothing about the files."""
    bench.put(write_version(bench.root, 1))
    bench.engine.fail_load = "clean"

    def die(path: str) -> None:
        if path == "/health":
            bench.engine.down_for = 9

    bench.engine.before_request = die
    with pytest.raises(UnavailableError):
        bench.look()
    bench.engine.before_request = lambda path: None
    bench.engine.down_for = 0
    bench.look()
    assert bench.engine.label == label(1)
    assert bench.sync.metrics.value(VERSIONS_REFUSED) == 0


def test_connection_closed_after_a_refusal_does_not_hide_that_the_engine_lives(bench: Bench) -> None:
    """uvicorn closes the connection after a 500; the next request on it fails, the one after does not."""
    bench.put(write_version(bench.root, 1), write_version(bench.root, 2))
    bench.engine.fail_load = "clean"

    def close(path: str) -> None:
        if path == "/health" and not bench.engine.down_for:
            bench.engine.down_for = 1
            bench.engine.before_request = lambda path: None

    bench.engine.before_request = close
    bench.look()
    assert bench.engine.label == label(1)
    assert bench.sync.metrics.value(VERSIONS_REFUSED, "load_failed") == 1


def test_run_follows_the_log_and_stops(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocking entry point: versions that lay there and one that comes; an engine that is away at first."""
    real_client = httpx.Client
    transport = bench.engine.client()._transport
    monkeypatch.setattr(httpx, "Client", lambda base_url, headers: real_client(base_url=base_url, transport=transport))
    bench.engine.down_for = 3
    bench.put(write_version(bench.root, 0), write_version(bench.root, 1))
    running = Background(
        lambda stop: weight_sync.run(
            bench.handles, topics=TOPICS, log=bench.log, stop=stop, metrics=Metrics(), poll_s=0.001
        )
    )
    with running:
        _wait_for(bench, 1)
        bench.put(write_version(bench.root, 2))
        _wait_for(bench, 2)
    assert bench.acks() == [label(1), label(2)]


def test_lost_records_are_fatal(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that lost part of the lineage cannot be followed; the process ends and says so."""

    def gone(*args: object, **kwargs: object) -> None:
        raise LogGapError("gone")

    monkeypatch.setattr(bench.log, "tail", gone)
    with pytest.raises(LogGapError):
        weight_sync.run(bench.handles, topics=TOPICS, log=bench.log, stop=threading.Event(), metrics=Metrics())


def _wait_for(bench: Bench, num_acks: int) -> None:
    with bench.log.changed:
        assert bench.log.changed.wait_for(lambda: len(bench.log.records(ACKS_TOPIC)) >= num_acks, 5)


@pytest.mark.parametrize("name", ["\x00", "a\x00b", "n" * 300, "n/" * 3000, "\ud800"], ids=range(5))
@pytest.mark.parametrize("where", ["folder", "file"])
def test_names_that_no_file_system_takes_end_nothing(bench: Bench, name: str, where: str) -> None:
    """The newest version bears one; the sound one before it is served, and a later one too."""
    bench.put(write_version(bench.root, 1))
    good = write_version(bench.root, 2)
    if where == "folder":
        bad = msgspec.structs.replace(good, uri=f"{bench.root}/{name}")
    else:
        file = msgspec.structs.replace(good.files[-1], name=f"{name}.safetensors")
        bad = msgspec.structs.replace(good, files=(file,))
    bench.sync._lineage.fold(claim(1))
    bench.sync._lineage.fold(bad)
    bench.look()
    assert (bench.acks(), bench.sync.metrics.value(VERSIONS_REFUSED)) == ([label(1)], 1)
    bench.serve(3)
    assert bench.acks()[-1] == label(3)
