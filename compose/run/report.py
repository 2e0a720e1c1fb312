"""The end of a training run: what was learnt, and what became of every call, episode and group.

In: a run whose broker still answers. Out: lines for people, results.json and audit.json in the run's
`results/`, and whether the checks passed, which of a demo hold only if tokens were compared, for an engine that serves
other weights than their label says gives other logprobs; `tell_results` is the first part of it, for a run that a
person ends. Invariant: True only if every id is accounted for. `account` also answers `tracegrad audit`. Failure:
UnavailableError.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from tracegrad.consumers.audit.account import AccountLine, Report, audit
from tracegrad.consumers.engine.weight_sync import verify_version
from tracegrad.consumers.views.held_out import held_out_text
from tracegrad.consumers.views.progress import last_steps
from tracegrad.consumers.views.results import RESULTS_TOPICS, Results, results_of
from tracegrad.consumers.views.watch import fold_present
from tracegrad.producers.llm_gateway.config import RUN_MODEL, PolicyConfig
from tracegrad.schemas.errors import ConfigurationError, UnavailableError
from tracegrad.schemas.log.follow import PATIENCE_S
from tracegrad.schemas.reasons import Reason, row_of
from tracegrad.schemas.records.training import LOGPROB_ERROR_BOUND
from tracegrad.schemas.records.versions import Version, parse_label
from tracegrad.schemas.records.weights import folder_of
from tracegrad.schemas.topics import Topic

from ..engine.fetch_model import with_local_model
from ..files import write_record
from .run_dir import AUDIT, RunDir
from .show import Show
from .view_state import run_state
from .wiring import Wiring

_RESULTS = "results.json"
_NAMED, _CAUSES = 20, 3
_LAST_WORDS_S = 3.0
"""A run that a person stops waits no longer for a broker that may be what failed."""


def make_report(wiring: Wiring, show: Show) -> bool:
    """Reads, checks, writes and prints; returns whether the checks passed."""
    folder = wiring.run_dir.results
    _make_results(wiring, show, patience_s=PATIENCE_S)
    report = account(wiring, is_live=False)
    write_record(folder / AUDIT, report)
    show.result("audit", msgspec.to_builtins(report), report_lines(report))
    model, results = newest_folder(wiring.run_dir.weights), read_results(wiring.run_dir)
    show.result(
        "files",
        {"results": str(folder), "model": model},
        [f"results: {folder}", f"model: {model or 'none was published'}"],
    )
    assert results is not None
    has_learned = not results.steps or bool(results.version or results.num_unpublished)
    if not has_learned or results.causes:
        show.result("causes", {"has_learned": has_learned}, causes_lines(results))
    return report.is_complete and has_learned


def demo_report(wiring: Wiring, show: Show) -> bool:
    """The report of every run; returns whether it holds, and sampler and trainer agree."""
    is_complete, results = make_report(wiring, show), read_results(wiring.run_dir)
    assert results is not None
    why = ""
    if not results.num_checked_tokens:
        why = "no token was compared: none was sampled by the version that trained on it"
    elif results.logprob_error_max > LOGPROB_ERROR_BOUND:
        why = (
            f"sampler and trainer differ by {results.logprob_error_max:.2g} nats, expected {LOGPROB_ERROR_BOUND:g} at "
            "most; the engine serves other weights, or samples otherwise than it reports"
        )
    if why:
        show.result("served", {"holds": False, "why": why}, [f"served weights: {why}"])
    return is_complete and not why


def tell_results(wiring: Wiring, show: Show) -> None:
    """Results of what there is, while the processes run; waits for a few seconds at most."""
    try:
        _make_results(wiring, show, patience_s=_LAST_WORDS_S)
    except UnavailableError as error:
        show.say(f"no results: {error}")


def _make_results(wiring: Wiring, show: Show, *, patience_s: float) -> None:
    state, folder = run_state(wiring), wiring.run_dir.results
    topics = (*RESULTS_TOPICS, *([Topic.EPISODES] if wiring.settings.tasks is not None else []))
    fold_present(wiring.log(), wiring.topics, state, topics, patience_s=patience_s)
    results = results_of(state, run=wiring.record.name)
    write_record(folder / _RESULTS, results)
    fields = msgspec.to_builtins(results)
    fields.pop("curves")
    has_begun = results.steps or results.held_out
    show.result("results", fields, results_lines(results) if has_begun else ["no step was taken"])


def read_results(run_dir: RunDir) -> Results | None:
    """What the last report of a run says, with the best version's folder as it lies now; None: it made none."""
    try:
        results = msgspec.json.decode((run_dir.results / _RESULTS).read_bytes(), type=Results)
    except (OSError, msgspec.DecodeError):
        return None
    best = results.best
    if best is None or best.folder is None:
        return results
    folder = folder_of(best.folder, run_dir.weights)
    return msgspec.structs.replace(results, best=msgspec.structs.replace(best, folder=folder))


def account(wiring: Wiring, *, is_live: bool) -> Report:
    """The accounting of the run."""
    return audit(
        wiring.kafka(),
        wiring.topics,
        wiring.record.hash,
        wiring.settings.policy.name,
        ring=wiring.ring,
        starts=wiring.run_dir.starts,
        is_live=is_live,
        # Wherever it lies, as its own run says.
        look=lambda manifest: verify_version(manifest, os.path.dirname(manifest.uri)),
        weight_root=str(wiring.run_dir.weights),
        num_kept=wiring.settings.trainer.keep_versions,
        trains_captured=wiring.settings.select.train,
        takes_feedback=wiring.settings.feedback is not None,
    )


