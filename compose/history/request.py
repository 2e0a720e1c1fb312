"""What a replay is asked for, and whether a folder may hold it.

In: a request, the source's folder, the new run's settings and folder. Out: the request as it was made first, kept in
`replay.json`. Invariant: a folder holds one replay, so that what is made again there is what lies there; a run of its
own, or a replay of something else, is never written to. Failure: ConfigurationError that names what differs.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path
from typing import Literal

import msgspec

from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.log.where import Term
from tracegrad.schemas.topics import INPUTS, Stage, Topics
from tracegrad.streams.config import HistoryConfig
from tracegrad.trainer.history.compare import TrainingInputs, changed_keys, changed_machine
from tracegrad.trainer.history.config import Mode

from ..files import write_record
from ..run.run_dir import ReplayRecord, RunDir
from ..run.settings import RunSettings

DryRun = Literal["count", "full"]
"""Write nothing: count what there is to read, or fold it too."""
_RULES = ("air", "credit", "feedback", "policy", "reward", "select", "streams")
"""Sections by which the same records become the same transitions; and `history`, where there is one."""


class ReplayRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What of a history is meant, and what is to be done with it."""

    source: Path
    """The source run's folder."""
    asked: str = ""
    """The options that say what of it is meant, in the user's words: how long ago something was is another time at each
    command."""
    begin_ms: int | None = None
    """Groups that began at this time or later (ms since the epoch, by the records' own times); None: all."""
    end_ms: int | None = None
    """And before this time."""
    where: tuple[Term, ...] = ()
    """Groups of which an episode fits."""
    reclose: bool = False
    """Not by what the source recorded: everything is assembled anew."""
    dry_run: DryRun | None = None
    """None: write."""
    mode: Mode | None = None
    """How it is trained on; None: not at all."""
    grader: str = ""
    """Digest of the grader by which outputs are graded anew; empty: what was said of them stays."""


def known_source(path: Path) -> Path | None:
    """The source's folder, of a replay that was begun in a folder; None where there is none."""
    replayed = RunDir(path.absolute()).replayed
    return Path(replayed.source) if replayed is not None else None


def check_source(request: ReplayRequest, source: RunDir) -> None:
    """Refuses a request that contradicts itself, and what holds no history of its own, or not all of it yet. Raises
    ConfigurationError."""
    if (replayed := source.replayed) is not None:
        raise ConfigurationError(
            f"run {source.record.name} is itself a replay, whose records lie on the log that it was made of: name that "
            f"run, --source-dir {replayed.source}"
        )
    if request.where and request.reclose:
        raise ConfigurationError(
            "--where, --reclose: the source's episodes are chosen by what stands on them, and --reclose makes others; "
            "leave one of them out"
        )
    if request.mode == "same" and source.is_locked():
        raise ConfigurationError(
            f"--mode same: expected a source that has ended, got run {source.record.name}, which goes on, or is read "
            "by another command; stop it, or await that, first"
        )


def check_same(request: ReplayRequest, source: RunSettings, settings: RunSettings) -> list[str]:
    """What of the machine differs, so that bits may. Raises ConfigurationError where mode `same` cannot repeat the
    source: what is learnt would be another thing."""
    was, now = (TrainingInputs(one.trainer, one.algorithm, one.seed) for one in (source, settings))
    changed = changed_keys(was, now)
    rules_was, rules_now = _digests(source), _digests(settings)
    changed += [f"[{section}]" for section in _RULES if rules_was[section] != rules_now[section]]
    if request.where or (request.begin_ms, request.end_ms) != (None, None):
        changed.append("a part of the history (--from, --to, --where)")
    if request.reclose:
        changed.append("other closes (--reclose)")
    if request.grader:
        changed.append("other rewards (--grader)")
    if changed:
        raise ConfigurationError(
            f"--mode same: expected all that the source did, got {'; '.join(changed)}: leave that out, or take "
            "--mode offline"
        )
    return changed_machine(was, now)


def remembered(request: ReplayRequest, source: RunDir, settings: RunSettings, run_dir: RunDir) -> ReplayRequest:
    """The request, with the window of the first command where this is another of the same. Raises ConfigurationError
    where the folder holds something else."""
    before = run_dir.replayed
    if before is None:
        if run_dir.is_made:
            raise ConfigurationError(
                f"--into {settings.run}: expected a new run's name, or that of a replay to go on with, got run "
                f"{settings.run!r} in {run_dir.path}, which is none; choose another"
            )
        return request
    changed = _changed(before, _replayed(request, source, settings))
    if None not in (before.mode, request.mode):
        changed += _other_training(settings, run_dir)
    if changed:
        raise ConfigurationError(
            f"--into {settings.run}: {run_dir.path} holds a replay with another {', '.join(changed)}; give the same "
            "command to go on with it, or another name"
        )
    return msgspec.structs.replace(request, begin_ms=before.begin_ms, end_ms=before.end_ms)


