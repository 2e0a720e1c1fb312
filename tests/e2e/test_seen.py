"""What one real run shows of itself: its metrics, to Prometheus and the dashboard too, and its log lines as JSON.

All parts are real but the engine, which answers by script; strangers ask its gateways meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.compose.metrics.bad_days import BAD_DAYS
from tests.compose.metrics.dashboard import queries
from tests.compose.metrics.prometheus import answerable, needs_prometheus
from tests.e2e.chaos_run import CALCULATOR, ended, light_policy, make_run
from tests.e2e.engine_beside import EngineBeside
from tests.e2e.live_run import LiveRun
from tests.e2e.scrapes import Scrapes, ask, prometheus
from tests.serving import until
from tracegrad.producers.runner.agent_environment import agent_environment
from tracegrad.schemas.attributes import RECORD_HEADER
from tracegrad.schemas.metrics import declared

pytestmark = [pytest.mark.e2e, pytest.mark.kafka, pytest.mark.torch, pytest.mark.timeout(900)]
PROMPT_MARK, TOOL_MARK, SECRET = "zq-of-the-prompt", "zqt", "zq-of-the-environment"
AGENT = f"""
import agent, chain

agent.calculate = lambda expression: chain.calculate(expression) + " {TOOL_MARK}"

async def solve(task):
    answer = await agent.solve(task)
    return answer.removesuffix(" {TOOL_MARK}") if answer else answer
"""
"""The calculator's, whose tool marks what it gives: the mark is in its result, and in what the model makes of that."""
EXPECTED = {metric.exposed: metric for metric in declared() if metric not in BAD_DAYS}
ALWAYS = {"otlp", "llm", "streams-normalize-0", "streams-assemble-0", "streams-credit-0", "tasks", "runner", "trainer"}
ALWAYS |= {"weight-sync", "supervisor", "page", "engine"}


@dataclass(frozen=True)
class Seen:
    """A run that has ended, and what was seen of it."""

    folder: Path
    run: LiveRun
    moved: Mapping[str, Mapping[str, set[str]]]
    secrets: tuple[str, ...]
    told: Mapping[str, Any]
    """By Prometheus, of `targets`, `rules` and each query; empty where it is not installed."""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    """It lives until all has moved that a good day moves."""
    folder = tmp_path_factory.mktemp("seen")
    (folder / "runs").mkdir()
    with contextlib.ExitStack() as open_:
        engine = open_.enter_context(EngineBeside(folder / "engine.log", delay_s=0.05))
        run = _made(folder, engine)
        scrapes = open_.enter_context(Scrapes(folder / "runs" / "_metrics"))
        url = open_.enter_context(prometheus(folder)) if shutil.which("prometheus") else None
        open_.enter_context(ended(run))
        run.start("--steps", "100000")
        until(lambda: run.poll() is not None or (run.path / "endpoints.json").is_file(), 240, what="its addresses")
        until(lambda: run.poll() is not None or "tracegrad_step_seconds_total" in scrapes.moved, 240, what="a step")
        assert run.poll() is None, run.tail()
        _stray(run)
        with contextlib.suppress(AssertionError):  # the test says what is missing
            until(lambda: run.poll() is not None or EXPECTED.keys() <= scrapes.moved.keys(), 90)
        told = _told(url) if url else {}
        secrets = tuple(_texts(json.loads((run.path / "key.json").read_text())))
        secrets += (run.wiring.runner().llm_token or "", run.wiring.feedback_token)
        secrets += (run.wiring.page_link.rpartition("=")[2],)
        assert run.interrupt() in (0, 130), run.tail()
        yield Seen(folder, run, scrapes.moved, (*filter(None, secrets), SECRET), told)


def _made(folder: Path, engine: EngineBeside) -> LiveRun:
    (folder / "agent").mkdir()
    for module in ("agent.py", "chain.py"):
        shutil.copy(CALCULATOR / module, folder / "agent" / module)
    (folder / "agent" / "marking.py").write_text(AGENT)
    settings = {
        "streams.workers": 1,
        "agent.callable": f"{folder / 'agent' / 'marking.py'}:solve",
        "agent.env": json.dumps({"MY_SECRET": SECRET}),
        "tasks.eval_every": 1,
    }
    environ = {"TRACEGRAD_LOG_FORMAT": "json"}
    model = light_policy(folder / "policy")
    run = make_run(folder / "runs", engine=engine, model=model, settings=settings, environ=environ)
    # Sums, which the script gets right three times in four: a group has rewards that differ.
    for name, numbers in (("tasks", range(10, 42)), ("eval", range(50, 54))):
        tasks = [
            {"id": f"{name}-{number}", "input": f"{number} plus 7? {PROMPT_MARK}", "expected": str(number + 7)}
            for number in numbers
        ]
        (folder / "runs" / f"{name}.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    return run


def _stray(run: LiveRun) -> None:
    """What strangers do on any day: an agent that nobody started, a wrong request, logs of a program."""
    told = agent_environment(run.wiring.runner(), "stranger")
    ask_of = {"model": "policy", "messages": [{"role": "user", "content": f"12 and 7 {PROMPT_MARK}"}], "max_tokens": 8}
    key = {"authorization": f"Bearer {told['OPENAI_API_KEY']}"}
    with httpx.Client(timeout=60, trust_env=False) as client:
        chat = f"{told['OPENAI_BASE_URL']}/chat/completions"
        for body, headers in ((ask_of, {}), (ask_of, {RECORD_HEADER: "off"}), ({"model": "nobody's"}, {})):
            client.post(chat, json=body, headers=key | headers)
        line = {"timeUnixNano": "1790000000000000000", "body": {"stringValue": PROMPT_MARK}}
        logs = {"resourceLogs": [{"scopeLogs": [{"logRecords": [line]}]}]}
        client.post(f"{told['OTEL_EXPORTER_OTLP_ENDPOINT']}/v1/logs", json=logs)


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for one in value.values() for text in _texts(one)]
    return [value] if isinstance(value, str) and len(value) >= 16 else []


