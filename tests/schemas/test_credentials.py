"""Credentials: what proves whom, and to whom it proves nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tracegrad.schemas.credentials import (
    Holder,
    attempt_holder,
    claimed_attempt,
    credential,
    engine_holder,
    is_host,
    masked,
    may_claim,
    new_host,
    proved_holder,
    runner_holder,
)
from tracegrad.schemas.ids import RunHash

KEY, OTHER_KEY = bytes(range(32)), bytes(32)
ROLLOUT = "ab12cd34" + "0" * 20
ATTEMPT = attempt_holder(ROLLOUT, "0a0b")
RUNNER = runner_holder(RunHash("ab12cd34"))
ENGINE = engine_holder(RunHash("ab12cd34"))


def test_the_form_is_kept() -> None:
    """Processes of one run may be of two releases; the secret is HMAC-SHA256, worked out by another program."""
    assert credential(KEY, ATTEMPT) == f"rt-{ROLLOUT}.0a0b.a2738ac89233c13917f9903e88738182"


def test_a_credential_proves_its_holder_alone() -> None:
    """By its run's key; not with a character changed, without its secret, with another's, or of another kind."""
    host = new_host()
    for holder in (ATTEMPT, host, RUNNER, ENGINE):
        shown = credential(KEY, holder)
        assert (proved_holder(KEY, shown), proved_holder(OTHER_KEY, shown)) == (holder, None)
        secret = shown.rpartition(".")[2]
        others = [
            other for other in (ATTEMPT, host, RUNNER, new_host(), attempt_holder(ROLLOUT, "0a0c")) if other != holder
        ]
        for forged in (*(f"{other}.{secret}" for other in others), holder, f"{holder}.", secret, f".{secret}", ""):
            assert proved_holder(KEY, forged) is None, forged
        changed = [shown[:i] + ("0" if shown[i] != "0" else "1") + shown[i + 1 :] for i in range(len(shown))]
        assert {proved_holder(KEY, text) for text in changed} == {None}


@given(st.text(max_size=100))
def test_any_text_may_be_shown(text: str) -> None:
    """It proves nothing, raises nothing, and what it claims holds no secret."""
    assert proved_holder(KEY, text) is None
    assert (claimed_attempt(text) is not None) == text.startswith("rt-")
    assert masked(text.encode(errors="replace"), credential(KEY, ATTEMPT)) == text.encode(errors="replace")


def test_whom_a_holder_may_speak_for() -> None:
    """A command for its own attempt; a host for any of the run, judged elsewhere; nobody runner and engine for none."""
    cases = {(ROLLOUT, "0a0b"): True, (ROLLOUT, None): True, (ROLLOUT, "0a0c"): False, ("ff" * 14, "0a0b"): False}
    for (rollout, attempt), is_own in cases.items():
        assert may_claim(ATTEMPT, rollout, attempt) is is_own
        assert may_claim(new_host(), rollout, attempt)
        assert not any(may_claim(holder, rollout, attempt) for holder in (None, RUNNER, ENGINE))
    assert [is_host(holder) for holder in (new_host(), ATTEMPT, RUNNER, ENGINE)] == [True, False, False, False]


def test_what_is_quoted_loses_its_secret_and_keeps_its_length() -> None:
    """So that a protobuf body stays one; ids are left, for they are no secret."""
    shown = credential(KEY, ATTEMPT)
    secret = shown.rpartition(".")[2]
    quoted = f"GET /x with {shown} failed; key {secret}!".encode()
    blotted = masked(quoted, shown)
    assert secret.encode() not in blotted and len(blotted) == len(quoted)
    assert f"rt-{ROLLOUT}.0a0b.".encode() in blotted
    assert claimed_attempt(shown) == ATTEMPT and claimed_attempt(Holder("sk-1.2.3")) is None
    assert masked(quoted, "sk-a-real-key") == quoted
