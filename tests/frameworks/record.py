"""Records real frameworks against our gateways: `python -m tests.frameworks.record [NAME ...] [--way WAY]`.

In: the rows of `catalogue.py`. Out: their fixtures, or the agent's own error. The gateways are the product's, over the
log in memory, in front of the scripted engine; the agent runs in an environment of its own, made by `uv` from the
pinned list of its row, outside the tree. What tells of this machine is taken out of the spans.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tests.fake_engine.scripted import ScriptedEngine
from tests.frameworks.catalogue import CATALOGUE, Entry
from tests.frameworks.fixture import FIXTURES, Executed, Raw, Recording, TrueCall, save
from tests.frameworks.scenario import agent_of, plain_name, script, trip_of
from tests.frameworks.scrub import scrubbed, without_paths
from tests.producers.keys import KEY, RUN_HASH
from tests.producers.llm_gateway.harness import ATTEMPT, ROLLOUT, TOPICS, Rig, full_prompt, rig
from tests.serving import serve
from tests.versions import label
from tracegrad.producers.otlp_gateway.app import OtlpGateway
from tracegrad.producers.otlp_gateway.config import OtlpConfig, OtlpHandles
from tracegrad.producers.runner.agent_environment import agent_environment, command_environment
from tracegrad.producers.runner.config import AgentConfig, RunnerHandles
from tracegrad.schemas.ids import CallId, canonical_call
from tracegrad.schemas.metrics import Metrics
from tracegrad.schemas.records.calls import CallRecord, ToolCall
from tracegrad.schemas.topics import Topic

HERE = Path(__file__).parent
_TRIPS = {"runner": (7,), "captured": (3, 4)}
_RAW = (Topic.LLM_CALLS, Topic.OTLP_SPANS, Topic.OTLP_LOGS)
_TIMEOUT_S = 120
_SPAN = "00f067aa0ba902b7"
_ID = re.compile(r'"id": ?"([^"]+)"')


class KeptRequests:
    """What was sent to a gateway, by the ids in its answers."""

    def __init__(self) -> None:
        self.by_id: dict[CallId | None, tuple[str, str]] = {}
        """The path and the body."""

    def around(self, app: ASGIApp) -> ASGIApp:
        """The gateway, whose requests are kept."""

        async def kept(scope: Scope, receive: Receive, send: Send) -> None:
            asked, answered = bytearray(), bytearray()

            async def hear() -> Message:
                message = await receive()
                asked.extend(message.get("body", b""))
                return message

            async def say(message: Message) -> None:
                answered.extend(message.get("body", b""))
                await send(message)

            await app(scope, hear, say)
            for name in _ID.findall(answered.decode()):
                self.by_id.setdefault(canonical_call(name), (scope["path"], without_paths(asked.decode())))

        return kept


def environment_of(entry: Entry, way: str, handles: RunnerHandles, folder: Path) -> dict[str, str]:
    """What the agent is given: by the runner, or by somebody who knows two addresses."""
    plain = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    plain |= {
        "HOME": str(folder),
        "DO_NOT_TRACK": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    if way == "runner":
        agent = AgentConfig(command="agent", env=dict(entry.variables))
        given = command_environment(agent, handles, plain, rollout=ROLLOUT, attempt=ATTEMPT, span=_SPAN) | plain
    else:
        given = plain | dict(entry.variables)
        url, otlp = (agent_environment(handles, "agent")[n] for n in ("OPENAI_BASE_URL", "OTEL_EXPORTER_OTLP_ENDPOINT"))
        given |= {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": otlp}
    return given | {
        "RECORDED_TRIPS": ",".join(map(str, _TRIPS[way])),
        "RECORDED_TRUTH": str(folder / "truth.jsonl"),
        "RECORDED_STREAMS": str(int(entry.streams)),
        "RECORDED_INSTRUMENTATION": entry.instrumentation,
        "RECORDED_INSTRUMENTORS": ",".join(entry.all_instrumentors),
    }


def command_of(entry: Entry, folder: Path) -> list[str]:
    """What starts the row's agent, in an environment that is made where it is not there yet."""
    made = folder / entry.environment
    program = HERE / "agents" / f"{entry.agent}.{'mjs' if entry.is_node else 'py'}"
    listed = HERE / "requirements" / f"{entry.environment}.txt"
    if entry.is_node:
        if not made.exists():
            made.mkdir(parents=True)
            names = [line.replace("==", "@") for line in listed.read_text().split()]
            subprocess.run(["npm", "install", "--no-fund", "--no-audit", *names], cwd=made, check=True)
        # Node looks for packages beside the program.
        return ["node", str(shutil.copy(program, made))]
    python = made / "bin" / "python"
    uv = (sys.executable, "-m", "uv")
    if not python.exists():
        subprocess.run([*uv, "venv", "-q", "--python", "3.11", str(made)], check=True)
        subprocess.run([*uv, "pip", "install", "-q", "--python", str(python), "-r", str(listed)], check=True)
    return [str(python), str(program)]


