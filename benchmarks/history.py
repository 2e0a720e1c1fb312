"""From somebody's spans to a model that goes on learning: no gateway of ours, no run of ours, until they are read.

    python benchmarks/history.py runs/history-0 --seed 0 [--conversations 768] [--permuted] [--steps 40]

Two processes of examples/calculator/agent.py, unchanged and traced by OpenInference (history_agent.py), ask a scripted
model of OpenAI's form that is right three times in four, by the seed and the question. Their exporters' requests lie on
a topic as a Collector writes them: several requests a message, several traces a request, no key. Then, as a user would:

    tracegrad replay examples/calculator/history.toml --from topic:collected --into told --mode filter --grader ..
    tracegrad train examples/calculator/tracegrad.toml --model (its last version) --steps N

The second command's first pass is the held-out score of what the spans taught, before anything else is learnt;
`--steps 1` takes little more than that, `--steps 0` leaves it out. `--permuted` is the control: every conversation
answers another task's question, and that task's answer is what the grader expects. With `--serve MODEL` a plain vLLM
of that folder answers in the scripted model's place, and the agent asks it for token ids (`return_token_ids` in
`extra_body`). The replay then is `--mode offline` by examples/calculator/history_exact.toml, and begins with that
model; the ids of its episodes are compared with those that a proxy saw. Out: result.json in the folder, also printed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gzip
import json
import os
import random
import runpy
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import msgspec
from confluent_kafka.cimpl import NewTopic
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.serving import free_port, serve, until
from tracegrad.compose.die_with_parent import guarded
from tracegrad.compose.history.run_broker import open_broker
from tracegrad.compose.kafka.log import KafkaLog
from tracegrad.compose.local_kafka.broker import LocalKafka
from tracegrad.compose.loopback import answers
from tracegrad.compose.run.run_dir import RunDir
from tracegrad.compose.run.wiring import Wiring
from tracegrad.consumers.views.results import Results
from tracegrad.schemas.log.follow import read_to_end
from tracegrad.schemas.records.episodes import EPISODES
from tracegrad.schemas.records.tokens import ids_from_bytes
from tracegrad.schemas.topics import Topic

ROOT = Path(__file__).resolve().parents[1]
CALCULATOR = ROOT / "examples" / "calculator"
AGENT = Path(__file__).with_name("history_agent.py")
REQUIREMENTS = ROOT / "tests" / "frameworks" / "requirements" / "openai.txt"
TRACEGRAD = str(Path(sys.executable).with_name("tracegrad"))
TOPIC, PARTITIONS, PROCESSES = "collected", 3, 2
RIGHT = 0.75
VERBS: Mapping[str, str] = runpy.run_path(str(CALCULATOR / "chain.py"))["VERBS"]


class HostedModel:
    """Somebody's model behind chat completions.

    Args:
        seed: of which conversations it gets wrong, and how.
        meant: question -> the question that it answers instead, if any.
    """

    def __init__(self, seed: int, meant: Mapping[str, str]) -> None:
        self._seed = seed
        self._meant = meant
        self._num_calls = 0

    def message(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        """Its answer to a conversation, as chat completions have it."""
        asked = str(messages[0]["content"])
        question = self._meant.get(asked, asked)
        rng = random.Random(f"{self._seed} {question}")
        wrong = rng.choice(("operator", "guess", "copy")) if rng.random() >= RIGHT else ""
        wrong_step, guess = rng.randrange(2), str(rng.randint(0, 200))
        results = [str(one["content"]) for one in messages if one["role"] == "tool"]
        first, *rest = question.removeprefix("what is ").removesuffix("?").split()
        step = len(results)
        if wrong == "guess":
            return {"role": "assistant", "content": guess}
        if step == 2 or (results and not results[-1].lstrip("-").isdigit()):
            return {"role": "assistant", "content": guess if wrong == "copy" else results[-1]}
        operator = VERBS[rest[2 * step]]
        if wrong == "operator" and step == wrong_step:
            operator = rng.choice([other for other in "+-*" if other != operator])
        expr = (results[-1] if results else first) + operator + rest[2 * step + 1]
        self._num_calls += 1
        function = {"name": "calc", "arguments": json.dumps({"expr": expr})}
        call = {"id": f"call_{self._num_calls}", "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}

    async def answer(self, request: Request) -> Response:
        """POST /v1/chat/completions."""
        asked = await request.json()
        message = self.message(asked["messages"])
        self._num_calls += 1
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if "tool_calls" in message else "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        told = {"id": f"chatcmpl-{self._num_calls}", "object": "chat.completion", "created": int(time.time())}
        return JSONResponse({**told, "model": asked["model"], "choices": [choice], "usage": usage})


class ServedModel:
    """A plain vLLM behind a proxy, which keeps the token ids that were asked for."""

    def __init__(self, url: str) -> None:
        self._client = httpx.AsyncClient(base_url=url, timeout=120.0)
        self.ids: dict[str, tuple[list[int], list[int]]] = {}
        """Response id -> of the prompt, of the answer."""

    async def answer(self, request: Request) -> Response:
        """POST /v1/chat/completions."""
        given = await self._client.post("/v1/chat/completions", json=await request.json())
        told = given.json()
        if given.is_success:
            self.ids[told["id"]] = told["prompt_token_ids"], told["choices"][0]["token_ids"]
        return JSONResponse(told, given.status_code)


@contextlib.contextmanager
def plain_vllm(model: Path, log: Path) -> Iterator[str]:
    """Its URL; without anything of ours."""
    port = free_port()
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--model", str(model), "--served-model-name", "policy", "--max-model-len", "256", "--dtype", "float32"]
    command += ["--generation-config", "vllm", "--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    command += ["--enforce-eager", "--kv-cache-memory-bytes", str(128 << 20), "--max-num-batched-tokens", "16384"]
    command += ["--distributed-executor-backend", "uni", "--max-num-seqs", "32", "--disable-uvicorn-access-log"]
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1"}
    env |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    with log.open("wb") as told:
        process = subprocess.Popen(guarded(command), env=env, stdout=told, stderr=told, start_new_session=True)
    try:
        until(lambda: answers(f"http://127.0.0.1:{port}/health") or process.poll() is not None, 300)
        if process.poll() is not None:
            raise ChildProcessError(f"expected vLLM to serve, got status {process.returncode}; see {log}")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


def equal_ids(run: Path, seen: Mapping[str, tuple[list[int], list[int]]]) -> dict[str, Any]:
    """How many calls of a run's episodes have the ids that the proxy saw, and why the others train none."""
    run_dir = RunDir.open(run)
    with open_broker(run_dir) as servers:
        wiring = Wiring(run_dir, bootstrap_servers=servers)
        records = read_to_end(wiring.log(), wiring.topics.name(Topic.EPISODES))
        calls = [call for one in records for call in EPISODES.decode(one.value).calls]
    told = {call.call_id: (ids_from_bytes(call.suffix_ids), ids_from_bytes(call.sampled_ids)) for call in calls}
    equal = sum(told.get(name) is not None and _is_equal(told[name], ids) for name, ids in seen.items())
    masked = Counter(call.masked for call in calls if call.masked)
    return {"calls_seen": len(seen), "calls_told": len(calls), "equal_ids": equal, "masked": dict(masked)}


