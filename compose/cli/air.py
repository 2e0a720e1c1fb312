"""`air`: ask why calls are worth what they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from tracegrad.consumers.index.subject import Kind, taken_for
from tracegrad.schemas.records.episodes import Episode
from tracegrad.schemas.text import one_line

from .common import RUNS, JsonFlag, RunOption, RunsDirOption, echo, find_run, tell_wait
from .find import index_teller

if TYPE_CHECKING:
    from ..history.index import OpenIndex

app = typer.Typer(help="Explain the intermediate rewards (AIR) of an episode.", no_args_is_help=True)


app.callback()(lambda: None)  # or its one command would be the group


@app.command("explain")
def explain_episode(
    episode: Annotated[str, typer.Argument(help="Id of an episode, or how it begins.")],
    run: RunOption = None,
    runs_dir: RunsDirOption = RUNS,
    as_json: JsonFlag = False,
) -> None:
    """Show what each call of an episode earned, and the parts that add up to it.

    Example: tracegrad air explain 1f2e3d4c0123456789ab
    """
    from tracegrad.streams.explain import explain

    from ..history.index import indexed

    with indexed(find_run(run, runs_dir).run_dir, needs_log=True, tell=index_teller(), say=tell_wait) as index:
        found, settings = _find(index, episode), index.wiring.settings
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


def _find(index: OpenIndex, wanted: str) -> Episode:
    """The episode of that id, with what was said of it behind its close, and counted."""
    from tracegrad.consumers.page.episodes.records import read_credited
    from tracegrad.streams.ratings import rated_anew

    assert index.log is not None
    id_ = taken_for(index.connection, wanted, Kind.EPISODE).id
    _, found, credited = read_credited(index.log, index.wiring.topics, index.connection, id_)
    return rated_anew(found.episode, credited.feedback) if credited and credited.feedback else found.episode
