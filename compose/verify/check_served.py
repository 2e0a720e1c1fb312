"""Shows that an engine served the weights whose label its calls bear: finds calls, has them recomputed, says so.

In: a run whose broker still answers. Out: whether it is shown, a line for people, verdict.json in the run's `results/`.
Invariant: True only if a version trained in this run was acknowledged, calls bear its label, and their logprobs
recomputed in another process match it. Costs minutes of one CPU core: `demo` asks, other runs' ends do not.
"""

from __future__ import annotations

import msgspec

from tracegrad.schemas.errors import UnavailableError

from ..run.run_dir import write_record
from ..run.show import Show
from ..run.wiring import Wiring
from .recheck_served import Verdict, verify_apart
from .served_proof import find_proof

__all__ = ["check_served", "verdict_line"]


def check_served(wiring: Wiring, show: Show) -> bool:
    """Says and writes the verdict; False when nothing could be shown. Blocking, minutes at most."""
    proof = find_proof(wiring.log(), wiring.topics, wiring.record.hash, wiring.settings.policy.name)
    if isinstance(proof, str):
        show.result("verdict", {"holds": False, "why": proof}, [f"served weights: not shown: {proof}"])
        return False
    show.say(f"recomputing {len(proof.calls)} calls from the published folder, in another process")
    try:
        trainer = wiring.settings.trainer
        verdict = verify_apart(proof, threads=trainer.threads, python=trainer.python)
    except UnavailableError as error:
        show.result("verdict", {"holds": False, "why": str(error)}, [f"served weights: {error}"])
        return False
    write_record(wiring.run_dir.results / "verdict.json", verdict)
    show.result("verdict", msgspec.to_builtins(verdict), [verdict_line(verdict)])
    return verdict.holds


def verdict_line(verdict: Verdict) -> str:
    """For people."""
    if not verdict.holds:
        return f"served weights: {verdict.why}"
    if verdict.num_telling:
        told = (
            f"{verdict.num_telling} of them tell it from version {verdict.previous_version}, all for {verdict.version}"
        )
    elif verdict.num_differing:
        told = (
            f"the {verdict.num_differing} that differ from version {verdict.previous_version} fit {verdict.version} "
            f"better (squared error {verdict.squared_error:.2g} against {verdict.squared_error_previous:.2g})"
        )
    else:
        told = f"version {verdict.previous_version} gives the same"
    return (
        f"served weights: version {verdict.version}, {verdict.num_tokens} tokens of {verdict.num_calls} calls "
        f"recomputed within {verdict.error_max:.1e} nats (rms {verdict.error_rms:.1e}); {told}"
    )
