"""A held-out pass as people see it: one line, and the same for machines.

In: a pass on `weights`. Out: `HeldOut`, JSON-able, and words. Invariant: it never says less than which versions it is a
score of. Failure: none; a pass without a score is none yet.
"""

from __future__ import annotations

import msgspec

from tracegrad.schemas.records.held_out import HeldOutPass, HeldOutScore


class HeldOut(HeldOutScore, frozen=True, kw_only=True):
    """One pass over the held-out tasks: its score, and which pass it is."""

    number: int
    """From 0, before training."""
    step: int
    """After which it was due."""
    num_tasks: int


def held_out_of(held_out: HeldOutPass) -> HeldOut | None:
    """What a pass came to; None while it is under way."""
    score = held_out.score
    if score is None:
        return None
    fields = msgspec.structs.asdict(score)
    return HeldOut(number=held_out.number, step=held_out.step, num_tasks=held_out.num_tasks, **fields)


def held_out_text(held_out: HeldOut | None) -> str:
    """Mean, interval, and whose they are."""
    if held_out is None:
        return "not run"
    if held_out.mean is None:
        return f"none of {held_out.num_tasks} scored"
    unscored = held_out.num_tasks - held_out.num_scored
    tail = f", {unscored} unscored" if unscored else ""
    passed = "".join(f", pass@{one.k} {one.share:.3f}" for one in held_out.pass_at)
    return (
        f"{held_out.mean:.3f} (95% {held_out.low:.3f} to {held_out.high:.3f}, {held_out.num_scored} tasks{tail})"
        f"{passed}{_of(held_out)}"
    )


def _of(held_out: HeldOut) -> str:
    """The versions that it is a score of."""
    shares = {one.version: one.share for one in held_out.versions}
    if held_out.version is None or len(shares) < 2:
        return "" if held_out.version is None else f", version {held_out.version}"
    most = f"{held_out.version} most ({shares.get(held_out.version, 0.0):.0%})"
    return f", versions {min(shares)} to {max(shares)}, {most}"
