"""`air`: ask why calls of an episode are worth what they are."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from tracegrad.schemas.errors import ConfigurationError, RecordError
from tracegrad.schemas.log.follow import read_to_end
from tracegrad.schemas.records.episodes import EPISODES, Episode
from tracegrad.schemas.topics import Topic

from ..run.wiring import Wiring
from .common import RUNS, JsonFlag, RunDirOption, RunOption, RunsDirOption, echo, find_run, reachable_log

__all__ = ["app"]

app = typer.Typer(help="Rewards of calls: why each call of an episode got what it got.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keeps `explain` a command of its own name."""


@app.command("explain")
def explain_episode(
    episode: Annotated[str, typer.Argument(help="The id of an episode or a rollout, or how it begins.")],
    run: RunOption = None,
    run_dir: RunDirOption = None,
    runs_dir: RunsDirOption = RUNS,
    as_json: JsonFlag = False,
) -> None:
    """Show what each call of an episode is worth, and the parts that add up to it.

    Example: tracegrad air explain 1f2e3d4c0123456789ab
    """
    from tracegrad.streams.explain import explain

    wiring = find_run(run, run_dir, runs_dir)
    reachable_log(wiring)
    found, settings = _find(wiring, episode), wiring.settings
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
        echo(f"{one.call_id} {one.credit.peers}: return {one.credit.return_:g}")
        for part in one.parts:
            factor = "" if part.factor == 1.0 else f" x {part.factor:g}"
            echo("  " + " ".join(filter(None, (f"{part.value:+g}{factor}", part.what, part.call_id, part.why))))


def _find(wiring: Wiring, wanted: str) -> Episode:
    """The episode of that id; of a rollout the one by which it counts."""
    matching: dict[str, Episode] = {}
    for record in read_to_end(wiring.kafka(), wiring.topics.name(Topic.EPISODES)):
        try:
            one = EPISODES.decode(record.value)
        except RecordError:
            continue
        if one.episode_id.startswith(wanted):
            matching[one.episode_id] = one
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