def _told(url: str) -> dict[str, Any]:
    """After some scrapes of the run as it stands."""

    def are_up() -> bool:
        targets = ask(url, "targets", state="active")["activeTargets"]
        return {one["labels"]["process"] for one in targets if one["health"] == "up"} >= ALWAYS

    def answers() -> dict[str, Any]:
        return {query: ask(url, "query", query=answerable(query))["result"] for query in queries()}

    # A rate has two scrapes behind it.
    with contextlib.suppress(AssertionError):
        until(lambda: are_up() and not unexplained(answers()), 60)
    told = {"targets": ask(url, "targets", state="active")["activeTargets"], "rules": ask(url, "rules")["groups"]}
    return told | answers()


def unexplained(told: Mapping[str, Any]) -> list[str]:
    """Queries without an answer, though each of their metrics moves on a good day."""
    silent = [query for query in queries() if not told[query]]
    return [query for query in silent if not any(metric.exposed in query for metric in BAD_DAYS)]


def test_every_metric_moves_but_those_of_bad_days(seen: Seen) -> None:
    """With its labels; one that is new moves here, or in a test that bad_days.py names."""
    missing = sorted(EXPECTED.keys() - seen.moved.keys())
    assert not missing, f"{missing}\n{seen.run.tail()}"
    for name, metric in EXPECTED.items():
        labels = {labels for of in seen.moved[name].values() for labels in of}
        assert labels == {",".join(sorted(metric.labels))}, name
    assert seen.moved.keys() <= {metric.exposed for metric in declared()}


@needs_prometheus
def test_prometheus_finds_every_process_and_loads_the_rules(seen: Seen) -> None:
    """By the settings as they lie in compose/."""
    health = {one["labels"]["instance"]: (one["health"], one["lastError"]) for one in seen.told["targets"]}
    assert health == {f"chaos/{process}": ("up", "") for process in ALWAYS}
    rules = [rule for group in seen.told["rules"] for rule in group["rules"]]
    assert len(rules) == 9 and {rule["health"] for rule in rules} <= {"ok", "unknown"}
    assert [rule["lastError"] for rule in rules if rule.get("lastError")] == []


@needs_prometheus
def test_the_dashboard_has_something_to_show_of_a_run(seen: Seen) -> None:
    """Each query is answered, by numbers where its metrics moved."""
    silent = unexplained(seen.told)
    assert not silent, silent


def test_every_line_of_a_log_is_json_that_says_whose_it_is(seen: Seen) -> None:
    """Of each process of ours; and some name episodes."""
    for process, line in lines(seen):
        assert line.startswith("{"), f"{process}: {line}"
        assert {"run": "chaos", "process": process}.items() <= json.loads(line).items(), line
    assert {process for process, _ in lines(seen)} >= ALWAYS - {"engine"}
    assert any("episodes" in json.loads(line) for _, line in lines(seen))


def test_no_log_holds_what_agents_say_or_a_secret(seen: Seen) -> None:
    """Neither prompt, tool result, completion, which repeats it, nor the keys of run, page and agent."""
    for process, line in lines(seen):
        found = [one for one in (PROMPT_MARK, f" {TOOL_MARK}", *seen.secrets) if one in line]
        assert not found, f"{process}: {line}"
    assert len(seen.secrets) > 3


def lines(seen: Seen) -> list[tuple[str, str]]:
    """(process, a line of its log); what the command tells on stdout is its result, no log."""
    logs = [file for file in (seen.run.path / "logs").glob("*.log") if file.stem != "engine"]
    found = [(file.stem, line) for file in sorted(logs) for line in file.read_text().splitlines()]
    printed = seen.run.output.read_text().splitlines()
    return found + [("supervisor", line) for line in printed if not line.startswith('{"kind": ')]
