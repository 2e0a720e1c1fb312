"""One run under chaos for the whole session: it takes minutes, and both its end and its raw topics are looked at."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.collector.build import NO_COLLECTOR, NoCollector, find
from tests.e2e.chaos_run import ChaosRun, drive_to_the_end, make_run


@pytest.fixture(scope="session")
def otelcol() -> Path:
    """The Collector that `make collector` built; where it did not, its tests are skipped: it takes minutes."""
    try:
        return find()
    except NoCollector as error:
        pytest.skip(f"{NO_COLLECTOR}: {error}")


@pytest.fixture(scope="session")
def chaos_run(tmp_path_factory: pytest.TempPathFactory) -> ChaosRun:
    """A finished run in which every process was killed; its broker is stopped."""
    folder: Path = tmp_path_factory.mktemp("chaos")
    return drive_to_the_end(make_run(folder, is_killed_before_marker=True), folder, print)
