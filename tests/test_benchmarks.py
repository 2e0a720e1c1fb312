"""Benchmarks are run by hand and seldom; what they call changes."""

from __future__ import annotations

import inspect
import itertools
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

pytest.importorskip("torch")

from tests.benchmark_runs import BENCHMARKS, ran
from tests.compose.page.serving import served
from tests.consumers.audit.small_run import small_run
from tests.consumers.views.folding import fold_all, new_state
from tests.serving import Background, free_port
from tracegrad.compose.page.page_file import PAGE_FILE, PageFile
from tracegrad.compose.run.run_dir import Endpoints, RunDir
from tracegrad.compose.run.settings import RunSettings
from tracegrad.consumers.views.results import RESULTS_TOPICS, results_of
from tracegrad.producers.asgi import serve
from tracegrad.producers.llm_gateway.config import PolicyConfig
from tracegrad.schemas.fold import Fold
from tracegrad.schemas.topics import Topic

pytestmark = pytest.mark.torch


def test_transitions_benchmark_still_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On a small group; a line a step."""
    monkeypatch.setattr(sys, "argv", ["transitions.py", "--rollouts", "2", "--turns", "2", "--tokens", "64"])
    runpy.run_path(str(BENCHMARKS / "transitions.py"), run_name="__main__")
    steps = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]]
    assert steps == ["credit", "encode", "judge", "rows", "batches"]


def test_head_benchmark_still_runs() -> None:
    """On a small vocabulary, one bound; its own figures say that a step was taken."""
    lines = ran("head", "--vocabulary", "512", "--tokens", "16", "--bounds", "1024")
    bound, gibibytes, _, loss, grad_norm = lines[1].split()
    assert bound == "1024" and float(gibibytes) > 0 and float(loss) != 0 and float(grad_norm) > 0


@pytest.mark.timeout(300)
def test_gpu_benchmark_still_runs() -> None:
    """At small sizes on a CPU: it is as right as its plain loop, repeats itself, and measures each case."""
    lines = ran("gpu", "--tiny", "--device", "cpu", "--only", "check,shared,store,bits,numerics", timeout_s=280)
    told = [line.partition("] ")[2] for line in lines[1:]]
    assert told[0].startswith("check: OK")
    assert any(line.startswith("shared: plain loop ") for line in told)
    assert [line for line in told if line.startswith("bits:")] == [
        f"bits: float32, {what}: equal bits" for what in ("again", "with restores", "resumed by a new process")
    ]
    assert [line.split(":")[0] for line in told[-2:]] == ["numerics", "numerics"]


def test_plain_math_benchmark_still_runs(tmp_path: Path) -> None:
    """One of two right, and one cut."""

    async def answered(request: Request) -> JSONResponse:
        is_first = "12" in (await request.json())["messages"][0]["content"]
        message = {"content": "12 times 12 is\n144" if is_first else "let me see"}
        return JSONResponse({"choices": [{"message": message, "finish_reason": "stop" if is_first else "length"}]})

    (tmp_path / "tasks.jsonl").write_text(
        "\n".join(json.dumps({"input": f"What is {n} times {n}?", "expected": "144"}) for n in (12, 13))
    )
    app, port = Starlette(routes=[Route("/v1/chat/completions", answered, methods=["POST"])]), free_port()
    with Background(lambda stop: serve(app, host="127.0.0.1", port=port, stop=stop, name="plain")):
        lines = ran("math_plain", f"http://127.0.0.1:{port}/v1", str(tmp_path / "tasks.jsonl"))
    assert lines == ["1 of 2: 0.500 (0.095 to 0.905); 1 cut"]


def test_rollback_benchmark_still_runs() -> None:
    """A few short runs: a row for each kind and length without a change, and one for each change."""
    lines = ran("rollback", "--runs", "10", "--conversations", "3200", "--long", "640", "--window", "200")
    rows = [line.split("|")[1:-1] for line in lines if line.startswith("| ") and " of " in line]
    assert len(rows) == 12 + 5
    assert rows[-1][1].split() == ["1", "of", "1"], "from .7 to nothing is seen"


def test_page_benchmark_still_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a run with a step, made two hundred episodes long: its page is opened, each view has its line."""
    settings = RunSettings(run="mine", policy=PolicyConfig(model="none"))
    run_dir = RunDir.create(tmp_path / "mine", settings)
    run_dir.write_start(
        settings, Endpoints(bootstrap_servers="127.0.0.1:9", llm_url="l", otlp_endpoint="o", engine_urls=("e",))
    )
    run, has = small_run(), (Topic.WEIGHTS, Topic.TRAINING_STEPS)
    file = PageFile(
        run=run_dir.record.hash, mark="", dead_letters=[], counts={}, ends={},
        records=[(topic, value) for topic in has for value in run.values(topic)],
    )  # fmt: skip
    (run_dir.path / PAGE_FILE).write_bytes(msgspec.msgpack.encode(file))
    monkeypatch.setattr(sys, "argv", ["page.py", "--run", str(run_dir.path), "--episodes", "200"])
    main = runpy.run_path(str(BENCHMARKS / "page.py"))
    main["main"]()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[5].rstrip(",") for line in lines[2:-1]] == list(main["_VIEWS"])
    assert "from the command to Run" in lines[1]