def _is_equal(told: tuple[Any, Any], seen: tuple[list[int], list[int]]) -> bool:
    return all(of.tolist() == ids for of, ids in zip(told, seen, strict=True))


class Collected:
    """What exporters sent, in batches."""

    def __init__(self) -> None:
        self.requests: list[bytes] = []

    async def add(self, request: Request) -> Response:
        """POST /v1/traces."""
        body = await request.body()
        self.requests.append(gzip.decompress(body) if request.headers.get("content-encoding") == "gzip" else body)
        return Response(b"", media_type="application/x-protobuf")

    def messages(self, rng: random.Random) -> list[bytes]:
        """Each of one to four requests: protobuf's messages are joined by putting their bytes together."""
        left, found = list(self.requests), []
        while left:
            num = rng.randint(1, 4)
            found.append(b"".join(left[:num]))
            del left[:num]
        return found


def environment() -> Path:
    """The interpreter of the agent, which has nothing of ours."""
    python = ROOT / ".cache" / "history" / "bin" / "python"
    if not python.exists():
        uv = [sys.executable, "-m", "uv"]
        subprocess.run([*uv, "venv", "-q", "--clear", "--python", sys.executable, str(python.parents[1])], check=True)
        subprocess.run([*uv, "pip", "install", "-q", "--python", str(python), "-r", str(REQUIREMENTS)], check=True)
    return python


async def talk(model: HostedModel | ServedModel, tasks: Path, log: Path) -> Collected:
    """All conversations; what their spans say."""
    collected = Collected()
    app = Starlette(
        routes=[
            Route("/v1/chat/completions", model.answer, methods=["POST"]),
            Route("/v1/traces", collected.add, methods=["POST"]),
        ]
    )
    async with serve(app) as url:
        given = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(CALCULATOR),
            "OPENAI_BASE_URL": f"{url}/v1",
            "OPENAI_API_KEY": "none",
            "OTEL_EXPORTER_OTLP_ENDPOINT": url,
            "OTEL_SERVICE_NAME": "calculator",
            "OTEL_BSP_SCHEDULE_DELAY": "200",
        }
        command = [str(environment()), str(AGENT), str(tasks)]
        asked = ["--ids"] if isinstance(model, ServedModel) else []
        with log.open("wb") as told:
            running = [
                await asyncio.create_subprocess_exec(
                    *command, str(number), str(PROCESSES), *asked, env=given, stdout=told, stderr=told
                )
                for number in range(PROCESSES)
            ]
            statuses = [await one.wait() for one in running]
    if any(statuses):
        raise ChildProcessError(f"expected the agents to end with 0, got {statuses}; see {log}")
    return collected


