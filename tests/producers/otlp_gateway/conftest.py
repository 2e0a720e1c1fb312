"""The log of most tests."""

from __future__ import annotations

import pytest

from tests.memory_log import MemoryLog
from tests.producers.keys import TOPICS


@pytest.fixture
def log(memory_log: MemoryLog) -> MemoryLog:
    """With the topics of a run."""
    memory_log.create_topics(TOPICS, policies=["policy"])
    return memory_log
