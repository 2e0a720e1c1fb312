"""An episode of a run, live or ended, written to a file. In: a run's folder, an episode's id or how it begins. Out: a
file of HTML. Failure: ConfigurationError for an id that is of no episode, or of several.
"""

from __future__ import annotations

from pathlib import Path

from tracegrad.consumers.page.episodes.episode import read_view
from tracegrad.consumers.page.episodes.export import file_of
from tracegrad.schemas.errors import ConfigurationError, RequestError

from ..files import write_atomically
from ..history.index import indexed
from ..run.run_dir import RunDir
from .texts import explain_by, pieces_of


def export_episode(run_dir: RunDir, asked: str, file: Path) -> str:
    """Writes it; its id. Blocks until the run's index is up to date."""
    with indexed(run_dir, needs_log=True) as index:
        assert index.log is not None
        wiring = index.wiring
        try:
            seen = read_view(
                index.connection,
                index.log,
                wiring.topics,
                asked,
                pieces=pieces_of(wiring),
                explain=explain_by(wiring),
            )
        except RequestError as error:
            raise ConfigurationError(f"--export: {error}") from error
    write_atomically(file, file_of(seen, run=wiring.record.name).encode())
    return seen.episode.episode_id
