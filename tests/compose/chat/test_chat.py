"""`tracegrad chat`: an agent in a process of its own, what passes between it and a model that answers by script."""

from __future__ import annotations

import json
import shutil
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import msgspec
import pytest

from tracegrad.compose.chat.agent import ChatAgent
from tracegrad.compose.chat.relay import Relay, Turn, said, tool_results
from tracegrad.compose.chat.talk import Side, Talk
from tracegrad.compose.files import write_record
from tracegrad.compose.run.load import load
from tracegrad.compose.run.report import served_folder, with_start_model
from tracegrad.compose.run.run_dir import Endpoints, RunDir
from tracegrad.compose.run.settings import RunSettings
from tracegrad.compose.run.view_state import run_state
from tracegrad.compose.run.wiring import Wiring
from tracegrad.consumers.views.held_out import HeldOut
from tracegrad.consumers.views.results import Best, results_of
from tracegrad.producers.llm_gateway.config import PolicyConfig
from tracegrad.producers.runner.config import AgentConfig
from tracegrad.schemas.errors import ConfigurationError

pytestmark = pytest.mark.slow
AGENT = """
import json, os, urllib.request

def ask(messages):
    key = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}
    body = json.dumps({"model": "policy", "messages": messages}).encode()
    post = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, key)
    return json.load(urllib.request.urlopen(post))["choices"][0]["message"]

async def solve(task):
    print("what an agent prints is no answer")
    if task["input"] == "raise":
        raise ValueError("as asked")
    if task["input"] == "exit":
        os._exit(3)
    messages = [{"role": "user", "content": task["input"]}]
    while calls := (message := ask(messages)).get("tool_calls"):
        messages += [message, *({"role": "tool", "tool_call_id": one["id"], "content": "28"} for one in calls)]
    return message["content"]
"""
ESCAPE = "\x1b[2J"


class Model:
    """Asks for the tool first, then says what it gave; keeps what it was sent."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        model = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                model.requests.append(request)
                model.headers.append({name.lower(): value for name, value in self.headers.items()})
                last = request["messages"][-1]
                message: dict[str, Any] = {"role": "assistant", "content": f"{last['content']}{ESCAPE}"}
                if last["role"] == "user":
                    call = {
                        "id": "1",
                        "type": "function",
                        "function": {"name": "calc", "arguments": '{"expr": "14*2"}'},
                    }
                    message |= {"content": None, "tool_calls": [call]}
                body = json.dumps({"choices": [{"message": message}]}).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Not on the test's output."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def model() -> Iterator[Model]:
    """One that answers."""
    one = Model()
    yield one
    one.server.shutdown()
    one.server.server_close()


def talk(tmp_path: Path, model: Model, questions: list[str], *, is_json: bool = False, sides: int = 1) -> list[str]:
    """What a person sees of the questions."""
    (tmp_path / "agent.py").write_text(AGENT)
    agent = AgentConfig(callable=f"{tmp_path / 'agent.py'}:solve", cwd=str(tmp_path), python=sys.executable)
    lines: list[str] = []
    asked = [Side(name=f"version {number}", version=number, choose=lambda: None) for number in range(sides)]
    with Relay(model.url, "theirs", lambda turn: one.show_turn(turn), greedy=True) as relay:
        one = Talk(ChatAgent(agent, relay.base_url, relay.key, {}), relay, asked, lines.append, is_json=is_json)
        for question in questions:
            one.ask(question)
    return lines


def test_tools_and_answer_are_shown_as_they_come(tmp_path: Path, model: Model) -> None:
    """The answer once, greedy and as one conversation a question; control characters of a model are escaped."""
    lines = talk(tmp_path, model, ["14 by 2?", "again?"])
    once = ['  calc({"expr": "14*2"})', "    = 28", "answer: 28\\u001b[2J"]
    assert lines == [*once, *once]
    assert [request["temperature"] for request in model.requests] == [0.0] * 4
    conversations = [headers["x-conversation-id"] for headers in model.headers]
    assert conversations[0] == conversations[1] != conversations[2] == conversations[3]
    assert {headers["authorization"] for headers in model.headers} == {"Bearer theirs"}


def test_an_agent_that_raises_or_ends_is_told_and_asked_again(tmp_path: Path, model: Model) -> None:
    """In one line each."""
    lines = talk(tmp_path, model, ["raise", "exit", "14 by 2?"])
    assert lines[0] == "no answer: the agent: ValueError: as asked"
    assert lines[1].startswith("no answer: the agent: its process ended")
    assert lines[-1].startswith("answer: 28")


def answer_of(agent: AgentConfig, model: Model, question: str = "14 by 2?") -> Any:
    """By that agent."""
    with Relay(model.url, "theirs", lambda _: None, greedy=True) as relay:
        return ChatAgent(agent, relay.base_url, relay.key, {}).ask(question)


COMMAND = (
    AGENT
    + """
