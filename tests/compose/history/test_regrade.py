"""A run's outputs graded anew, from folder to folder on logs in memory; the grader is a real process."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from tests.compose.history.in_memory import Told
from tests.compose.history.regrading import GRADERS, Runs, episodes, settings
from tests.compose.history.regrading import runs as runs
from tests.memory_log import MemoryLog
from tracegrad.compose.history import replay as history
from tracegrad.compose.history.request import ReplayRequest, check_same, code_digest
from tracegrad.compose.run.run_dir import RunDir
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.records.episodes import EPISODES
from tracegrad.schemas.topics import Topic


def regraded(tmp_path: Path, grader: str, *, is_dry: bool = False, is_replay: bool = False) -> tuple[int, Told]:
    """A regrade of `test` into `again`."""
    source, show = RunDir.open(tmp_path / "test"), Told()
    made = history.replayed_settings(source, settings(tmp_path, "again", grader), None)
    assert made.reward is not None and made.reward.grader is not None
    digest = "" if is_replay else code_digest(made.reward.grader)
    request = ReplayRequest(source=source.path, dry_run="full" if is_dry else None, grader=digest)
    return history.run_replay(request, made, tmp_path / "again", show), show


def test_each_output_is_graded_anew_and_what_cannot_be_has_no_reward(runs: Runs, tmp_path: Path) -> None:
    """Its reason is on the episode, the others of its group train, and the grader was given what the first was."""
    status, told = regraded(tmp_path, "sterner")
    assert status == 0
    found = episodes(runs[1], tmp_path)
    assert {number: (one.reward, one.unscored) for number, one in found.items()} == {
        0: (2.0, ""),
        1: (-1.0, ""),
        2: (None, "grader raised RuntimeError at grade.py:11: no"),
        3: (None, "grader took more than 2 s"),
        4: (None, "output_too_large"),
        5: (2.0, ""),
    }
    assert {one.source for episode in found.values() for one in episode.rewards} == {"grader:sterner"}
    assert all(one.num_unauthorised_rewards == 0 for one in found.values())
    assert "graded anew: 3 episodes, 3 of them have another reward than before; mean 0.667 -> 1.000" in told.lines
    assert told.lines[-1] == (
        "without a reward: 1 grader raised RuntimeError at grade.py:11, 1 grader took more than 2 s, 1 output_too_large"
    )
    task, output, attempt = json.loads((tmp_path / "grade.py.asked").read_text().splitlines()[0])
    assert (task, output) == ({"id": "t0", "input": "6 * 7?", "expected": "42"}, "42")
    assert (attempt["state"], len(attempt["calls"])) == ("succeeded", 1)


def test_the_same_command_asks_nobody_twice(runs: Runs, tmp_path: Path) -> None:
    """Neither about what the grader could not say; nothing is written twice."""
    regraded(tmp_path, "sterner")
    asked = (tmp_path / "grade.py.asked").read_text()
    before = episodes(runs[1], tmp_path)
    status, told = regraded(tmp_path, "sterner")
    assert (status, told.counts.get("written", 0)) == (0, 0)
    assert episodes(runs[1], tmp_path) == before
    assert (tmp_path / "grade.py.asked").read_text() == asked


def test_one_that_was_killed_goes_on_where_it_was(runs: Runs, tmp_path: Path) -> None:
    """Also in the midst of a line; what a grader said is not asked again, whatever it would say now."""
    regraded(tmp_path, "sterner")
    whole = episodes(runs[1], tmp_path)
    grades = tmp_path / "again" / "grades.jsonl"
    lines = grades.read_bytes().splitlines(keepends=True)
    grades.write_bytes(b"".join(lines[:2]) + lines[2][:20])
    runs[1].pop("again")
    (tmp_path / "grade.py.asked").unlink()
    regraded(tmp_path, "sterner")
    assert episodes(runs[1], tmp_path) == whole
    assert len((tmp_path / "grade.py.asked").read_text().splitlines()) == len(lines) - 2
    kept = grades.read_bytes().splitlines(keepends=True)
    assert (kept[:2], len(kept)) == (lines[:2], len(lines))


def test_the_source_s_own_grader_makes_the_source_s_own_records(runs: Runs, tmp_path: Path) -> None:
    """Byte for byte, but for what cannot be graded any more."""
    regraded(tmp_path, "grade")
    source = {EPISODES.decode(value).episode_id: value for value in runs[0].values(Topic.EPISODES)}
    name = RunDir.open(tmp_path / "again").settings.topics.name(Topic.EPISODES)
    made = {EPISODES.decode(one.value).episode_id: one.value for one in runs[1]["again"].records(name)}
    assert made.keys() == source.keys()
    differing = [id_ for id_, value in made.items() if value != source[id_]]
    assert [EPISODES.decode(made[id_] or b"").unscored for id_ in differing] == ["output_too_large"]


def test_a_dry_one_grades_and_counts_and_makes_no_folder(runs: Runs, tmp_path: Path) -> None:
    """So that a grader can be looked at before it is used."""
    status, told = regraded(tmp_path, "grade", is_dry=True)
    assert (status, [*runs[1]]) == (0, ["test"])
    assert any(line.startswith("graded anew: 5 episodes, 0 of them") for line in told.lines)
    assert not (tmp_path / "again").exists()


def test_another_grader_under_the_same_name_is_refused(runs: Runs, tmp_path: Path) -> None:
    """Another function, another text of the file, and none: a replay of it would bring the old rewards back."""
    regraded(tmp_path, "grade")
    with pytest.raises(ConfigurationError, match="another --grader"):
        regraded(tmp_path, "speechless")
    with pytest.raises(ConfigurationError, match="another --grader; give the same"):
        regraded(tmp_path, "grade", is_replay=True)
    (tmp_path / "grade.py").write_text(GRADERS + "\n# changed")
    with pytest.raises(ConfigurationError, match="another --grader"):
        regraded(tmp_path, "grade")


@pytest.mark.parametrize(
    ("grader", "message"),
    [("missing", "has no callable 'missing'"), ("speechless", r"got none \(.*5 grader returned None")],
)
def test_a_grader_that_can_grade_nothing_is_an_error(runs: Runs, tmp_path: Path, grader: str, message: str) -> None:
    """One that cannot be imported before anything is written."""
    with pytest.raises(ConfigurationError, match=message):
        regraded(tmp_path, grader)
    assert (tmp_path / "again").exists() == (grader == "speechless")


def test_what_is_regraded_is_not_the_same_any_more(runs: Runs, tmp_path: Path) -> None:
    """`--mode same` trains what the source did, on its rewards."""
    source = RunDir.open(tmp_path / "test")
    request = ReplayRequest(source=source.path, mode="same", grader="x")
    with pytest.raises(ConfigurationError, match=r"other rewards \(--grader\)"):
        check_same(request, source.settings, source.settings)


def test_attempts_without_a_recorded_task_are_told(runs: Runs, tmp_path: Path) -> None:
    """As where `rollouts` has a retention of its own."""
    past = MemoryLog()
    runs[0].past(past)
    runs[1]["test"] = past
    with pytest.raises(ConfigurationError, match="5 task_not_recorded"):
        regraded(tmp_path, "grade")


def test_a_run_without_a_runner_is_refused(runs: Runs, tmp_path: Path) -> None:
    """What others' agents did is rated, not graded."""
    source = RunDir.open(tmp_path / "test")
    made = msgspec.structs.replace(settings(tmp_path, "again"), agent=None)
    with pytest.raises(ConfigurationError, match=r"expected a run with an \[agent\]"):
        history.run_replay(ReplayRequest(source=source.path, grader="x"), made, tmp_path / "again", Told())
    assert not (tmp_path / "again").exists()
