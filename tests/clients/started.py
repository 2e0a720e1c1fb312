"""Starts a client's program as the runner starts a command."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.producers.keys import KEY, RUN_HASH
from tests.producers.llm_gateway.harness import ATTEMPT, ROLLOUT, Rig
from tracegrad.producers.runner.agent_environment import command_environment
from tracegrad.producers.runner.config import AgentConfig, RunnerHandles

Programs = Mapping[str, tuple[str, ...]]
"""How a program of each kind (`.py`, `.mjs`) is started, and the folder of all of them."""


async def run(r: Rig, programs: Programs, program: str, way: str, folder: Path) -> list[str]:
    """The texts of the answers that a client's agent got, started as the runner starts a command."""
    handles = RunnerHandles(run_hash=RUN_HASH, key=KEY, llm_url=r.url, otlp_endpoint="http://nowhere:1", log_dir="/")
    plain = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ} | {"HOME": str(folder)}
    agent = AgentConfig(command=("agent",))
    given = command_environment(agent, handles, plain, rollout=ROLLOUT, attempt=ATTEMPT, span="1" * 16) | plain
    starter, agents = programs[Path(program).suffix]
    quiet = {"OTEL_SDK_DISABLED": "true", "DO_NOT_TRACK": "1"}
    # They ask their makers' sites for prices and news else.
    quiet |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
    process = await asyncio.create_subprocess_exec(
        *(starter, f"{agents}/{program}", way),
        env=given | quiet,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, said = await asyncio.wait_for(process.communicate(), 90)
    assert process.returncode == 0, said.decode()[-3000:]
    # Some of them print advice first.
    texts: list[str] = json.loads(out.decode().splitlines()[-1])
    return texts
