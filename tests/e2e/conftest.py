"""One run under chaos for the whole session: it takes minutes, and both its end and its raw topics are looked at."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.chaos_run import ChaosRun, drive_to_the_end, make_run
from tests.serving import collector_binary

collect_ignore = [] if collector_binary() else ["test_collector.py"]
"""In CI a skipped test is a failed one."""


@pytest.fixture(scope="session")
def chaos_run(tmp_path_factory: pytest.TempPathFactory) -> ChaosRun:
    """A finished run in which every process was killed; its broker is stopped."""
    folder: Path = tmp_path_factory.mktemp("chaos")
    return drive_to_the_end(make_run(folder, is_killed_before_marker=True), folder, print)