def test_index_benchmark_still_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On a thousand episodes: built, measured, asked; each question has its line."""
    monkeypatch.setattr(sys, "argv", ["index.py", "--episodes", "1000"])
    main = runpy.run_path(str(BENCHMARKS / "index.py"))
    main["main"]()
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines[1:7]] == [
        "bare loop", "index", "by the clock", "size", "memory", "up to date already",
    ]  # fmt: skip
    asked = lines[7:]
    assert len(asked) == len(main["_QUESTIONS"]) + len(main["_COUNTS"])
    assert " 20 rows     (all)" in asked[0]


@pytest.mark.kafka
@pytest.mark.engine
@pytest.mark.timeout(300)
def test_llm_gateway_benchmark_still_runs() -> None:
    """Two conversations of three calls, twice, each way; the gateway alone, too."""
    arguments = ("--conversations", "2", "--rounds", "2", "--concurrency", "2", "--json")
    found = json.loads("\n".join(ran("llm_gateway", *arguments, timeout_s=280)))
    (beside,), (alone,) = found["vllm"], found["scripted"]
    sides = [*beside["sides"], *alone["sides"]]
    assert [(side["side"], side["calls"]) for side in sides] == [("vllm", 12), ("gateway", 12), ("scripted", 12)]
    assert all(side["tokens_a_call"] > 1 and side["p95_ms"] >= side["p50_ms"] > 0 for side in sides)
    assert beside["throughput"] > 0 and {"kafka", "engine", "llm", "client"} <= set(sides[1]["cpu_ms"])


def test_recipes_benchmark_goes_on_until_the_tokens_are_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of 6,000 a step: two steps, three more for 30,000, then none; the same command again only reads."""
    made = results_of(fold_all(new_state(), small_run(), RESULTS_TOPICS), run="test")
    asked: list[tuple[int, bool]] = []

    real = subprocess.run

    def train(command: list[str], **asked_of: Any) -> Any:
        if "--steps" not in command:  # the chart's library looks for fonts
            return real(command, **asked_of)
        given = dict(itertools.pairwise(command))
        steps = int(given["--steps"])
        asked.append((steps, "--set=algorithm.rows=transitions" in command))
        each = {"reward": 0.5, "num_tokens": 6000.0, "num_rows": 7.0, "num_row_tokens": 20000.0}
        results = msgspec.structs.replace(
            made, steps=steps, reward_last_ten=0.5, curves={name: [value] * steps for name, value in each.items()}
        )
        folder = tmp_path / given["--run"] / "results"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "results.json").write_bytes(msgspec.json.encode(results))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", train)
    runs = [f"rloo_clip,rows=transitions:{seed}" for seed in (0, 1)]
    chart = tmp_path / "chart.svg"
    main = runpy.run_path(str(BENCHMARKS / "recipes.py"))["main"]
    for _ in range(2):
        main([*runs, "--steps", "2", "--tokens", "30000", "--runs-dir", str(tmp_path), "--chart", str(chart)])
    assert asked == [(2, True), (5, True)] * 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[:5] == lines[5:]
    assert "| 5, 3 | 30.0 | 35 | 100.0 | 1, 0.0 |" in lines[2]
    assert lines[4].startswith("| `rloo_clip,rows=transitions`, 2 seeds |  | .50 (sd .00) |")
    assert chart.read_text().count(">rloo_clip,rows=transitions<") == 1


def test_replay_benchmark_still_runs() -> None:
    """On a small run: a figure for each part, every episode made again; over a longer one memory is told as it goes."""
    first, *lines = ran("replay", "--records", "900", "--long", "2000")
    assert first.startswith("896 records, 256 spans, 128 episodes")
    assert [line.split()[0] for line in lines[:4]] == ["bare", "recorded", "merge", "replay"]
    assert "'episodes': 128, 'groups': 32" in lines[4]
    assert lines[5].endswith("1792 records, 256 episodes")
    assert lines[-1].split()[:2] == ["1792", "records"]


