"""Credentials end to end: agents that a runner started get what is theirs, and nothing of their neighbours'."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.producers.keys import KEY, RUN_HASH
from tests.producers.runner.rig import Rig
from tracegrad.producers.runner.config import AgentConfig, RewardConfig
from tracegrad.schemas.credentials import Holder, attempt_holder, credential, runner_holder
from tracegrad.schemas.records.rollouts import RolloutState
from tracegrad.schemas.topics import Topic


def assert_untold(rig: Rig, folder: Path, holders: list[Holder]) -> None:
    """No secret of these is on any topic or in any log."""
    said = [value for topic in Topic for value in rig.values(topic)] + [
        path.read_bytes() for path in folder.glob("*.log")
    ]
    for holder in (*holders, runner_holder(RUN_HASH)):
        secret = credential(KEY, holder).rpartition(".")[2].encode()
        assert not [text for text in said if secret in text], holder


@pytest.mark.e2e
def test_a_command_that_tells_its_key_tells_no_secret(tmp_path: Path) -> None:
    """On stdout, which is its answer, and to those who read its log."""
    (tmp_path / "agent.sh").write_text('read -r task; echo "$OPENAI_API_KEY"')
    (tmp_path / "grade.py").write_text("def grade(task, output, attempt): return {'secret': float('***' in output)}")
    with Rig() as rig:
        rig.start_gateways()
        agent = AgentConfig(command=("sh", "agent.sh"), cwd=str(tmp_path))
        rig.start_runner(agent, RewardConfig(grader="grade.py:grade"), tmp_path)
        rollout = rig.request(input="go")
        end = rig.final(rollout)
        assert (end.state, end.host, rig.rewards(rollout)["secret"].value) == (RolloutState.SUCCEEDED, None, 1.0)
        assert_untold(rig, tmp_path, [attempt_holder(rollout, end.attempt_id)])