async def run_agent(command: list[str], entry: Entry, variables: dict[str, str], folder: Path) -> None:
    """Until it ends; RuntimeError with its last words when it fails."""
    process = await asyncio.create_subprocess_exec(
        *command, env=variables, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        told, _ = await asyncio.wait_for(process.communicate(), _TIMEOUT_S)
    except TimeoutError:
        process.kill()
        raise RuntimeError(f"{entry.name}: it did not end") from None
    if process.returncode or os.environ.get("RECORDED_VERBOSE"):
        print(told.decode()[-6000:])
    if process.returncode:
        raise RuntimeError(f"{entry.name}: it failed with {process.returncode}")


def truth_of(
    entry: Entry, calls: list[CallRecord], lines: list[str], rig: Rig, requests: KeptRequests
) -> dict[str, Any]:
    """Whose each call was, what was sent for it, and which request each execution answers."""
    prompts = {call.call_id: rig.engine.tokenizer.decode(full_prompt(call, calls)) for call in calls}
    asked: dict[tuple[str, str], list[tuple[str, ToolCall]]] = {}
    for call in calls:
        for tool in call.tool_calls:
            given = json.dumps(json.loads(tool.arguments), sort_keys=True)
            asked.setdefault((plain_name(tool.name), given), []).append((str(call.call_id), tool))
    executed = []
    for line in () if entry.asks_in_text else map(json.loads, lines):
        # A framework that forgets a failed step asks the same again; executions come in the order of the requests.
        call_id, tool = asked[line["tool"], json.dumps(line["arguments"], sort_keys=True)].pop(0)
        one = Executed(call_id=call_id, tool_call_id=tool.id, tool=tool.name, failed=line["failed"])
        executed.append(one)
    true_calls = tuple(
        TrueCall(
            call_id=name,
            trip=trip_of(prompt),
            agent=agent_of(prompt) if entry.has_agents else None,
            path=path.rpartition("/v1")[2],
            request=request,
        )
        for name, prompt in prompts.items()
        for path, request in [requests.by_id[name]]
    )
    return {"calls": true_calls, "executed": tuple(executed)}


async def record(entry: Entry, way: str, environments: Path) -> Recording:
    """One recording."""
    command = command_of(entry, environments)
    policy, requests = partial(_reply, entry), KeptRequests()
    engine = ScriptedEngine(label=label(0), policy=policy, max_model_len=400_000)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with rig(engine, around=requests.around) as here:
            handles = OtlpHandles(port=0, run_hash=RUN_HASH, key=KEY, ack_timeout_s=5)
            otlp = OtlpGateway(OtlpConfig(), handles, topics=TOPICS, writer=here.log.writer(), metrics=Metrics())
            async with serve(otlp.app) as otlp_url:
                given = RunnerHandles(
                    run_hash=RUN_HASH, llm_url=here.url, otlp_endpoint=otlp_url, key=KEY, log_dir=str(folder)
                )
                if way == "runner":
                    await here.begin(host=None)
                await run_agent(command, entry, environment_of(entry, way, given, folder), folder)
                if way == "runner":
                    await here.end()
            truth = folder / "truth.jsonl"
            lines = truth.read_text().splitlines() if truth.exists() else []
            is_ours = way == "runner"
            return Recording(
                name=entry.name,
                way=way,
                run_hash=RUN_HASH,
                rollout_id=ROLLOUT if is_ours else None,
                attempt_id=ATTEMPT if is_ours else None,
                versions=versions_of(entry),
                records=tuple(
                    Raw(topic=topic.value, key=one.key, value=scrubbed(topic, one.value or b"", str(folder)))
                    for topic in _RAW
                    for one in here.log.records(TOPICS.name(topic))
                ),
                **truth_of(entry, here.calls(), lines, here, requests),
            )


def _reply(entry: Entry, prompt: str, draw: int) -> Any:
    return script(prompt, entry.delegations)


def versions_of(entry: Entry) -> dict[str, str]:
    """Of the packages that its list names."""
    wanted = (HERE / "requirements" / f"{entry.environment}.txt").read_text().split()
    return dict(re.sub(r"\[.*\]", "", line).split("==") for line in wanted)


def main() -> int:
    """Records what is named, or all; says what failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="beginnings of names in the catalogue")
    parser.add_argument("--way", choices=sorted(_TRIPS))
    parser.add_argument("--into", type=Path, default=FIXTURES, help="a folder that exists")
    parser.add_argument("--environments", type=Path, default=Path(tempfile.gettempdir()) / "tracegrad-frameworks")
    arguments = parser.parse_args()
    failed = 0
    for entry in CATALOGUE:
        if arguments.names and not entry.name.startswith(tuple(arguments.names)):
            continue
        for way in [arguments.way] if arguments.way else list(_TRIPS):
            try:
                made = asyncio.run(record(entry, way, arguments.environments))
            except (RuntimeError, subprocess.CalledProcessError, KeyError, AssertionError) as error:
                failed += 1
                print(f"{entry.name}-{way}: {type(error).__name__}: {error}")
                continue
            path = save(made, arguments.into)
            print(f"{path.stem}: {len(made.calls)} calls, {len(made.executed)} tools, {path.stat().st_size} bytes")
    return failed


if __name__ == "__main__":
    sys.exit(main())
