"""Whether an engine served the weights whose label its calls bear: has calls recomputed, compares, puts it in words.

In: a Proof of served_proof.py. Out: a Verdict, and a line for people.
Invariant: it holds only if the logprobs of calls that bear the version's label match the version's own weights within
the tolerance of its precision; are, wherever one token tells it from the previous version, nearer to its own; and fit
its own better, in sum, over all tokens where the two differ. A coarse tolerance alone would let an older version pass.
Costs minutes of one CPU core. Failure: UnavailableError of the process that recomputes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np

from tests.served.served_proof import Proof
from tracegrad.compose.die_with_parent import guarded
from tracegrad.schemas.errors import UnavailableError

_TIMEOUT_S = 900.0
Rows = list[list[float]]
"""Logprobs, a row a call."""


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


def verify_apart(proof: Proof, *, threads: int = 1) -> Verdict:
    """The verdict on a proof, recomputed in another process. Blocking, minutes at most.

    Raises:
        UnavailableError: that process failed or took too long.
    """
    command = guarded([sys.executable, "-m", "tests.served.recompute"])
    environ = {**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    sequences = [(call.prompt_ids, call.sampled_ids, call.temperature) for call in proof.calls]
    asked = msgspec.json.encode(([proof.folder, proof.previous_folder], sequences, threads))
    try:
        done = subprocess.run(command, input=asked, capture_output=True, timeout=_TIMEOUT_S, env=environ, check=True)
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(
            f"the recomputation of logprobs took longer than {_TIMEOUT_S:g} s; start the run again to repeat it"
        ) from error
    except subprocess.CalledProcessError as error:
        told = error.stderr[-2000:].decode(errors="replace")
        raise UnavailableError(f"the recomputation of logprobs failed:\n{told}") from error
    try:
        own, previous = msgspec.json.decode(done.stdout.splitlines()[-1], type=tuple[Rows, Rows])
        tolerance = tolerance_of(Path(proof.folder))
    except (IndexError, OSError, msgspec.MsgspecError) as error:
        raise UnavailableError(f"expected recomputed logprobs that are numbers, got: {error}") from error
    return compare(proof, own, previous, tolerance=tolerance)


def tolerance_of(folder: Path) -> Tolerance:
    """By the precision in which a version was published."""
    config = msgspec.json.decode((folder / "config.json").read_bytes())
    return EXACT if config.get("dtype", config.get("torch_dtype", "float32")) == "float32" else COARSE


def compare(proof: Proof, own: Rows, previous: Rows, *, tolerance: Tolerance) -> Verdict:
    """The verdict on recorded logprobs, given those recomputed under both versions. Pure."""
    recorded = np.concatenate([call.logprobs for call in proof.calls], dtype=np.float64)
    own_T, previous_T = np.concatenate(own), np.concatenate(previous)
    error, error_previous = np.abs(recorded - own_T), np.abs(recorded - previous_T)
    apart = np.abs(own_T - previous_T)
    is_telling, is_differing = apart > 2 * tolerance.error_max, apart > _DIFFERS
    verdict = Verdict(
        holds=True,
        why="",
        version=proof.version,
        previous_version=proof.previous_version,
        num_calls=len(proof.calls),
        num_tokens=len(recorded),
        error_max=float(error.max()),
        error_rms=float(np.sqrt(np.mean(error**2))),
        num_telling=int(is_telling.sum()),
        num_nearer_previous=int((error_previous <= error)[is_telling].sum()),
        num_differing=int(is_differing.sum()),
        squared_error=float((error[is_differing] ** 2).sum()),
        squared_error_previous=float((error_previous[is_differing] ** 2).sum()),
        tolerance=tolerance,
    )
    why = _why_not(verdict)
    return msgspec.structs.replace(verdict, holds=not why, why=why)


def _why_not(found: Verdict) -> str:
    """What speaks against the version; empty when nothing does."""
    own = f"version {found.version}'s own"
    if found.error_max > found.tolerance.error_max:
        return f"a recorded logprob is {found.error_max:.2g} nats from {own}"
    if found.error_rms > found.tolerance.error_rms:
        return f"the recorded logprobs are {found.error_rms:.2g} nats (rms) from {own}"
    if found.num_nearer_previous:
        return f"{found.num_nearer_previous} tokens are nearer to version {found.previous_version}'s logprobs"
    if found.num_differing and found.squared_error >= found.squared_error_previous:
        return (
            f"versions {found.version} and {found.previous_version} cannot be told apart at this tolerance "
            f"({found.tolerance.error_max:g} nats): over the {found.num_differing} tokens where they differ the "
            f"recorded logprobs fit {found.version} no better (squared error {found.squared_error:.2g}) than "
            f"{found.previous_version} ({found.squared_error_previous:.2g})"
        )
    return ""


def verdict_line(verdict: Verdict) -> str:
    """For people."""
    if not verdict.holds:
        return f"served weights: {verdict.why}"
    previous = f"version {verdict.previous_version}"
    if verdict.num_telling:
        told = f"{verdict.num_telling} of them tell it from {previous}, all for {verdict.version}"
    elif verdict.num_differing:
        errors = f"squared error {verdict.squared_error:.2g} against {verdict.squared_error_previous:.2g}"
        told = f"the {verdict.num_differing} that differ from {previous} fit {verdict.version} better ({errors})"
    else:
        told = f"{previous} gives the same"
    return (
        f"served weights: version {verdict.version}, {verdict.num_tokens} tokens of {verdict.num_calls} calls "
        f"recomputed within {verdict.error_max:.1e} nats (rms {verdict.error_rms:.1e}); {told}"
    )
