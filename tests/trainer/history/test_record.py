"""A source's record becomes the steps, rollbacks and numbers of the run that repeats it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.versions import RUN, claim, manifest
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.records.training import TRAINING_STEPS, Accounting, GroupsGivenBack, TrainingStep
from tracegrad.schemas.records.weights import WEIGHTS, VersionManifest, WeightFile
from tracegrad.trainer.history.record import SourceRecord, fold_record


def step(number: int, version: int, *, epoch: int = 1, skipped: str = "", **fields: Any) -> TrainingStep:
    """One that trained group `g<number>`, or did not."""
    group = f"g{number}"
    excluded = {group: skipped} if skipped else {}
    ids: dict[str, Any] = {"policy": "policy", "group_ids": () if skipped else (group,), "excluded_ids": excluded}
    return TrainingStep(
        run=RUN, step=number, epoch=epoch, version=version, is_updated=not skipped, skipped=skipped,
        begin_offset=number - 1, next_offset=number, batch_hash="", accounting=Accounting(), reward=None,
        num_rollouts=1, num_tokens=1, loss=0.0, grad_norm=0.0, learning_rate=0.0, **ids | fields,
    )  # fmt: skip


def weights(version: int, epoch: int = 1, *, base: int, after: int, sha256: str = "") -> VersionManifest:
    """A version after so many steps."""
    files = (WeightFile(name="model.safetensors", bytes=1, sha256=sha256 or f"of {version}"),)
    return manifest(version, epoch, base_version=base, step=after, files=files)


def record_of(steps: Sequence[TrainingStep], versions: Sequence[Any]) -> SourceRecord:
    """From both topics, as a file has them."""
    return fold_record([*map(WEIGHTS.encode, versions), *map(TRAINING_STEPS.encode, steps)], "policy")


def test_versions_are_numbered_without_gaps_and_rollbacks_stand_in_their_place() -> None:
    """Two steps; back to 1 as version 3; a step that made none; one that made 4; back to 3 at the end."""
    steps = [step(1, 1), step(2, 2), step(3, 3, skipped="no_advantage"), step(4, 4)]
    versions = [
        claim(), weights(0, base=0, after=0), weights(1, base=0, after=1), weights(2, base=1, after=2),
        weights(3, base=1, after=2), weights(4, base=3, after=4), weights(5, base=3, after=4),
    ]  # fmt: skip
    record = record_of(steps, versions)
    assert [(one.started_from, one.version) for one in record.steps] == [(0, 1), (1, 2), (3, 3), (3, 4)]
    assert record.rollbacks == ((), (), (1,), (), (3,))
    assert [record.num_rollbacks(number) for number in range(6)] == [0, 0, 0, 1, 1, 2]
    assert [record.is_needed(version) for version in range(5)] == [False, True, False, True, False]


def test_what_a_lost_checkpoint_undid_is_left_out() -> None:
    """The rollback after step 3 was done again after step 2, where the log was replayed: versions 3 to 5 led nowhere,
    and 6 to 8 are 3 to 5 here."""
    steps = [step(1, 1), step(2, 2), step(3, 3), step(4, 5), step(3, 7, epoch=2), step(4, 8, epoch=2)]
    versions = [
        claim(), weights(0, base=0, after=0), weights(1, base=0, after=1), weights(2, base=1, after=2),
        weights(3, base=2, after=3), weights(4, base=1, after=3), weights(5, base=4, after=4),
        claim(2), weights(6, 2, base=1, after=2), weights(7, 2, base=6, after=3), weights(8, 2, base=7, after=4),
    ]  # fmt: skip
    record = record_of(steps, versions)
    assert [(one.step.version, one.started_from, one.version) for one in record.steps] == [
        (1, 0, 1), (2, 1, 2), (7, 6, 4), (8, 7, 5),
    ]  # fmt: skip
    assert record.rollbacks == ((), (), (1,), (), ())
    assert record.weights[5].sha256 == "of 8"


def test_two_rollbacks_in_a_row_are_two() -> None:
    """The second goes back to what the first made."""
    versions = [
        claim(), weights(0, base=0, after=0), weights(1, base=0, after=1), weights(2, base=0, after=1),
        weights(3, base=2, after=1), weights(4, base=3, after=2),
    ]  # fmt: skip
    record = record_of([step(1, 1), step(2, 4)], versions)
    assert record.rollbacks == ((), (0, 2), ())
    assert [one.version for one in record.steps] == [1, 4]


def test_other_weights_of_a_version_are_seen_where_they_are_known() -> None:
    """By the file's sha256; a manifest that retention ate tells nothing."""
    record = record_of([step(1, 1), step(2, 2)], [claim(), weights(1, base=0, after=1, sha256="a")])
    assert not record.differs(weights(1, base=0, after=1, sha256="a"))
    assert record.differs(weights(1, base=0, after=1, sha256="b"))
    assert not record.differs(weights(2, base=1, after=2))


