"""Clients as people have them, each in an environment of its own packages: every call recorded, every turn merged.

What they are is listed in `requirements.txt` and `package.json`, exactly; the environments are made anew from the
package managers' caches.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.clients.catalogue import CLIENTS
from tests.fake_engine.scripted import Reply, ScriptedEngine, tool_call_text
from tests.producers.keys import KEY, RUN_HASH
from tests.producers.llm_gateway.harness import ATTEMPT, ROLLOUT, Rig, rig
from tests.producers.llm_gateway.merging import assert_merged, rows_of
from tests.versions import label
from tracegrad.producers.runner.agent_environment import command_environment
from tracegrad.producers.runner.config import AgentConfig, RunnerHandles
from tracegrad.schemas.records.tokens import ids_from_bytes

pytestmark = [pytest.mark.e2e, pytest.mark.network, pytest.mark.timeout(300)]
HERE = Path(__file__).parent
SAID = (
    "I shall add. " + tool_call_text("add", a=12, b=30) + "\n" + tool_call_text("multiply", a=6, b=7),
    tool_call_text("multiply", a=42, b=2),
    "It is 84.",
)
"""Two calls at once, then one, then the answer."""
TITLE = "A sum"
"""What a request without tools gets: some clients have their sessions named."""


def say(prompt: str, draw: int) -> Reply:
    """What is sampled: the next of SAID, by how many tools have told; a client may give them longer names."""
    tools = re.search(r"^tools: (.*)", prompt, re.MULTILINE)
    if tools is None:
        return Reply(TITLE)
    text = SAID[{0: 0, 2: 1, 3: 2}[prompt.count("<|im_start|>tool\n")]]
    offered = [name.removesuffix("<|im_end|>") for name in tools[1].split(", ")]
    for short in ("add", "multiply"):
        text = text.replace(f'"{short}"', f'"{next(name for name in offered if name.endswith(short))}"')
    return Reply(text)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, tuple[str, ...]]:
    """How a program of each kind is started."""
    folder = tmp_path_factory.mktemp("clients")
    python, uv = folder / "venv" / "bin" / "python", (sys.executable, "-m", "uv")
    subprocess.run([*uv, "venv", "-q", "--python", sys.executable, str(folder / "venv")], check=True)
    lines = str(HERE / "requirements.txt")
    subprocess.run([*uv, "pip", "install", "-q", "--no-deps", "--python", str(python), "-r", lines], check=True)
    shutil.copytree(HERE / "agents", folder / "agents")
    shutil.copy(HERE / "package.json", folder)
    npm = ("npm", "install", "--silent", "--no-audit", "--no-fund", "--prefer-offline")
    subprocess.run(npm, cwd=folder, check=True)
    return {".py": (str(python), str(folder / "agents")), ".mjs": ("node", str(folder / "agents"))}


async def run(r: Rig, programs: Mapping[str, tuple[str, ...]], program: str, way: str, folder: Path) -> str:
    """What a client's agent prints, started as the runner starts a command."""
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
    return out.decode()


@pytest.mark.parametrize(("program", "way"), CLIENTS, ids=["-".join(client) for client in CLIENTS])
async def test_a_client_is_answered_and_its_turns_merge(
    programs: Mapping[str, tuple[str, ...]], program: str, way: str, tmp_path: Path
) -> None:
    """Its agent ends with the answer; the records hold the sampled ids exactly, and the three calls are one row."""
    engine = ScriptedEngine(label=label(0), policy=say, max_model_len=100_000)
    async with rig(engine) as r:
        await r.begin()
        assert "It is 84." in await run(r, programs, program, way, tmp_path), json.dumps(engine.requests)[-2000:]
        titles = [call for call in r.calls() if call.content == TITLE]
        calls = [call for call in r.calls() if call.content != TITLE]
        assert [call.splice.kind for call in calls[1:]] == ["extended"] * 2, [it.splice for it in calls]
        said = [engine.tokenizer.decode(ids_from_bytes(call.sampled_ids).tolist()[:-1]) for call in calls]
        assert [re.sub(r"mcp__\w+?__", "", text) for text in said] == list(SAID)
        rows = await rows_of(r)
        assert len(rows) == 1 + len(titles)
        assert_merged([max(rows, key=lambda row: int(sum(row.loss_mask)))], calls)