import asyncio, sys
print(asyncio.run(solve(json.load(sys.stdin))))
"""
)


@pytest.mark.parametrize("kind", ["callable", "command"])
def test_an_agent_that_has_moved_is_found_behind_a_link(tmp_path: Path, model: Model, kind: str) -> None:
    """By either form; else it is said what is missing, and what to do."""
    old, new = tmp_path / "old", tmp_path / "new"
    new.mkdir()
    (new / "agent.py").write_text(AGENT if kind == "callable" else COMMAND)
    file = str(old / "agent.py")
    of_kind: dict[str, Any] = {
        "callable": {"callable": f"{file}:solve"},
        "command": {"command": (sys.executable, file)},
    }
    agent = AgentConfig(cwd=str(old), python=sys.executable, **of_kind[kind])
    with pytest.raises(ConfigurationError, match=r"expected \S+/old.*, got no such file.*a link to it"):
        answer_of(agent, model)
    old.symlink_to(new)
    assert answer_of(agent, model).startswith("28")


def test_two_versions_are_told_one_below_the_other(tmp_path: Path, model: Model) -> None:
    """Each under its name, with the same lines."""
    lines = talk(tmp_path, model, ["14 by 2?"], sides=2)
    half = len(lines) // 2
    assert (lines[0], lines[half]) == ("version 0:", "version 1:")
    assert lines[1:half] == lines[half + 1 :] and lines[1] == '  calc({"expr": "14*2"})'


def test_json_is_a_line_a_turn_and_one_an_answer(tmp_path: Path, model: Model) -> None:
    """Of each version."""
    told = [json.loads(line) for line in talk(tmp_path, model, ["14 by 2?"], is_json=True, sides=2)]
    assert [(one["kind"], one["version"]) for one in told] == [
        (kind, version) for version in (0, 1) for kind in ("tool_call", "tool_result", "text", "answer")
    ]
    assert told[0]["name"] == "calc" and told[3]["answer"] == f"28{ESCAPE}"


def test_a_stranger_who_does_not_show_the_key_is_refused(model: Model) -> None:
    """Other users of the machine reach loopback too."""
    with Relay(model.url, None, lambda _: None, greedy=False) as relay:
        post = urllib.request.Request(f"{relay.base_url}/v1/chat/completions", b"{}", {"authorization": "Bearer x"})
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(post, timeout=10)
        refused.value.close()
        assert refused.value.code == 401 and not model.requests


@pytest.mark.parametrize("odd", [None, [], {}, {"choices": []}, {"choices": [{"message": 1}]}, {"messages": [1]}])
def test_what_is_no_chat_completion_tells_nothing(odd: Any) -> None:
    """Whatever it is."""
    assert said(odd) == [] == tool_results(odd)


class Scripted:
    """An agent of which the model says these texts, and which makes this of them; and its relay."""

    def __init__(self, texts: list[str], answer: str | None) -> None:
        self.texts, self.answer, self.lines = texts, answer, list[str]()
        side = Side(name="one", version=1, choose=lambda: None)
        self.talk = Talk(self, self, [side], self.lines.append, is_json=False)  # type: ignore[arg-type]

    def new_conversation(self) -> None:
        """As Relay."""

    def ask(self, question: str) -> str | None:
        """As ChatAgent."""
        for text in self.texts:
            self.talk.show_turn(Turn(kind="text", text=text))
        return self.answer


@pytest.mark.parametrize(
    ("texts", "answer", "told"),
    [
        (["I think", "25"], "25", ["  I think", "answer: 25"]),
        (["I think", "25"], "x", ["  I think", "  25", "answer: x"]),
        ([], None, ["no answer: the agent gave up"]),
    ],
)
def test_text_that_is_no_answer_is_shown_besides(texts: list[str], answer: str | None, told: list[str]) -> None:
    """An agent may make of it what it likes."""
    scripted = Scripted(texts, answer)
    assert scripted.talk.ask("?") is (answer is not None)
    assert scripted.lines == told


def reported(wiring: Wiring, version: int, folder: str) -> None:
    """The run's report says that this version was the best."""
    score = HeldOut(mean=0.5, low=0.4, high=0.6, num_scored=9, version=version, number=1, step=2, num_tasks=9)
    results = results_of(run_state(wiring), run="mine")
    best = Best(version=version, folder=folder, score=score)
    write_record(wiring.run_dir.results / "results.json", msgspec.structs.replace(results, best=best))


