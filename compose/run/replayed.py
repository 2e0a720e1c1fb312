"""A folder that holds a replay: by which command it goes on.

In: a run's folder. Out: words. Invariant: nothing else starts such a run, for its history would get episodes beside
those that were folded.
"""

from __future__ import annotations

import shlex

from tracegrad.schemas.errors import ConfigurationError

from .run_dir import RunDir

__all__ = ["no_replay", "replay_command"]


def replay_command(run_dir: RunDir) -> str | None:
    """What the user types to go on with the replay in a folder; None where none lies there."""
    made = run_dir.replayed
    if made is None:
        return None
    options = ["--kafka", made.source, "--into", run_dir.path.name, "--runs-dir", str(run_dir.path.parent)]
    options += ["--reclose"] if made.reclose else []
    options += ["--mode", made.mode] if made.mode is not None else []
    return f"tracegrad replay {made.asked or '--from earliest'} {shlex.join(options)}"


def no_replay(run_dir: RunDir) -> RunDir:
    """The folder. Raises ConfigurationError where a replay lies in it."""
    command = replay_command(run_dir)
    if command is not None:
        raise ConfigurationError(
            f"{run_dir.path} holds a replay of another run, which only `replay` goes on with: {command}, and the FILE "
            "and the --set that it had; or start a run of another name (--run NAME)"
        )
    return run_dir
