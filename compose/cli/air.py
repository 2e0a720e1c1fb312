"""`air`: ask why calls are worth what they are, and what other rules would have made of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.metrics import Metrics
from tracegrad.schemas.records.calls import Purpose
from tracegrad.schemas.records.episodes import Episode
from tracegrad.schemas.text import one_line

from ..run.wiring import Wiring
from .common import RUNS, JsonFlag, RunOption, RunsDirOption, answering, echo, find_run, load_settings
from .replay_command import From, Source, To, history_range

if TYPE_CHECKING:
    from tracegrad.streams.compare import Comparison

_SHOWN = 5
"""Of groups' ids; JSON has all."""

app = typer.Typer(
    help="Explain the intermediate rewards (AIR) of an episode, or compare two sets of rules.", no_args_is_help=True
)


@app.command("explain")
def explain_episode(
    episode: Annotated[str, typer.Argument(help="Id of an episode or a rollout, or the beginning of one.")],
    run: RunOption = None,
    runs_dir: RunsDirOption = RUNS,
    as_json: JsonFlag = False,
) -> None:
    """Show what each call of an episode earned, and the parts that add up to it.

    Example: tracegrad air explain 1f2e3d4c0123456789ab
    """
    from tracegrad.streams.explain import explain

    from ..history.episodes import as_credited

    with answering(find_run(run, runs_dir)) as wiring:
        found, settings = as_credited(wiring, _find(wiring, episode)), wiring.settings
    calls = explain(found, settings.credit, settings.air)
    if as_json:
        told = [{**one._asdict(), "credit": one.credit._asdict(), "sum": one.sum} for one in calls]
        echo(
            msgspec.json.encode({"episode_id": found.episode_id, "air_rules": found.air_rules, "calls": told}).decode()
        )
        return
    is_changed = found.air_rules != settings.air.digest
    rules = f"rules {found.air_rules or 'none'}{' (not those of the settings now)' if is_changed else ''}"
    echo(f"episode {found.episode_id}: {found.state}, reward {found.reward}, {len(calls)} calls, {rules}")
    for one in calls:
        echo(one_line(f"{one.call_id} {one.credit.peers}: return {one.credit.return_:g}"))
        for part in one.parts:
            factor = "" if part.factor == 1.0 else f" x {part.factor:g}"
            words = (f"{part.value:+g}{factor}", part.what, part.call_id, part.why)
            echo("  " + one_line(" ".join(filter(None, words))))


def _find(wiring: Wiring, wanted: str) -> Episode:
    """The episode of that id; of a rollout the one by which it counts."""
    from ..history.episodes import episodes_of

    matching = {one.episode_id: one for one in episodes_of(wiring) if one.episode_id.startswith(wanted)}
    exact = [
        one for one in matching.values() if one.episode_id == wanted or (one.rollout_id == wanted and one.is_final)
    ]
    found = exact or list(matching.values())
    if len(found) != 1:
        which = ", ".join(sorted(one.episode_id for one in found)[:5])
        raise ConfigurationError(
            f"{wanted}: expected the id of one episode, got {len(found)}"
            + (f" ({which}, ..); give more of it" if found else "; `tracegrad tail episodes` shows them")
        )
    return found[0]


@app.command("compare")
def compare_rules(
    a: Annotated[Path, typer.Argument(help="A TOML file, of which \\[air] and \\[credit] count.")],
    b: Annotated[Path, typer.Argument(help="The other one.")],
    from_: From = "earliest",
    to: To = None,
    source_dir: Source = None,
    runs_dir: RunsDirOption = RUNS,
    as_json: JsonFlag = False,
) -> None:
    """Compare what the rules of two files would have paid a run's training episodes; nothing is sampled.

    Example: tracegrad air compare now.toml other.toml --from run:mine
    """
    from tracegrad.streams.assemble.air.apply import Rewarder
    from tracegrad.streams.compare import Side, compare

    from ..history.episodes import episodes_of

    meant = history_range(from_, to, source_dir, runs_dir)
    sides = []
    for file in (a, b):
        # Rules may lie alone in a file: no run comes of it, whose name it would have to tell.
        settings = load_settings(file, {"run": "compared"}, for_training=False)
        sides.append(Side(Rewarder(settings.air, Metrics()), settings.credit.resolve()))
    with answering(meant.source) as wiring:
        episodes = episodes_of(wiring, meant.begin_ms, meant.end_ms)
        found = compare((one for one in episodes if one.purpose is Purpose.TRAIN), sides[0], sides[1])
    if not found.num_groups:
        raise ConfigurationError(
            f"expected groups of training episodes in run {meant.source.record.name}, got none; captured "
            "conversations, each a group of its own, have no spread to compare"
        )
    if as_json:
        echo(msgspec.json.encode(found._asdict()).decode())
        return
    for line in _compared(found):
        echo(one_line(line))


def _compared(found: Comparison) -> Iterator[str]:
    """The lines for people."""
    rank = "none" if found.rank_correlation is None else f"{found.rank_correlation:.3f}"
    yield f"{found.num_groups} groups, {found.num_calls} calls; rank correlation of their returns: {rank}"
    yield f"groups with spread by B alone: {_some(found.gained)}"
    yield f"groups with spread by A alone: {_some(found.lost)}"
    for name, paid in zip("AB", found.paid, strict=True):
        yield f"{name} pays: " + (", ".join(f"{rule} {total:+g}" for rule, total in paid.items()) or "nothing")
    for episode_id, change in found.most:
        yield f"  {episode_id}: a return changes by {change:g}"


def _some(ids: Sequence[str]) -> str:
    """How many, and the first."""
    shown = ", ".join(ids[:_SHOWN]) + (", .." if len(ids) > _SHOWN else "")
    return f"{len(ids)}" + (f" ({shown})" if ids else "")
