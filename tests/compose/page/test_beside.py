"""The runs beside one: what their pages left, and why there is nothing."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from tracegrad.compose.page.beside import beside
from tracegrad.compose.page.kept import KEPT, mark_of
from tracegrad.compose.run.pipeline import prepare_run
from tracegrad.compose.run.run_dir import RunDir
from tracegrad.compose.run.settings import RunSettings
from tracegrad.consumers.page.asked import Beside, Other
from tracegrad.consumers.page.kept import Kept
from tracegrad.producers.llm_gateway.config import PolicyConfig


def made(folder: Path, name: str) -> RunDir:
    """A run without a record."""
    return prepare_run(RunSettings(run=name, policy=PolicyConfig(model="none")), folder / name)


def left(run: RunDir, mark: str | None = None) -> None:
    """A page's file."""
    kept = Kept(
        run=run.record.hash,
        mark=mark if mark is not None else mark_of(run),
        records=[],
        dead_letters=[],
        counts={},
        ends={},
        settings={"policy": {"name": "policy"}, "agent": {"env": {"KEY": "secret"}}},
    )
    (run.path / KEPT).write_bytes(msgspec.msgpack.encode(kept))


@pytest.fixture
def runs(tmp_path: Path) -> tuple[RunDir, RunDir, Beside]:
    """Two, and what the first one asks of the second."""
    own, other = made(tmp_path, "own"), made(tmp_path, "other")
    return own, other, beside(own)


def test_the_others_are_named_and_the_run_is_not(runs: tuple[RunDir, RunDir, Beside]) -> None:
    """Nor what is no run."""
    own, _, found = runs
    (own.path.parent / "none").mkdir()
    assert found.names() == ["other"]


def test_a_run_whose_page_left_nothing_has_the_reason_and_its_settings(runs: tuple[RunDir, RunDir, Beside]) -> None:
    """Those of its folder, without secrets; also of one that is live, and of one with a damaged file."""
    _, other, found = runs
    config = json.loads(other.config.read_bytes())
    config["agent"] = {"env": {"KEY": "secret"}, "token": "secret", "concurrency": 3}
    other.config.write_text(json.dumps(config))
    ended = found.find("other")
    assert "tracegrad page other" in ended.reason and ended.settings["agent"] == {"concurrency": 3}
    with other.lock():
        assert "it runs" in found.find("other").reason
    (other.path / KEPT).write_bytes(b"damaged")
    assert "damaged" in found.find("other").reason


def test_what_a_page_left_is_read_again_once_it_changed(runs: tuple[RunDir, RunDir, Beside]) -> None:
    """And not before; it shows no secret that an earlier release kept."""
    _, other, found = runs
    left(other)
    first = found.find("other")
    assert first.reason == "" and first.settings == {"policy": {"name": "policy"}, "agent": {}}
    assert found.find("other") is first
    left(other, mark="of before")
    again = found.find("other")
    assert again is not first and "went on since" in again.reason


def changed(run: RunDir, section: str, **keys: object) -> None:
    """Its settings, as another release or a person would have them."""
    config = json.loads(run.config.read_bytes())
    config[section] = {**(config.get(section) or {}), **keys}
    run.config.write_text(json.dumps(config))


def test_of_a_run_on_a_cluster_no_page_is_promised(runs: tuple[RunDir, RunDir, Beside]) -> None:
    """Whether it runs or has ended: a page leaves its curves of a run with a broker of its own alone."""
    _, other, found = runs
    changed(other, "kafka", bootstrap_servers="kafka:9092")
    ended = found.find("other")
    assert "cluster" in ended.reason and "tracegrad page" not in ended.reason and ended.settings["kafka"]
    with other.lock():
        live = found.find("other")
    assert "cluster" in live.reason and "when it ends" not in live.reason


def test_the_curves_of_a_run_of_another_release_are_shown(runs: tuple[RunDir, RunDir, Beside]) -> None:
    """Settings that this one does not know hide nothing; but whether it went on since is not known then."""
    _, other, found = runs
    left(other)
    changed(other, "policy", no_longer=1)
    shown = found.find("other")
    assert "went on since is not known" in shown.reason and "no_longer" in shown.reason
    assert shown.settings == {"policy": {"name": "policy"}, "agent": {}}


def test_a_folder_that_cannot_be_read_is_said_to_be(runs: tuple[RunDir, RunDir, Beside]) -> None:
    """It may go while somebody looks."""
    _, _, found = runs
    gone: Other = found.find("gone")
    assert "cannot be read" in gone.reason and not gone.steps
