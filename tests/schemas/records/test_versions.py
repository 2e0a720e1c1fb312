"""The one label of a version: read back as it was meant, and nothing else is one."""

from __future__ import annotations

import re
from urllib.parse import quote

from hypothesis import example, given
from hypothesis import strategies as st

from tests.versions import label, sampled_by
from tracegrad.schemas.ids import RunHash
from tracegrad.schemas.records.versions import Version, are_complete, parse_label

VERSIONS = st.builds(
    Version,
    run=st.text("0123456789abcdef", min_size=8, max_size=8).map(RunHash),
    version=st.integers(0, 10**12 - 1),
    epoch=st.integers(0, 10**9 - 1),
)


@given(VERSIONS)
def test_a_label_is_read_back(version: Version) -> None:
    """What an engine says is what was meant."""
    assert parse_label(version.label) == version


@given(VERSIONS)
def test_a_label_is_safe_in_urls_and_file_names(version: Version) -> None:
    """It names folders, and stands in requests."""
    assert quote(version.label, safe="") == version.label
    assert re.fullmatch(r"[0-9a-z-]{13,}", version.label)


@given(VERSIONS, VERSIONS)
def test_two_versions_have_two_labels(one: Version, other: Version) -> None:
    """Of another run, number or epoch."""
    assert (one.label == other.label) == (one == other)


NEAR = st.from_regex(r"[0-9A-Fa-f]{7,9}-?v?\w{0,3}-e\w{0,3}\n?", fullmatch=True)


@given(st.text() | NEAR)
@example("default")
@example("18-e4")
@example("7c1f3e9a-v018-e4")
@example("7c1f3e9a-v18-e04")
@example("7C1F3E9A-v18-e4")
@example("7c1f3e9a-v18-e4\n")
@example("7c1f3e9a-v\u0661-e4")
@example("7c1f3e9a-v1234567890123-e4")
def test_other_text_is_no_label(text: str) -> None:
    """A restarted engine says `default`; a number has one spelling."""
    version = parse_label(text)
    assert version is None or version.label == text
    assert version is None or text not in ("default", "18-e4")


def test_the_label_names_run_version_and_epoch() -> None:
    """As people read it on an engine and on a folder."""
    assert label(18, 4) == "7c1f3e9a-v18-e4"


def test_spans_tell_every_tokens_version() -> None:
    """From the first token on, ascending, none past the end; one at the end names no token but is no fault."""
    assert are_complete((sampled_by(3),), 4)
    assert are_complete((sampled_by(3), sampled_by(4, start=2), sampled_by(5, start=4)), 4)
    assert not are_complete((), 4)
    assert not are_complete((sampled_by(3, start=1),), 4)
    assert not are_complete((sampled_by(3), sampled_by(4, start=3), sampled_by(5, start=2)), 4)
    assert not are_complete((sampled_by(3), sampled_by(4), sampled_by(5, start=2)), 4)
    assert not are_complete((sampled_by(3), sampled_by(4, start=5)), 4)
