"""Who owns a policy: every reader of `weights` folds to the same survivors."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tests.versions import RUN, claim, manifest
from tracegrad.schemas.records.weights import (
    EpochClaim,
    Lineage,
    RollbackRequest,
    VersionManifest,
    WeightRecord,
)

CLAIMS = st.builds(
    EpochClaim, policy=st.just("policy"), run=st.just(RUN), epoch=st.integers(1, 4), trainer_id=st.text(max_size=3)
)
VERSIONS = st.builds(
    lambda epoch, version: manifest(version, epoch),
    st.integers(1, 4),
    st.integers(0, 5),
)
RECORDS = st.lists(CLAIMS | VERSIONS, max_size=30)


def fold(records: list[WeightRecord]) -> tuple[Lineage, list[bool]]:
    """The lineage of the policy, and which records counted."""
    lineage = Lineage("policy")
    return lineage, [lineage.fold(record) for record in records]


@given(RECORDS)
def test_record_counts_only_under_the_claim_in_force(records: list[WeightRecord]) -> None:
    """The first claim of the highest number so far; equal and lower claims, and their versions, are void."""
    lineage, counted = fold(records)
    in_force = 0
    for record, is_counted in zip(records, counted, strict=True):
        if isinstance(record, EpochClaim):
            assert is_counted == (record.epoch > in_force)
            in_force = max(in_force, record.epoch)
        else:
            assert isinstance(record, VersionManifest)
            assert is_counted == (record.epoch == in_force)
    assert (lineage.claim.epoch if lineage.claim else 0) == in_force


@given(RECORDS)
def test_newest_is_the_highest_version_that_survives(records: list[WeightRecord]) -> None:
    """And each version is the last manifest that counted for it."""
    lineage, counted = fold(records)
    surviving = [r for r, ok in zip(records, counted, strict=True) if ok and isinstance(r, VersionManifest)]
    assert lineage.versions == {manifest.version: manifest for manifest in surviving}
    assert lineage.newest == (lineage.versions[max(lineage.versions)] if surviving else None)


def test_other_policies_are_left_alone() -> None:
    """One topic holds all policies; another's records are neither counted nor void."""
    lineage, counted = fold([claim(9, policy="other")])
    assert counted == [False]
    assert lineage.claim is None


def test_rollback_request_passes() -> None:
    """Whoever has the run's key may ask; the live trainer decides, once for each request."""
    request = RollbackRequest(policy="policy", run=RUN, to_version=1, request_id="r1", requested_by="me")
    another = msgspec.structs.replace(request, request_id="r2")
    lineage, counted = fold([request, request, another, request])
    assert counted == [True, False, True, False]
    assert lineage.newest is None
