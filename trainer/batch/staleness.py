"""How old a token is: over how many versions the trainer went on since the version that sampled it.

In: the manifests of the run's versions. Out: a count. Pure. Invariant: a step counts once, however many numbers it was
published under, so that a trainer that was killed, and learnt otherwise when it repeated its steps (on a GPU), finds
tokens as old as it had found them. Failure: none; of a version without a manifest its number tells.
"""

from __future__ import annotations

from collections.abc import Mapping

from tracegrad.schemas.records.weights import VersionManifest


def staleness(sampled_by: int, present: int, manifests: Mapping[int, VersionManifest]) -> int:
    """The staleness, at the run's version `present`, of a token that its version `sampled_by` sampled.

    It is the number of steps that led to a version after the one behind `sampled_by` and not after the one behind
    `present`; a rollback, which no step led to, counts as one too. A version ahead of `present` is not old: 0. Where
    `manifests`, by number, lack one of both, it is the difference of their numbers. A rollback that a kill undid, and
    that was done again, counts twice: so such a token is older here than it is, never younger.

    Example: steps 2 and 3 were done again after a kill, with other weights, and the run was rolled back to version 1.

        version    0   1   2   3   4   5   6
        step       0   1   2   3   2   3   3, a rollback

    At version 6 a token of version 1 has staleness 3 (steps 2 and 3, the rollback), one of version 2 or 4 has 2, of 3
    or 5 it has 1. At version 5 one of version 2 has 1, and one of version 3 has 0.
    """
    if sampled_by not in manifests or present not in manifests:
        return max(0, present - sampled_by)
    oldest, newest = _place(manifests[sampled_by], manifests), _place(manifests[present], manifests)
    places = {_place(manifest, manifests) for manifest in manifests.values() if manifest.step <= newest[0]}
    return sum(oldest < place <= newest for place in places)


def _place(manifest: VersionManifest, manifests: Mapping[int, VersionManifest]) -> tuple[int, int]:
    """In the order of training: the step, and behind its own version the rollbacks after it, each by its number."""
    base, weights = manifests.get(manifest.base_version), manifest.weights
    is_rollback = base is not None and base is not manifest and weights is not None and base.weights == weights
    return manifest.step, manifest.version if is_rollback else 0