def report_lines(report: Report) -> list[str]:
    """For people."""
    lines = [
        _unit_line(name, unit)
        for name, unit in (("calls", report.calls), ("episodes", report.episodes), ("groups", report.groups))
    ]
    lines += [f"  {reason}" for reason in report.groups.reasons]
    if report.feedback.total:
        lines.append(_unit_line("feedback", report.feedback))
    if report.expired:
        lines.append(f"not judged where retention has taken records: {', '.join(report.expired)}")
    if report.num_unverified:
        lines.append(f"{report.num_unverified} records were left out, for no key of the run says who wrote them:")
        lines += _some(report.unverified, report.num_unverified)
    if report.is_complete:
        return [*lines, "every id is accounted for"]
    lines.append(f"{report.num_missing} not accounted for:")
    return lines + _some(report.missing, report.num_missing)


def _some(named: list[str], num: int) -> list[str]:
    return [f"  {text}" for text in named[:_NAMED]] + ([f"  ... and {num - _NAMED} more"] if num > _NAMED else [])


def _unit_line(name: str, unit: AccountLine) -> str:
    terms = " + ".join(f"{count} {term}" for term, count in unit.terms.items())
    return f"{name:9} {unit.total} = {terms or '0'}"


def results_lines(results: Results) -> list[str]:
    """For people."""
    phases = ", ".join(f"{name} {seconds:.1f}" for name, seconds in results.seconds.items())
    last = "-" if results.reward_last_ten is None else f"{results.reward_last_ten:.3f}"
    lines = [
        f"held-out before: {held_out_text(results.before)}",
        f"held-out after:  {held_out_text(results.after)}",
    ]
    if (best := results.best) is not None:
        lines.append(
            f"best version:    {best.version}, {best.score.mean:.3f} held-out at step {best.score.step}: {best.folder}"
        )
    if results.num_unpublished:
        lines.append(
            f"newest version:  {results.version}, without the last {results.num_unpublished} updates: they are in the "
            "checkpoint, and the same command goes on from there"
        )
    return [
        *lines,
        f"{results.steps} steps, mean reward of {last_steps(results.steps)} {last}, "
        f"staleness mean {results.staleness_mean:.2f} max {results.staleness_max}, "
        f"sampler and trainer differ by at most {results.logprob_error_max:.1e} nats",
        f"seconds: {phases}",
    ]


def causes_lines(results: Results) -> list[str]:
    """Why attempts had nothing to train on, the commonest first."""
    lines = [f"cause: {cause.text}" for cause in results.causes[:_CAUSES]]
    stds = [std for std in results.curves.get("reward_std", []) if std is not None]
    if stds and not (any(stds) or results.version or results.num_unpublished):
        why = row_of(Reason.NO_ADVANTAGE)
        lines.append(f"nothing was trained: {why.sentence} {why.remedy}")
    return lines


def version_folders(weights: Path) -> dict[Version, Path]:
    """What lies under a run's weights, the newest last: a later epoch took the place of what an earlier one made."""
    found = {version: path for path in weights.iterdir() if path.is_dir() and (version := parse_label(path.name))}
    return dict(sorted(found.items(), key=lambda item: (item[0].epoch, item[0].version)))


def newest_folder(weights: Path) -> str | None:
    """The folder of the newest version under a run's weights; None without one."""
    return next((str(path) for path in reversed(version_folders(weights).values())), None)


def served_folder(wiring: Wiring, version: int | None) -> tuple[str, int]:
    """Where a version lies, and its number. None: the best that the held-out tasks found, else the newest, also where
    none did better than the model that training began with.

    Raises ConfigurationError when it lies nowhere.
    """
    # Not by the topics, whose broker has gone with the run.
    there, results = version_folders(wiring.run_dir.weights), read_results(wiring.run_dir)
    best = results.best if results is not None else None
    if version is None and best is not None and best.version > 0 and best.folder and Path(best.folder).is_dir():
        return best.folder, best.version
    newest_first = list(reversed(there))
    wanted = version if version is not None else newest_first[0].version if newest_first else 0
    for found in newest_first:
        if found.version == wanted:
            return str(there[found]), wanted
    if wanted == 0:
        return wiring.settings.policy.needed_model(), 0
    have = ", ".join(str(number) for number in sorted({0, *(found.version for found in there)}))
    raise ConfigurationError(f"--version {wanted}: its folder is gone ([trainer] keep_versions); there are {have}")


def with_start_model(policy: PolicyConfig, run_dir: RunDir, say: Callable[[str], None]) -> PolicyConfig:
    """The policy with a folder as model: of `run:NAME` the best version of a run beside this one, looked up once; a
    name on the hub is fetched. Raises ConfigurationError."""
    name = policy.model or ""
    if not name.startswith(RUN_MODEL):
        return with_local_model(policy, say)
    if run_dir.config.exists():
        return msgspec.structs.replace(policy, model=run_dir.settings.policy.model)
    other = RunDir.open(run_dir.path.parent / name.removeprefix(RUN_MODEL))
    folder, version = served_folder(Wiring(other), None)
    say(f"[policy] model = {name}: version {version}, in {folder}")
    return msgspec.structs.replace(policy, model=folder)