def remember(
    request: ReplayRequest, source: RunDir, settings: RunSettings, run_dir: RunDir, *, is_folded: bool = False
) -> None:
    """Keeps it, before the run is made, and again when all is folded. The caller holds the folder's lock."""
    before = run_dir.replayed or _replayed(request, source, settings)
    # What was only folded may be trained on later.
    kept = msgspec.structs.replace(before, mode=before.mode or request.mode, is_folded=before.is_folded or is_folded)
    write_record(run_dir.replay_file, kept)


def _replayed(request: ReplayRequest, source: RunDir, settings: RunSettings) -> ReplayRecord:
    return ReplayRecord(
        source=str(source.path),
        hash=source.record.hash,
        asked=request.asked,
        begin_ms=request.begin_ms,
        end_ms=request.end_ms,
        reclose=request.reclose,
        mode=request.mode,
        grader=request.grader,
        rules=_digests(settings),
    )


def _changed(before: ReplayRecord, own: ReplayRecord) -> list[str]:
    """The words on what differs."""
    modes = (before.mode, own.mode)
    pairs: dict[str, tuple[object, object]] = {
        "source": (before.hash, own.hash),
        "choice (--from, --to, --where)": ((before.asked, before.begins), (own.asked, own.begins)),
        "--grader": (before.grader, own.grader),
        "--reclose": (before.reclose, own.reclose),
        "--mode": modes if None not in modes else ("", ""),
        **{f"[{name}]": (before.rules.get(name, ""), digest) for name, digest in own.rules.items()},
    }
    return [what for what, (was, now) in pairs.items() if was != now]


def _digests(settings: RunSettings) -> dict[str, str]:
    """Of each section of rules: they may hold keys and tokens, which belong in one file. Which runs are taken too is
    the source's and the replay's own business, how many workers fold changes nothing, and the start model is known by
    its bytes, to the trainer."""
    sections = {name: getattr(settings, name) for name in _RULES}
    sections["select"] = msgspec.structs.replace(settings.select, runs=())
    sections["streams"] = msgspec.structs.replace(settings.streams, workers=1)
    sections["policy"] = msgspec.structs.replace(settings.policy, model=None)
    code = {"air": settings.air.function, "credit": settings.credit.strategy}
    found = {}
    for name, section in sections.items():
        digest = hashlib.sha256(msgspec.json.encode(section, order="deterministic"))
        if ":" in (reference := code.get(name) or ""):
            with contextlib.suppress(ConfigurationError):  # of rules that are off: the source's file may have moved
                digest.update(code_digest(reference).encode())
        found[name] = digest.hexdigest()
    if settings.history is not None:  # a replay that was begun before there was this section goes on
        found |= _history_digests(settings.history, settings)
    return found


def _history_digests(history: HistoryConfig, settings: RunSettings) -> dict[str, str]:
    """Of the section with the files that it names, and of what makes the policy's token ids of words."""
    from .history_model import load_renderer

    digest = hashlib.sha256(msgspec.json.encode(history, order="deterministic"))
    for file in filter(None, (history.tools, history.tasks, history.rewards)):
        digest.update(Path(file).read_bytes())
    if history.task is not None:
        digest.update(code_digest(history.task).encode())
    return {"history": digest.hexdigest(), **load_renderer(settings).digests._asdict()}


def code_digest(reference: str) -> str:
    """Of the file and the name of `file.py:name`: whoever goes on with a replay goes on by the same code. What the file
    imports is not looked at. Raises ConfigurationError where it cannot be read."""
    file, _, name = reference.rpartition(":")
    try:
        return hashlib.sha256(Path(file).read_bytes() + b"\0" + name.encode()).hexdigest()
    except OSError as error:
        raise ConfigurationError(f"{reference}: expected a file of code that can be read, got: {error}") from error


def _other_training(settings: RunSettings, run_dir: RunDir) -> list[str]:
    """What is not learnt as it was begun; the model would be of both."""
    if not run_dir.config.exists():
        return []
    before = run_dir.settings
    was, now = (TrainingInputs(one.trainer, one.algorithm, one.seed) for one in (before, settings))
    return [*changed_keys(was, now), *(["[replay]"] if before.replay != settings.replay else [])]


def topics_between(source: Topics, own: Topics) -> Topics:
    """What a fold is told: raw topics are read by the source's names, all others are the new run's."""
    raw = {topic.value: source.name(topic) for topic in INPUTS[Stage.NORMALIZE]}
    return msgspec.structs.replace(own, renames={**own.renames, **raw})
