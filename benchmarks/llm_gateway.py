"""What the LLM gateway costs beside its engine alone: latency, throughput and CPU a call, both sides in one run.

    python benchmarks/llm_gateway.py [--conversations 64] [--rounds 5] [--concurrency 1 8 32] [--only scripted] [--json]

Starts a real Kafka, vLLM on CPU with the demo's model, and `serve llm` and `serve weight-sync` as a run has them. Then
conversations like the demo's (three turns: a task, an answer, the tool's result) by vLLM's own chat completions and
through the gateway, which records each call on Kafka before it answers: by turns, in equal rounds, at temperature 1.
The last part is the gateway before an engine that answers at once (scripted_engine.py): how many calls a second one
core serves. CPU is that of all threads of a program, so it means something on a busy machine too; of times there, only
ratios do.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from tracegrad.compose.loopback import answers, free_port
from tracegrad.compose.run.load import load
from tracegrad.compose.run.pipeline import ENVIRONMENT, prepare_run, prepare_topics, specs
from tracegrad.compose.run.process import Child, ProcessSpec
from tracegrad.compose.run.wiring import Wiring
from tracegrad.schemas.credentials import attempt_holder, bearer, credential, runner_holder
from tracegrad.schemas.ids import new_attempt
from tracegrad.schemas.records.versions import Version
from tracegrad.schemas.records.weights import WEIGHTS, EpochClaim, VersionManifest
from tracegrad.schemas.topics import Topic
from tracegrad.trainer.store.durable import describe_files

HERE = Path(__file__).parent
EXAMPLE = HERE.parent / "examples" / "calculator"
PARAMETERS = {"type": "object", "properties": {"expr": {"type": "string"}}, "required": ["expr"]}
DESCRIPTION = "Evaluate one operation on two whole numbers, such as 12+34."
TOOLS = [{"type": "function", "function": {"name": "calc", "description": DESCRIPTION, "parameters": PARAMETERS}}]
TURNS = 3
CHAT = "/v1/chat/completions"
START_S = 300.0
STOP_S = 20.0
Begin = Callable[[aiohttp.ClientSession], Awaitable[tuple[str, dict[str, str]]]]
"""Begins a conversation: the URL of its calls, and their headers."""


class Bench:
    """A run of which a version is published; its processes are started here, one after the other."""

    def __init__(self, folder: Path, **flags: Any) -> None:
        settings = load(EXAMPLE / "tracegrad.toml", environ={}, flags=flags)
        self.wiring = Wiring(prepare_run(settings, folder))
        self.version = Version(run=self.wiring.record.hash, version=0, epoch=1)
        self.pids: dict[str, int] = {}
        self._specs = {spec.name: spec for spec in specs(self.wiring, for_training=False)}
        self._stack = contextlib.ExitStack()
        self._num_attempts = 0

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *raised: object) -> None:
        self._stack.close()

    def start(self, *names: str | ProcessSpec, health: str = "") -> None:
        """Processes of the run, or others, side by side; they stop in reverse order when the bench ends."""
        found = [self._specs[name] if isinstance(name, str) else name for name in names]
        for spec in found:
            child = Child(spec, self.wiring.run_dir.logs)
            child.start()
            self._stack.callback(_stop, child)
            self.pids[spec.name] = child.pid or 0
        for spec in found:
            until(spec.is_ready or (lambda: answers(health) if health else True), spec.name)

    def publish(self) -> None:
        """Makes the topics, and puts the start model on `weights` as version 0, as a trainer does."""
        prepare_topics(self.wiring)
        wiring, policy = self.wiring, self.wiring.settings.policy
        folder = wiring.run_dir.weights / self.version.label
        shutil.copytree(policy.needed_model(), folder)
        claim = EpochClaim(policy=policy.name, run=self.version.run, epoch=1, trainer_id="bench")
        manifest = VersionManifest(
            policy=policy.name,
            run=self.version.run,
            version=0,
            epoch=1,
            base_version=0,
            kind="full",
            uri=str(folder),
            files=describe_files(folder),
            step=0,
            next_offset=0,
        )
        writer = wiring.log().writer()
        for record in (claim, manifest):
            topic = wiring.topics.name(Topic.WEIGHTS)
            writer.append(topic, key=policy.name.encode(), value=WEIGHTS.encode(record)).result(60)
        writer.close()

    def start_gateway(self) -> None:
        """Until it renders by itself, which it does once an engine has agreed with it."""
        url = self.wiring.endpoints.llm_url + "/health"
        self.start("llm")

        def renders() -> bool:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return json.load(answer)["counters"].get("renders_locally") == 1

        until(renders, "a gateway that renders")

    async def begin(self, http: aiohttp.ClientSession) -> tuple[str, dict[str, str]]:
        """An attempt, as training has it; the runner's own request is no call."""
        wiring, key = self.wiring, self.wiring.run_dir.key()
        self._num_attempts += 1
        rollout, attempt = f"{wiring.record.hash}{self._num_attempts:020x}", new_attempt()
        url = f"{wiring.endpoints.llm_url}/rollout/{rollout}/attempt/{attempt}"
        body = {"policy": wiring.settings.policy.name, "purpose": "train"}
        runner = bearer(credential(key, runner_holder(wiring.record.hash)))
        async with http.post(url + "/begin", json=body, headers=runner) as response:
            response.raise_for_status()
        return url + CHAT, bearer(credential(key, attempt_holder(rollout, attempt)))

    async def begin_direct(self, http: aiohttp.ClientSession) -> tuple[str, dict[str, str]]:
        """At the engine itself, which remembers nothing."""
        return self.wiring.endpoints.engine_urls[0] + CHAT, bearer(self.wiring.engine_token)