def tasks_of(num: int, is_permuted: bool, seed: int) -> tuple[list[dict[str, str]], dict[str, str]]:
    """The first training tasks, as the grader is to expect them; question -> the one that is answered instead."""
    lines = (CALCULATOR / "tasks.jsonl").read_text(encoding="ascii").splitlines()[:num]
    tasks: list[dict[str, str]] = [json.loads(line) for line in lines]
    if not is_permuted:
        return tasks, {}
    others = list(tasks)
    random.Random(seed).shuffle(others)
    pairs = list(zip(tasks, others, strict=True))
    told = [{**task, "expected": other["expected"]} for task, other in pairs]
    return told, {task["input"]: other["input"] for task, other in pairs}


def timed(command: list[str], folder: Path, name: str) -> tuple[list[tuple[float, dict[str, Any]]], float]:
    """What a command says in JSON, with the seconds since it was given; seconds in all. CalledProcessError."""
    began, told = time.monotonic(), []
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen([*command, "--json"], cwd=folder, stdout=subprocess.PIPE, stderr=log, text=True)
        assert process.stdout is not None
        for line in process.stdout:
            log.write(line.encode())
            told.append((time.monotonic() - began, json.loads(line)))
        if process.wait():
            raise subprocess.CalledProcessError(process.returncode, command)
    return told, time.monotonic() - began


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """The result."""
    folder: Path = given.folder.resolve()
    folder.mkdir(parents=True)
    tasks, meant = tasks_of(given.conversations, given.permuted, given.seed)
    file = folder / "tasks.jsonl"
    file.write_text("".join(json.dumps(task) + "\n" for task in tasks), encoding="ascii")
    seen: dict[str, tuple[list[int], list[int]]] = {}
    toml, mode, more = "history.toml", "filter", given.set
    if given.serve is not None:
        toml, mode, more = "history_exact.toml", "offline", [f"policy.model={given.serve.resolve()}", *more]
        with plain_vllm(given.serve, folder / "vllm.log") as url:
            served = ServedModel(url)
            collected, seen = asyncio.run(talk(served, file, folder / "agents.log")), served.ids
    else:
        collected = asyncio.run(talk(HostedModel(given.seed, meant), file, folder / "agents.log"))
    messages = collected.messages(random.Random(given.seed))
    with LocalKafka(folder / "cluster") as kafka:
        log = KafkaLog(kafka.bootstrap_servers)
        log.admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])
        log.admin.partition_counts([TOPIC])
        writer = log.writer()
        for number, message in enumerate(messages):
            writer.append(TOPIC, key=None, value=message, partition=number % PARTITIONS).result(30)
        writer.close()
        command = [TRACEGRAD, "replay", str(CALCULATOR / toml), "--from", f"topic:{TOPIC}", "--into", "told"]
        command += ["--bootstrap-servers", kafka.bootstrap_servers, "--mode", mode]
        command += ["--grader", f"{CALCULATOR / 'grade.py'}:grade", "--tasks", str(file)]
        command += ["--set", f"seed={given.seed}", *(part for one in more for part in ("--set", one))]
        told, seconds = timed(command, folder, "replay")
    first_s = next(at for at, one in told if one["kind"] == "replay")
    last_s, model = next((at, one) for at, one in told if one["kind"] == "model")
    result = {
        "conversations": len(tasks),
        "messages": len(messages),
        "requests": len(collected.requests),
        "told": [one for _, one in told if one["kind"] not in ("replay", "model", "step")],
        "read_to_version_s": round(last_s - first_s),
        "replay_s": round(seconds),
        "version": Path(model["folder"]).name,
    }
    if seen:
        result |= equal_ids(folder / "runs" / "told", seen)
    return result | learn(folder, Path(model["folder"]), given) if given.steps else result


def learn(folder: Path, model: Path, given: argparse.Namespace) -> dict[str, Any]:
    """What reinforcement learning makes of a model, which is tried first."""
    command = [TRACEGRAD, "train", str(CALCULATOR / "tracegrad.toml"), "--run", "after", "--steps", str(given.steps)]
    _, seconds = timed([*command, "--seed", str(given.seed), "--model", str(model)], folder, "after")
    results = msgspec.json.decode((folder / "runs" / "after" / "results" / "results.json").read_bytes(), type=Results)
    before, after = (msgspec.to_builtins(one) for one in (results.before, results.after))
    return {
        "held_out": before, "after": after, "reward_last_ten": results.reward_last_ten,
        "rewards": results.curves["reward"], "train_s": round(seconds),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--conversations", type=int, default=768)
    parser.add_argument("--permuted", action="store_true", help="each conversation answers another task")
    parser.add_argument("--serve", type=Path, help="a model's folder, which a plain vLLM serves to the agent")
    parser.add_argument("--steps", type=int, default=40, help="of reinforcement learning behind it")
    parser.add_argument("--set", action="append", default=[], help="any other key of the replay's settings")
    given = parser.parse_args()
    result = measure(given)
    (given.folder / "result.json").write_text(json.dumps(result, indent=2) + "\n", encoding="ascii")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
