"""Beside a live run: the example's taps print what the topics hold, whatever lies on them and dies; `chat` asks it.

All parts are real but the engine, which answers by script.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from tests.e2e.chaos_run import ended, make_run
from tests.e2e.engine_beside import EngineBeside
from tests.e2e.live_run import ROOT, TRACEGRAD, LiveRun
from tests.e2e.terminal import CTRL_C, Terminal
from tests.serving import Background, until
from tracegrad.compose.die_with_parent import guarded
from tracegrad.schemas.log.follow import read_to_end
from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.records.calls import LLM_CALLS, CallRecord
from tracegrad.schemas.records.dead_letters import dead_letter_fields
from tracegrad.schemas.records.episodes import EPISODES, Episode
from tracegrad.schemas.records.transitions import decode_group
from tracegrad.schemas.topics import Topic

pytestmark = [pytest.mark.e2e, pytest.mark.kafka, pytest.mark.torch, pytest.mark.timeout(600)]
TAPS = ROOT / "examples" / "taps"
BROKEN = b"{ no record"
STEPS = 3


class Hook(Background):
    """A receiver on loopback that has a bad start: its first posts are answered 503."""

    def __init__(self, num_refused: int) -> None:
        super().__init__(self._serve)
        self.got: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self._left = num_refused
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                hook._left -= 1
                if hook._left < 0:
                    hook.keys.append(self.headers["Idempotency-Key"])
                    hook.got.append(body)
                self.send_response(204 if hook._left < 0 else 503)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Not on the test's output."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"

    def __enter__(self) -> Hook:
        super().__enter__()
        return self

    def _serve(self, stop: Event) -> None:
        self._server.timeout = 0.1
        while not stop.is_set():
            self._server.handle_request()
        self._server.server_close()


class Tap:
    """One script, running, with what it says in files."""

    def __init__(self, folder: Path, run: LiveRun, script: str, topic: Topic, *arguments: str) -> None:
        wiring = run.wiring
        self.name = wiring.topics.name(topic)
        self.out, self.err = (folder / f"{script}-{topic}.{end}" for end in ("out", "err"))
        command = [
            sys.executable,
            str(TAPS / f"{script}.py"),
            wiring.endpoints.bootstrap_servers,
            self.name,
            *arguments,
        ]
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(guarded(command), cwd=folder, stdout=out, stderr=err)

    def lines(self) -> list[str]:
        """What it printed so far."""
        return self.out.read_text().splitlines()

    def end(self, status: int = 0) -> None:
        """By one Ctrl-C."""
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(90) == status, self.err.read_text()
        assert "Traceback" not in self.err.read_text()


@contextlib.contextmanager
def kept_run(folder: Path) -> Iterator[LiveRun]:
    """A run that trains a few steps and then keeps its broker."""
    settings = {"streams.workers": 1, "trainer.lr": 1e-6}
    with EngineBeside(folder / "engine.log") as engine:
        run = make_run(folder, engine=engine, settings=settings)
        with ended(run):
            run.start("--steps", str(STEPS), "--keep")
            until(lambda: run.poll() is not None or (run.path / "endpoints.json").is_file(), 240, what="addresses")
            yield run


def records(run: LiveRun, topic: Topic) -> list[Record]:
    """What the topic holds now."""
    return list(read_to_end(run.wiring.log(), run.wiring.topics.name(topic)))


def told_of(episode: Episode) -> str:
    """The line of an episode."""
    tokens = sum(len(call.sampled_ids) // 4 for call in episode.calls)
    return f"task {episode.task_id}  reward {episode.reward}  tokens {tokens}"


def test_the_taps_tell_what_the_topics_hold(tmp_path: Path) -> None:
    """While it trains, over the broker's death, with records that are none; each ends by one Ctrl-C, silently."""
    with kept_run(tmp_path) as run, Hook(2) as steps_hook, Hook(0) as letters_hook:
        follower = Tap(tmp_path, run, "episodes", Topic.EPISODES)
        posters = [
            Tap(tmp_path, run, "webhook", Topic.TRAINING_STEPS, steps_hook.url),
            Tap(tmp_path, run, "webhook", Topic.DEAD_LETTERS, letters_hook.url),
        ]
        until(lambda: run.poll() is not None or len(follower.lines()) > 8, 240, what="episodes of a live run")
        assert run.poll() is None, run.tail()
        os.kill(until(partial(run.pid_of, "kafka"), 60, what="the broker"), signal.SIGKILL)
        until(lambda: run.poll() is not None or "the pipeline goes on" in run.tail(), 400, what="its end")
        assert run.poll() is None, run.tail()

        with contextlib.closing(run.wiring.kafka().writer()) as writer:
            for topic in (Topic.EPISODES, Topic.TRANSITIONS, Topic.OTLP_SPANS):
                writer.append(run.wiring.topics.name(topic), key=b"", value=BROKEN, partition=0).result(30)
        held = [record for record in records(run, Topic.EPISODES) if record.value != BROKEN]
        until(lambda: len(follower.lines()) >= len(held) or follower.process.poll(), 60, what="all episodes")
        until(lambda: len(steps_hook.keys) >= len(records(run, Topic.TRAINING_STEPS)), 60, what="all steps")
        until(lambda: letters_hook.got, 60, what="the dead letter")
        until(lambda: "left out" in follower.err.read_text(), 60, what="the broken record")
        follower.end(-signal.SIGINT)
        for tap in posters:
            tap.end()
        assert Counter(follower.lines()) == Counter(told_of(EPISODES.decode(record.value)) for record in held)

        steps = records(run, Topic.TRAINING_STEPS)
        assert list(dict.fromkeys(steps_hook.keys)) == [f"{at.topic}/{at.partition}/{at.offset}" for at in steps]
        posted = {one["record"]: one["value"].encode() for one in steps_hook.got}
        assert list(posted.values()) == [record.value for record in steps]
        (letter,) = [record for record in records(run, Topic.DEAD_LETTERS) if record.value == BROKEN]
        (got,) = [one for one in letters_hook.got if one["value"].encode() == BROKEN]
        fields = dead_letter_fields(letter.headers)
        assert {f"tracegrad.{name}": value for name, value in fields.items()}.items() <= got["headers"].items()

        _check_chat(run)
        _check_prompt(run)
        num_posts = len(steps_hook.keys)
        again = Tap(tmp_path, run, "webhook", Topic.TRAINING_STEPS, steps_hook.url)
        _check_frame(tmp_path, run)
        again.end()
        assert len(steps_hook.keys) == num_posts, "what was committed is not posted again"


