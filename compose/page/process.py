"""The page beside a run's processes, which their supervisor starts: `python -m tracegrad.compose.page.process
--run-dir DIR`. In: a run's folder. Out: the page, until it is told to stop. Failure: as of any process of a run."""

from __future__ import annotations

import argparse
import sys
import threading
from pathlib import Path

from tracegrad.schemas.metrics import Metrics

from ..run.serve import serve
from ..run.wiring import Wiring, port_of
from .serve import serve_live


def main() -> int:
    """Blocks; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tracegrad.compose.page.process", description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True)
    return serve("page", parser.parse_args().run_dir, run=_run)


def _run(wiring: Wiring, stop: threading.Event, metrics: Metrics) -> None:
    port = port_of(wiring.endpoints.page_url)
    serve_live(wiring, port=port, fd=wiring.listening_fd, stop=stop)


if __name__ == "__main__":
    sys.exit(main())
