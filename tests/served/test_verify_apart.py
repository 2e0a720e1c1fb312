"""Logprobs recomputed, also in another process: they match the weights that made them, not the version before."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest

from tests.served.served_proof import Proof, ServedCall
from tests.served.verdict import Verdict, compare, tolerance_of, verify_apart
from tracegrad.schemas.errors import UnavailableError

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def proof(tmp_path_factory: pytest.TempPathFactory) -> Proof:
    """Three calls that version 2 sampled; version 1 has other weights."""
    from tests.served.recompute import recompute_logprobs
    from tests.tiny_models import make_model

    root = tmp_path_factory.mktemp("versions")
    make_model(root / "v1-e1", seed=1)
    make_model(root / "v2-e1", seed=2)
    sequences = [([1, 2, 3], [4, 5], 1.0), ([1, 2, 3, 4, 5, 9], [7], 0.7), ([8], [9, 10, 11], 0.0)]
    logprobs = recompute_logprobs(root / "v2-e1", sequences)
    return Proof(
        version=2,
        folder=str(root / "v2-e1"),
        previous_version=1,
        previous_folder=str(root / "v1-e1"),
        calls=tuple(
            ServedCall(prompt_ids=prompt, sampled_ids=sampled, logprobs=found, temperature=temperature)
            for (prompt, sampled, temperature), found in zip(sequences, logprobs, strict=True)
        ),
    )


def judge(proof: Proof) -> Verdict:
    """What verify_apart does, in this process, which has the other one's libraries already."""
    from tests.served.recompute import recompute_logprobs

    sequences = [(call.prompt_ids, call.sampled_ids, call.temperature) for call in proof.calls]
    own, previous = (recompute_logprobs(Path(at), sequences) for at in (proof.folder, proof.previous_folder))
    return compare(proof, own, previous, tolerance=tolerance_of(Path(proof.folder)))


def test_the_version_that_served_is_confirmed(proof: Proof) -> None:
    """Every token matches; most tell the two versions apart."""
    verdict = verify_apart(proof)
    assert verdict.holds, verdict.why
    assert verdict.num_tokens == 6 and verdict.num_telling >= 4 and verdict.error_max < 1e-5


def test_a_label_on_the_wrong_weights_is_found(proof: Proof) -> None:
    """The calls claim version 1, whose folder gives other logprobs."""
    swapped = msgspec.structs.replace(proof, folder=proof.previous_folder, previous_folder=proof.folder)
    verdict = judge(swapped)
    assert not verdict.holds and verdict.num_nearer_previous == verdict.num_telling > 0


@pytest.mark.parametrize(
    ("dtype", "shift", "why"),
    [
        ("float32", 0.05, "nats from version 2's own"),
        ("bfloat16", 0.05, ""),
        ("bfloat16", 0.3, "nats (rms) from version 2's own"),
        ("bfloat16", 1.5, "nats from version 2's own"),
    ],
)
def test_the_tolerance_follows_the_versions_precision(
    dtype: str, shift: float, why: str, proof: Proof, tmp_path: Path
) -> None:
    """One call is off by so much; a folder says by itself in which precision it was published."""
    folder = tmp_path / "v2-e1"
    shutil.copytree(proof.folder, folder)
    config = msgspec.json.decode((folder / "config.json").read_bytes())
    (folder / "config.json").write_bytes(msgspec.json.encode(config | {"dtype": dtype}))
    first, *rest = proof.calls
    off = msgspec.structs.replace(first, logprobs=[value - shift for value in first.logprobs])
    verdict = judge(msgspec.structs.replace(proof, folder=str(folder), calls=(off, *rest)))
    assert verdict.holds is not bool(why) and why in verdict.why


def test_a_folder_that_is_no_model_is_said_so(proof: Proof, tmp_path: Path) -> None:
    """Not a traceback of another process."""
    broken = msgspec.structs.replace(proof, folder=str(tmp_path))
    with pytest.raises(UnavailableError, match="cannot open the version"):
        verify_apart(broken)


def test_logprobs_that_are_no_numbers_are_told_as_such(proof: Proof, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version whose weights give NaN cannot be confirmed; nothing ends in a traceback."""
    answer = subprocess.CompletedProcess([], 0, stdout=b"[[[null]],[[null]]]\n", stderr=b"")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: answer)
    with pytest.raises(UnavailableError, match="expected recomputed logprobs that are numbers"):
        verify_apart(proof)
