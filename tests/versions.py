"""Weight versions made to measure: spans, manifests, claims, acknowledgements, steps, all of one run unless told."""

from __future__ import annotations

from typing import Any

from tracegrad.schemas.ids import RunHash
from tracegrad.schemas.log.protocol import Log
from tracegrad.schemas.records.held_out import HeldOutPass, HeldOutScore, VersionShare
from tracegrad.schemas.records.training import Accounting, TrainingStep
from tracegrad.schemas.records.versions import Version, VersionSpan
from tracegrad.schemas.records.weights import WEIGHTS, EpochClaim, VersionManifest, WeightAck
from tracegrad.schemas.topics import Topic, Topics

RUN = RunHash("7c1f3e9a")
OTHER_RUN = RunHash("0badcafe")


def label(version: int, epoch: int = 1, *, run: RunHash = RUN) -> str:
    """What an engine calls it."""
    return Version(run=run, version=version, epoch=epoch).label


def sampled_by(version: int, epoch: int = 1, *, start: int = 0, run: RunHash = RUN) -> VersionSpan:
    """From this token on the version was sampling."""
    return VersionSpan(run=run, version=version, epoch=epoch, start=start)


def manifest(version: int, epoch: int = 1, **fields: Any) -> VersionManifest:
    """A full version of the next step, without files unless told."""
    defaults: dict[str, Any] = {
        "policy": "policy",
        "run": RUN,
        "base_version": max(0, version - 1),
        "kind": "full",
        "uri": f"/nowhere/{label(version, epoch)}",
        "files": (),
        "step": version,
        "next_offset": 0,
    }
    return VersionManifest(version=version, epoch=epoch, **(defaults | fields))


def claim(epoch: int = 1, *, policy: str = "policy", trainer_id: str = "") -> EpochClaim:
    """A trainer's."""
    return EpochClaim(policy=policy, run=RUN, epoch=epoch, trainer_id=trainer_id or f"t{epoch}")


def ack(version: int, epoch: int = 1, *, engine_id: str = "engine-0") -> WeightAck:
    """An engine serves it."""
    return WeightAck(engine_id=engine_id, policy="policy", run=RUN, version=version, epoch=epoch, load_s=0.1)


def held_out(
    number: int, mean: float | None = None, *, version: int | None = None, since: int = 0, **fields: Any
) -> HeldOutPass:
    """A pass over one task; with its score where `version`, whose score it is, is told."""
    score = HeldOutScore(
        mean=mean, low=mean, high=mean, num_scored=int(mean is not None), version=version,
        versions=() if version is None else (VersionShare(version=version, share=1.0),),
    )  # fmt: skip
    defaults: dict[str, Any] = {"step": 0, "first_group": number, "num_tasks": 1, "num_samples": 1}
    return HeldOutPass(
        policy="policy", run=RUN, number=number, since_version=since, score=None if version is None else score,
        **(defaults | fields),
    )  # fmt: skip


def training_step(number: int, **fields: Any) -> TrainingStep:
    """One that trained on one offset of `transitions` and led to the version of its number."""
    defaults: dict[str, Any] = {
        "epoch": 1, "version": number, "is_updated": True, "begin_offset": number - 1, "next_offset": number,
        "batch_hash": "00", "group_ids": (), "accounting": Accounting(consumed=number, trained=number), "loss": 0.0,
        "grad_norm": 0.0, "learning_rate": 0.0, "reward": None, "num_rollouts": 0, "num_tokens": 0,
    }  # fmt: skip
    return TrainingStep(policy="policy", step=number, **({"run": RUN} | defaults | fields))


def publish(
    log: Log, topics: Topics, version: int, epoch: int = 1, *, claims: bool = False, uri: str = "/nowhere"
) -> None:
    """Appends a manifest to `weights`, after a claim of its epoch if asked; gateways then accept the label."""
    writer = log.writer()
    for record in (claim(epoch), manifest(version, epoch, uri=uri))[not claims :]:
        writer.append(topics.name(Topic.WEIGHTS), key=b"policy", value=WEIGHTS.encode(record)).result(5)
    writer.close()