def test_the_workers_benchmark_folds_as_the_worker_asks() -> None:
    """Its fold takes what a Fold takes, method by method."""
    fold = runpy.run_path(str(BENCHMARKS / "streams_worker.py"))["_Fold"]
    for name in ("reset", "restore", "fold", "propose"):
        own, asked = (inspect.signature(getattr(one, name)).parameters for one in (fold, Fold))
        assert [*own] == [*asked], name


def test_the_benchmark_of_told_calls_still_runs() -> None:
    """With and without rendering."""
    for more in ((), ("--render", "examples/calculator/policy")):
        assert ran("told_calls", "--spans", "90", *more)[0].startswith("10 episodes, ")


def test_normalize_benchmark_still_runs() -> None:
    """One round: a line for each kind of spans."""
    assert [line[:26].strip() for line in ran("normalize", "--rounds", "1")] == [
        "plain spans", "model calls", "recordings of frameworks",
    ]  # fmt: skip


@pytest.mark.parametrize("is_permuted", [False, True], ids=["right", "permuted"])
def test_the_hosted_model_of_the_history_benchmark_is_right_three_times_in_four(is_permuted: bool) -> None:
    """By what its grader expects; in the control, of hardly any question that was asked."""
    made = runpy.run_path(str(BENCHMARKS / "history.py"))
    calculate = runpy.run_path(str(made["CALCULATOR"] / "chain.py"))["calculate"]
    tasks, meant = made["tasks_of"](400, is_permuted, 3)
    asked, _ = made["tasks_of"](400, False, 3)
    model = made["HostedModel"](3, meant)
    answers = []
    for task in tasks:
        messages = [{"role": "user", "content": task["input"]}]
        while "tool_calls" in (message := model.message(messages)):
            (call,) = message["tool_calls"]
            result = calculate(json.loads(call["function"]["arguments"])["expr"])
            messages += [message, {"role": "tool", "tool_call_id": call["id"], "content": result}]
        answers.append(message["content"])
    for_grader, for_question = (
        sum(answer == task["expected"] for answer, task in zip(answers, of, strict=True)) for of in (tasks, asked)
    )
    assert 280 < for_grader < 330
    assert for_question < 20 if is_permuted else for_question == for_grader


@pytest.mark.kafka
@pytest.mark.engine
@pytest.mark.network
@pytest.mark.timeout(300)
def test_history_benchmark_still_runs(tmp_path: Path) -> None:
    """Of a plain vLLM: each call of each episode has the token ids that a proxy before it saw."""
    policy = BENCHMARKS.parent / "examples" / "calculator" / "policy"
    arguments = ("--conversations", "24", "--serve", str(policy), "--steps", "0")
    found = json.loads("\n".join(ran("history", str(tmp_path / "history"), *arguments, timeout_s=280)))
    assert found["conversations"] == 24 <= found["calls_seen"]
    assert found["equal_ids"] == found["calls_told"] == found["calls_seen"]
    assert found["masked"] == {}


@pytest.mark.kafka
@pytest.mark.timeout(300)
def test_streams_worker_benchmark_still_runs(broker: str) -> None:
    """A hundred messages: Faust alone, then the worker, each loop takes all of them."""
    arguments = ("--messages", "100", "--bytes", "100", "--bootstrap-servers", broker)
    assert [line.partition("  ")[0] for line in ran("streams_worker", *arguments, timeout_s=280)] == [
        "bare Faust agent",
        "worker, acknowledges only",
        "worker, one output (normalize)",
        "worker, output and marker",
    ]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_hostile_clients_benchmark_still_runs() -> None:
    """Two requests beside two clients: each gateway answers the good one, whatever is sent beside it."""
    assert len(ran("hostile_clients", "--requests", "2", "--clients", "2", timeout_s=280)) >= 2


@pytest.mark.kafka
@pytest.mark.timeout(300)
def test_page_load_benchmark_still_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two clients of a page for three seconds, one of which reads nothing; the other hears of the run."""
    with served(tmp_path) as live:
        arguments = ["page_load.py", "--run", str(live.wiring.run_dir.path), "--clients", "2", "--mute", "1"]
        monkeypatch.setattr(sys, "argv", [*arguments, "--seconds", "3"])
        main = runpy.run_path(str(BENCHMARKS / "page_load.py"))
        pids = {"page": os.getpid(), "kafka": live.kafka.pid}
        monkeypatch.setitem(main["main"].__globals__, "pids_of", lambda run: pids)
        main["main"]()
    assert "heard in the last 20 s: 1 of 1" in capsys.readouterr().out