def _check_chat(run: LiveRun) -> None:
    """Through the LLM gateway, with the example's own tool; the calls of a question are one conversation."""
    command = [TRACEGRAD, "chat", str(run.path), "what is 12 plus 7?", "--json"]
    for _ in range(8):  # the script divides, or knows nothing, one time in four
        asked = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        told = [json.loads(line) for line in asked.stdout.splitlines()]
        if told[-1]["answer"] == "19":
            break
    assert [one["kind"] for one in told] == ["tool_call", "tool_result", "text", "answer"], asked.stderr
    assert (asked.returncode, json.loads(told[0]["text"]), told[1]["text"]) == (0, {"expr": "12+7"}, "19")
    calls = [LLM_CALLS.decode(record.value) for record in records(run, Topic.LLM_CALLS)]
    asked_calls = [call for call in calls if isinstance(call, CallRecord) and call.rollout_id is None]
    assert len({call.conversation_key for call in asked_calls[-2:]}) == 1


def _check_prompt(run: LiveRun) -> None:
    """On a terminal: a question, its answer, the next prompt, and Ctrl-C."""
    with Terminal([TRACEGRAD, "chat", str(run.path)]) as terminal:
        terminal.shows("> ")
        terminal.type("what is 12 plus 7?\n")
        terminal.shows("answer: ")
        until(lambda: terminal.text.endswith("> "), 60, what="the next prompt")
        terminal.type(CTRL_C)
        assert terminal.process.wait(30) == 130
        assert "Traceback" not in terminal.text


def _check_frame(folder: Path, run: LiveRun) -> None:
    """The table of the third, line by line."""
    tap = Tap(folder, run, "transitions", Topic.TRANSITIONS)
    assert tap.process.wait(60) == 0, tap.err.read_text()
    assert re.search(r"left out \S+transitions/0/\d+: ArrowInvalid", tap.err.read_text())
    held = [record for record in records(run, Topic.TRANSITIONS) if record.value != BROKEN]
    expected = []
    for record in held:
        summary, rows = decode_group(record.value)
        rewards = {member.rollout_id: member.reward for member in summary.members}
        scored = [float(reward) for row in rows if (reward := rewards[row.rollout_id]) is not None]
        tokens = sum(int(row.loss_mask.sum()) for row in rows)
        expected.append((record.offset, summary.task_id, len(rows), sum(scored) / len(scored), tokens))
    told = [line.split() for line in tap.lines()[2:]]
    assert [(int(at), task, int(rows), int(tokens)) for at, task, rows, _, tokens in told] == [
        (at, task, rows, tokens) for at, task, rows, _, tokens in expected
    ]
    assert [float(line[3]) for line in told] == pytest.approx([one[3] for one in expected], abs=1e-5)