def test_the_best_version_answers_else_the_newest_else_the_one_that_is_named(tmp_path: Path) -> None:
    """Of a version whose folder is gone it is said which are there; 0 is the model that training began with."""
    settings = RunSettings(run="mine", policy=PolicyConfig(model="start"))
    run_dir = RunDir.create(tmp_path / "mine", settings)
    run_dir.write_start(settings, Endpoints(bootstrap_servers="b", llm_url="l", otlp_endpoint="o", engine_urls=("e",)))
    wiring, run = Wiring(run_dir), run_dir.record.hash
    assert served_folder(wiring, None) == ("start", 0)
    for version in (7, 12):
        (run_dir.weights / f"{run}-v{version}-e1").mkdir()
    assert served_folder(wiring, None) == (str(run_dir.weights / f"{run}-v12-e1"), 12)
    assert served_folder(wiring, 7)[1] == 7
    with pytest.raises(ConfigurationError, match=r"--version 9: .*there are 0, 7, 12"):
        served_folder(wiring, 9)
    reported(wiring, 7, folder := str(run_dir.weights / f"{run}-v7-e1"))
    assert served_folder(wiring, None) == (folder, 7)
    moved = Wiring(RunDir.open(run_dir.path.rename(tmp_path / "theirs")))
    for _ in range(2):
        assert served_folder(moved, None) == (str(tmp_path / "theirs" / "trainer" / "weights" / f"{run}-v7-e1"), 7)
        shutil.copytree(tmp_path / "theirs", tmp_path / "mine", dirs_exist_ok=True)  # the original comes back
    reported(wiring, 0, str(tmp_path))
    assert served_folder(wiring, None)[1] == 12, "what nobody trained is not what one asks for"


def test_a_run_may_start_from_the_best_version_of_another(tmp_path: Path) -> None:
    """Which one that is, is looked up when the run is made, and never again: the other may go on."""
    settings = RunSettings(run="mine", policy=PolicyConfig(model="start"))
    other = RunDir.create(tmp_path / "mine", settings)
    other.write_start(settings, Endpoints(bootstrap_servers="b", llm_url="l", otlp_endpoint="o", engine_urls=("e",)))
    (first := other.weights / f"{other.record.hash}-v3-e1").mkdir()
    asked, said = PolicyConfig(model="run:mine"), list[str]()
    policy = with_start_model(asked, RunDir(tmp_path / "next"), said.append)
    assert policy.model == str(first) and said == [f"[policy] model = run:mine: version 3, in {first}"]
    settings = RunSettings(run="next", policy=policy)
    made = RunDir.create(tmp_path / "next", settings)
    made.write_start(settings, Endpoints(bootstrap_servers="b", llm_url="l", otlp_endpoint="o", engine_urls=("e",)))
    (other.weights / f"{other.record.hash}-v9-e1").mkdir()
    assert with_start_model(asked, made, said.append).model == str(first)
    with pytest.raises(ConfigurationError, match="expected a run folder"):
        with_start_model(PolicyConfig(model="run:nobody"), RunDir(tmp_path / "third"), said.append)
    loaded = load(None, environ={}, flags={"run": "x", "policy.model": "run:mine"})
    assert loaded.policy.model == "run:mine"
