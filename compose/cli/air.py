"""`air`: ask why calls are worth what they are."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.records.episodes import Episode
from tracegrad.schemas.text import one_line

from ..run.wiring import Wiring
from .common import RUNS, JsonFlag, RunOption, RunsDirOption, answering, echo, find_run

app = typer.Typer(help="Explain the intermediate rewards (AIR) of an episode.", no_args_is_help=True)


app.callback()(lambda: None)  # or its one command would be the group


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