@pytest.mark.parametrize(
    ("steps", "versions", "match"),
    [
        ([], [], "steps 1 to N .* got none"),
        ([step(1, 1), step(3, 3), step(4, 4)], [], "steps 1 to 3 .* got 1, 3-4"),
        ([step(1, 1), step(2, 3)], [claim(), weights(3, base=2, after=2)], "step 2 to start from version 1, got 2"),
        ([step(1, 1), step(2, 5, skipped="no_advantage")], [], "step 2 to start from version 1, got 5"),
        ([step(1, 1), step(2, 4)], [claim(), weights(3, base=2, after=1)], "got version 2, which it trained before"),
    ],
)
def test_records_that_do_not_fit_are_refused(steps: list[TrainingStep], versions: list[Any], match: str) -> None:
    """Each message names the step and a way on."""
    with pytest.raises(ConfigurationError, match=match) as caught:
        record_of(steps, versions)
    assert "--mode offline" in str(caught.value)


def test_what_is_neither_is_passed_over() -> None:
    """Lines that no reader could read, another policy's, and words on a batch that was read."""
    told = GroupsGivenBack(run=RUN, policy="policy", epoch=1, step=1, consumed=1, group_ids=("x",))
    steps: list[TrainingStep | GroupsGivenBack] = [told, step(1, 1), step(1, 9, policy="other")]
    lines = [b"", b"{}", b"\xff", *map(TRAINING_STEPS.encode, steps)]
    assert [one.version for one in fold_record(lines, "policy").steps] == [1]


@given(st.lists(st.sampled_from(["step", "between", "skip", "last", "rollback"]), max_size=12), st.data())
def test_any_history_is_told_back(events: list[str], data: st.DataObject) -> None:
    """Steps that skip numbers as a source does that lost checkpoints, updates between two versions, and a step that
    leads to one without an update of its own; by replaying the record its versions come out."""
    versions, steps, content, number = [claim(), weights(0, base=0, after=0)], list[TrainingStep](), {0: "0"}, 0
    expected, pending = ["0"], list[str]()
    for event in ("step", *events):
        at = len(steps) + 1
        if event in ("step", "between"):
            pending.append(f"+{at}")
        if event == "rollback":
            base, new, pending = data.draw(st.sampled_from(sorted(content))), number + 1, []
        elif event in ("between", "skip") or not pending:
            skipped = "" if event == "between" else "no_tokens"
            steps.append(step(at, number, skipped=skipped, num_unpublished=len(pending)))
            continue
        else:
            base, new = number, number + data.draw(st.integers(1, 3))
            steps.append(step(at, new, skipped="no_tokens" if event == "last" else ""))
        content[new] = content[base] + "".join(pending)
        versions.append(weights(new, base=base, after=len(steps)))
        number, pending = new, []
        expected.append(content[new])
    record = record_of(steps, versions)
    made, left = ["0"], ""
    for done in range(len(steps) + 1):
        for to in record.rollbacks[done]:
            made.append(made[to])
            left = ""
        if done < len(steps):
            one = record.steps[done]
            left += f"+{done + 1}" * one.step.is_updated
            if one.version != len(made) - 1:
                made.append(made[-1] + left)
                left = ""
            assert one.version == len(made) - 1
    assert made == expected
