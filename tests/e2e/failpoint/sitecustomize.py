"""On the PYTHONPATH of a run under test: its streams workers die once between an output and its marker.

Python imports this at the start of every process; only a worker, known by its command line, is changed.
"""

from __future__ import annotations

import sys
from pathlib import Path

if "streams" in sys.orig_argv and "--stage" in sys.orig_argv:
    from tests.streams.shell.failpoint import kill_once
    from tracegrad.streams.shell import worker

    _run_dir, _stage = (sys.orig_argv[sys.orig_argv.index(flag) + 1] for flag in ("--run-dir", "--stage"))
    assert worker.run_fold.__kwdefaults__ is not None
    worker.run_fold.__kwdefaults__["before_marker"] = kill_once(Path(_run_dir) / "streams" / "failpoints" / _stage)
