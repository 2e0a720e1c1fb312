"""The runs that lie beside one in its folder of runs, for the page that lays their curves over its own.

In: a run's folder. Out: their names; of one what its page left, and its settings without secrets. Invariants: nothing
outside that folder is read, no broker is started; what was read is held while its file is the same, of a bounded number
of runs. Failure: a run of which nothing is to be had has the reason.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tracegrad.consumers.page.asked import Beside, Other
from tracegrad.consumers.page.overlay import MAX_OTHERS, other_of
from tracegrad.schemas.errors import TracegradError

from ..history.broker import is_running
from ..run.run_dir import RunDir
from .kept import KEPT, kept_in, mark_of

__all__ = ["beside", "without_secrets"]

_SECRET = frozenset({"token", "client", "env"})
"""Keys of the settings that may hold one."""
_HELD = 2 * MAX_OTHERS
_Stamp = tuple[int, int, bool]


def beside(run_dir: RunDir) -> Beside:
    """Of one run's page."""
    held: OrderedDict[str, tuple[_Stamp, Other]] = OrderedDict()

    def names() -> Sequence[str]:
        found = [(_changed(path), path.name) for path in run_dir.beside() if path != run_dir.path]
        return [name for _, name in sorted(found, reverse=True)]

    def find(name: str) -> Other:
        path = run_dir.path.parent / name
        try:
            other = RunDir.open(path)
            is_live = is_running(other)
            stamp = _stamp(path / KEPT, is_live)
            known = held.get(name)
            if known is None or known[0] != stamp:
                known = stamp, _read(other, name, is_live=is_live)
                held[name] = known
                while len(held) > _HELD:
                    held.popitem(last=False)
            return known[1]
        except (TracegradError, OSError) as error:
            return Other(name, reason=f"its folder cannot be read: {error}")

    return Beside(names, find)


def _read(run_dir: RunDir, name: str, *, is_live: bool) -> Other:
    kept = kept_in(run_dir)
    if kept is not None:
        shown = msgspec.structs.replace(kept, settings=without_secrets(kept.settings))
        return other_of(name, shown, _stale(run_dir, kept.mark))
    settings = _settings(run_dir)
    if _is_on_cluster(settings):
        reason = "it lies on a cluster, and of such a run no page leaves its curves; its settings are compared"
    elif is_live:
        reason = "it runs, and its page leaves its curves when it ends; its settings are compared"
    elif (run_dir.path / KEPT).exists():
        reason = f"what its page left is damaged or another release's; `tracegrad page {name}` makes it anew"
    else:
        reason = f"no page has left its curves; `tracegrad page {name}` makes them"
    return Other(name, settings=settings, reason=reason)


def _stale(run_dir: RunDir, mark: str) -> str:
    """Why its curves may end before the run does."""
    left = "its curves are those that a page left last"
    try:
        return "" if mark == mark_of(run_dir) else f"{left}; it went on since"
    except (TracegradError, OSError) as error:
        return f"{left}; whether it went on since is not known: {error}"


def _is_on_cluster(settings: Mapping[str, Any]) -> bool:
    kafka = settings.get("kafka")
    return isinstance(kafka, Mapping) and kafka.get("bootstrap_servers") is not None


def _settings(run_dir: RunDir) -> Mapping[str, Any]:
    """As they stand in the folder, of any release."""
    try:
        found = msgspec.json.decode(run_dir.config.read_bytes())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return {}
    return without_secrets(found) if isinstance(found, Mapping) else {}


def _stamp(file: Path, is_live: bool) -> _Stamp:
    try:
        stat = file.stat()
    except OSError:
        return (0, 0, is_live)
    return (stat.st_mtime_ns, stat.st_size, is_live)


def _changed(path: Path) -> float:
    try:
        return (path / "config.json").stat().st_mtime
    except OSError:
        return 0.0


def without_secrets(value: Any) -> Any:
    """Settings as they may be shown."""
    if isinstance(value, Mapping):
        return {key: without_secrets(inner) for key, inner in value.items() if key not in _SECRET}
    if isinstance(value, list | tuple):
        return [without_secrets(inner) for inner in value]
    return value
