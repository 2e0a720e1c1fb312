from __future__ import annotations

import pytest

from tracegrad.schemas.records.process_status import TRAINER, process_name, worker_stage
from tracegrad.schemas.topics import STREAMS, Stage


@pytest.mark.parametrize("stage", STREAMS)
def test_a_workers_name_tells_its_stage(stage: Stage) -> None:
    assert worker_stage(process_name("streams", stage, 3)) == stage


@pytest.mark.parametrize("process", [TRAINER, process_name("llm", None, 1), "streams", "streams-", "streamsx-credit-0"])
def test_other_processes_work_for_no_stage(process: str) -> None:
    assert worker_stage(process) is None
