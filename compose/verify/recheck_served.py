"""Whether an engine really served the version whose label its calls bear: logprobs recomputed in another process.

In: a Proof (`served_proof.py`) as msgpack on stdin of `python -m tracegrad.compose.verify.recheck_served`. Out: a
Verdict as JSON on stdout, and the exit status: 0 it did, 1 not. Invariant: the recorded logprobs must match the
version's own weights within the tolerance of its precision; wherever one token tells it from the previous version, be
nearer to its own; and fit its own better, in sum, over all tokens where the two differ. A coarse tolerance alone would
let an older version pass.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tracegrad.schemas.errors import TracegradError, UnavailableError

from ..run.die_with_parent import guarded
from .served_proof import Proof

__all__ = ["COARSE", "EXACT", "Tolerance", "Verdict", "compare", "main", "verify_apart"]

_TIMEOUT_S = 900.0


class Tolerance(msgspec.Struct, frozen=True, kw_only=True):
    """Of recorded to recomputed logprobs, in nats."""

    error_max: float
    """Of any token."""
    error_rms: float
    """Over all tokens."""


EXACT = Tolerance(error_max=1e-3, error_rms=1e-3)
COARSE = Tolerance(error_max=1.0, error_rms=0.1)
"""bfloat16: logits near 20 lie 0.125 apart, and two implementations round at different places. Measured for a model of
0.5 B parameters over 385 tokens: rms 0.033, greatest 0.26, at tokens of low probability."""
_DIFFERS = 2 * EXACT.error_max
"""Nats between the two versions' own logprobs, both recomputed in one way, beyond which they differ at a token."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What the recomputation found."""

    holds: bool
    why: str
    """Empty when it holds."""
    version: int
    previous_version: int
    num_calls: int
    num_tokens: int
    error_max: float
    """Greatest difference to the version's own logprobs, in nats."""
    error_rms: float
    """Root of the mean squared difference over all tokens."""
    num_telling: int
    """Tokens whose logprob differs between the two versions by more than twice `tolerance.error_max`."""
    num_nearer_previous: int
    """Of those, nearer to the previous version: must be 0."""
    num_differing: int
    """Tokens at which the two versions differ at all; 0 says that both give the same."""
    squared_error: float
    """Over those, the sum of the squared differences to the version's own logprobs."""
    squared_error_previous: float
    """And to the previous version's: must be greater."""
    tolerance: Tolerance


def compare(
    proof: Proof, own: Sequence[Sequence[float]], previous: Sequence[Sequence[float]], *, tolerance: Tolerance
) -> Verdict:
    """The verdict on recorded logprobs, given those recomputed under both versions. Pure."""
    tokens = [
        (recorded, mine, other)
        for call, mine_of, other_of in zip(proof.calls, own, previous, strict=True)
        for recorded, mine, other in zip(call.logprobs, mine_of, other_of, strict=True)
    ]
    errors = [abs(recorded - mine) for recorded, mine, _ in tokens]
    telling = [token for token in tokens if abs(token[1] - token[2]) > 2 * tolerance.error_max]
    nearer = sum(abs(recorded - other) <= abs(recorded - mine) for recorded, mine, other in telling)
    error_max = max(errors, default=0.0)
    error_rms = math.sqrt(math.fsum(error * error for error in errors) / max(1, len(errors)))
    differing = [token for token in tokens if abs(token[1] - token[2]) > _DIFFERS]
    squared_error = math.fsum((recorded - mine) ** 2 for recorded, mine, _ in differing)
    squared_error_previous = math.fsum((recorded - other) ** 2 for recorded, _, other in differing)
    why = ""
    if not tokens:
        why = "no token to compare"
    elif error_max > tolerance.error_max:
        why = f"a recorded logprob is {error_max:.2g} nats from version {proof.version}'s own"
    elif error_rms > tolerance.error_rms:
        why = f"the recorded logprobs are {error_rms:.2g} nats (rms) from version {proof.version}'s own"
    elif nearer:
        why = f"{nearer} tokens are nearer to version {proof.previous_version}'s logprobs"
    elif differing and squared_error >= squared_error_previous:
        why = (
            f"versions {proof.version} and {proof.previous_version} cannot be told apart at this tolerance "
            f"({tolerance.error_max:g} nats): over the {len(differing)} tokens where they differ the recorded logprobs "
            f"fit {proof.version} no better (squared error {squared_error:.2g}) than {proof.previous_version} "
            f"({squared_error_previous:.2g})"
        )
    return Verdict(
        holds=not why,
        why=why,
        version=proof.version,
        previous_version=proof.previous_version,
        num_calls=len(proof.calls),
        num_tokens=len(tokens),
        error_max=error_max,
        error_rms=error_rms,
        num_telling=len(telling),
        num_nearer_previous=nearer,
        num_differing=len(differing),
        squared_error=squared_error,
        squared_error_previous=squared_error_previous,
        tolerance=tolerance,
    )


def verify_apart(proof: Proof, *, threads: int = 1, python: str | None = None) -> Verdict:
    """Checks the proof in another process, of the trainer's interpreter. Blocking, minutes at most.

    Raises:
        UnavailableError: that process failed or took too long.
    """
    command = guarded([python or sys.executable, "-m", "tracegrad.compose.verify.recheck_served"])
    environ = {**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    try:
        given = msgspec.msgpack.encode(proof)
        done = subprocess.run(command, input=given, capture_output=True, timeout=_TIMEOUT_S, env=environ, check=False)
        return msgspec.json.decode(done.stdout.strip().splitlines()[-1], type=Verdict)
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(
            f"the recomputation of logprobs took longer than {_TIMEOUT_S:g} s; start the run again to repeat it"
        ) from error
    except (IndexError, msgspec.DecodeError, msgspec.ValidationError) as error:
        raise UnavailableError(
            f"the recomputation of logprobs failed:\n{done.stderr[-2000:].decode(errors='replace')}"
        ) from error


def _tolerance(folder: Path) -> Tolerance:
    config = msgspec.json.decode((folder / "config.json").read_bytes())
    return EXACT if config.get("dtype", config.get("torch_dtype", "float32")) == "float32" else COARSE


def main() -> int:
    """The process; returns its exit status."""
    from tracegrad.trainer.model.recompute import recompute_logprobs

    try:
        proof = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Proof)
        sequences = [(call.prompt_ids, call.sampled_ids, call.temperature) for call in proof.calls]
        threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
        own = recompute_logprobs(Path(proof.folder), sequences, threads=threads)
        previous = recompute_logprobs(Path(proof.previous_folder), sequences, threads=threads)
        verdict = compare(proof, own, previous, tolerance=_tolerance(Path(proof.folder)))
    except (OSError, TracegradError, msgspec.DecodeError, msgspec.ValidationError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(msgspec.json.encode(verdict).decode() + "\n")
    return 0 if verdict.holds else 1


if __name__ == "__main__":
    sys.exit(main())