def _stop(child: Child) -> None:
    child.ask_to_stop()
    child.wait_stopped(STOP_S)
    child.kill()


def until(is_so: Callable[[], bool], what: str) -> None:
    """Waits for it. Raises TimeoutError."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if is_so():
                return
        time.sleep(0.2)
    raise TimeoutError(f"expected {what} within {START_S:g} s")


@dataclass
class Side:
    """One way to an answer, and what was measured of it at one concurrency."""

    name: str
    begin: Begin
    pids: dict[str, int]
    latencies_s: list[float] = field(default_factory=list)
    calls_per_s: list[float] = field(default_factory=list)
    cpu_s: dict[str, float] = field(default_factory=dict)
    num_tokens: int = 0

    async def run(self, http: aiohttp.ClientSession, tasks: Iterable[str], concurrency: int) -> None:
        """One round: all tasks, so many at once."""
        begun = [(task, *await self.begin(http)) for task in tasks]
        cpu_s, num, began = self._cpu_s(), len(self.latencies_s), time.perf_counter()

        async def work() -> None:
            while begun:
                await self._converse(http, *begun.pop())

        await asyncio.gather(*(work() for _ in range(concurrency)))
        self.calls_per_s.append((len(self.latencies_s) - num) / (time.perf_counter() - began))
        for name, seconds in self._cpu_s().items():
            self.cpu_s[name] = self.cpu_s.get(name, 0.0) + seconds - cpu_s[name]

    async def _converse(self, http: aiohttp.ClientSession, task: str, url: str, headers: dict[str, str]) -> None:
        messages: list[Any] = [{"role": "user", "content": task}]
        for _ in range(TURNS):
            body = {"model": "policy", "messages": messages, "tools": TOOLS, "max_tokens": 48, "temperature": 1}
            began = time.perf_counter()
            async with http.post(url, json=body, headers=headers) as response:
                answer = json.loads(await response.read())
            self.latencies_s.append(time.perf_counter() - began)
            response.raise_for_status()
            self.num_tokens += answer["usage"]["completion_tokens"]
            message = answer["choices"][0]["message"]
            messages.append({name: message[name] for name in ("role", "content", "tool_calls") if message.get(name)})
            for call in message.get("tool_calls") or ():
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": "72"})
            if not message.get("tool_calls"):
                messages.append({"role": "user", "content": task})

    def _cpu_s(self) -> dict[str, float]:
        return {name: _cpu_s(pid) for name, pid in self.pids.items()} | {"client": time.process_time()}

    def figures(self) -> dict[str, Any]:
        """Of all rounds: times in ms, CPU in ms a call by program."""
        num = len(self.latencies_s)
        cuts = statistics.quantiles(self.latencies_s, n=20, method="inclusive")
        return {
            "side": self.name,
            "calls": num,
            "tokens_a_call": self.num_tokens / num,
            "p50_ms": 1e3 * cuts[9],
            "p95_ms": 1e3 * cuts[18],
            "calls_per_s": statistics.median(self.calls_per_s),
            "cpu_ms": {name: 1e3 * seconds / num for name, seconds in self.cpu_s.items()},
        }


def _cpu_s(pid: int) -> float:
    """Of a process and what it started."""
    root = psutil.Process(pid)
    times = [process.cpu_times() for process in (root, *root.children(recursive=True))]
    return sum(one.user + one.system for one in times)


async def compare(sides: list[Side], given: argparse.Namespace, concurrency: int) -> dict[str, Any]:
    """The sides by turns, after one round of each that does not count."""
    tasks = [json.loads(line)["input"] for line in (EXAMPLE / "tasks.jsonl").read_text().splitlines()]
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2.0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=120.0)) as http:
        for side in sides:
            warm = Side(side.name, side.begin, {})
            await warm.run(http, tasks[: max(concurrency, 8)], concurrency)
        for number in range(given.rounds):
            first = number * given.conversations % len(tasks)
            for side in sides if number % 2 else sides[::-1]:
                await side.run(http, tasks[first : first + given.conversations], concurrency)
    found: dict[str, Any] = {"concurrency": concurrency, "sides": [side.figures() for side in sides]}
    if len(sides) == 2:
        direct, ours = found["sides"]
        found |= {f"added_{p}_ms": ours[f"{p}_ms"] - direct[f"{p}_ms"] for p in ("p50", "p95")}
        # Of neighbouring rounds: other work on the machine disturbs both alike.
        rounds = zip(sides[1].calls_per_s, sides[0].calls_per_s, strict=True)
        found["throughput"] = statistics.median(ours / direct for ours, direct in rounds)
    return found


def show(found: dict[str, Any]) -> None:
    """A line a side, and one that compares them."""
    at_once = f"{found['concurrency']:3d} at once "
    for side in found["sides"]:
        cpu = ", ".join(f"{name} {ms:.2f}" for name, ms in side["cpu_ms"].items())
        print(
            f"{at_once} {side['side']:8} {side['calls']:5d} calls {side['calls_per_s']:6.1f}/s"
            f"  p50 {side['p50_ms']:6.1f} ms  p95 {side['p95_ms']:6.1f} ms  CPU ms a call: {cpu}"
        )
    if "throughput" in found:
        added = f"added p50 {found['added_p50_ms']:.1f} ms, p95 {found['added_p95_ms']:.1f} ms"
        print(f"{at_once} {added}; throughput x {found['throughput']:.2f}")
    else:
        cpu_ms = found["sides"][0]["cpu_ms"]["llm"]
        print(f"{at_once} {1e3 / cpu_ms:.0f} calls/s per core of the gateway")
    sys.stdout.flush()


def measure(bench: Bench, sides: list[str], given: argparse.Namespace) -> list[dict[str, Any]]:
    """Each concurrency, with Sides of their own."""
    begins = {"vllm": bench.begin_direct, "gateway": bench.begin, "scripted": bench.begin}
    results = []
    for concurrency in given.concurrency:
        made = [Side(name, begins[name], bench.pids) for name in sides]
        results.append(asyncio.run(compare(made, given, concurrency)))
        if not given.json:
            show(results[-1])
    return results


def scripted(bench: Bench) -> None:
    """Starts the engine that answers at once, at the address that the run has for its engine."""
    url, model = bench.wiring.endpoints.engine_urls[0], bench.wiring.settings.policy.needed_model()
    options = ("--port", url.rpartition(":")[2], "--model", model, "--label", bench.version.label)
    spec = ProcessSpec(
        name="engine", argv=(sys.executable, str(HERE / "scripted_engine.py"), *options), env=ENVIRONMENT
    )
    bench.start(spec, health=url + "/health")


def main() -> None:
    """Lines, or one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conversations", type=int, default=64, help="of each side in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--only", choices=("vllm", "scripted"))
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    os.environ.update(ENVIRONMENT)
    with tempfile.TemporaryDirectory() as temporary:
        results, folder = {}, Path(temporary)
        with Bench(folder / "vllm", run="bench") as bench:
            bench.start("kafka")
            if given.only != "scripted":
                bench.publish()
                bench.start("engine", "weight-sync", health=bench.wiring.endpoints.engine_urls[0] + "/health")
                bench.start_gateway()
                results["vllm"] = measure(bench, ["vllm", "gateway"], given)
            servers = bench.wiring.endpoints.bootstrap_servers
            if given.only != "vllm":
                flags = {"engine.url": f"http://127.0.0.1:{free_port()}", "kafka.bootstrap_servers": servers}
                with Bench(folder / "scripted", run="bench-scripted", **flags) as other:
                    other.pids.update(kafka=bench.pids["kafka"])
                    other.publish()
                    scripted(other)
                    other.start_gateway()
                    results["scripted"] = measure(other, ["scripted"], given)
    if given.json:
        print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
