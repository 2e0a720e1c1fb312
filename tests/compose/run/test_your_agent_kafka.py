"""docs/your_agent.md, as a reader follows it: its files and commands, in shells that know nothing else."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.compose.run.other_model import answering
from tests.serving import until

pytestmark = [pytest.mark.kafka, pytest.mark.e2e, pytest.mark.timeout(300)]

PAGE = Path(__file__).parents[3] / "docs" / "your_agent.md"
PROVIDER = "https://api.openai.com/v1"
MESSAGE = {"role": "assistant", "content": "Hello from elsewhere."}
ANSWER = {
    "id": "chatcmpl-AbC",
    "object": "chat.completion",
    "created": 1,
    "model": "gpt-4o-mini",
    "choices": [{"index": 0, "finish_reason": "stop", "message": MESSAGE}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7},
}


@pytest.fixture
def provider() -> Iterator[str]:
    """The URL of one that is there."""
    with answering(ANSWER, key="sk-own") as url:
        yield url


def blocks(kind: str) -> list[str]:
    """The page's, in order."""
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def shell(folder: Path, **variables: str) -> dict[str, str]:
    """The project's environment is active; nothing of ours, of a provider's or of OpenTelemetry's is set."""
    ours = ("OTEL_", "OPENAI_", "ANTHROPIC_", "TRACEGRAD_", "AGL_", "TRACEPARENT", "BAGGAGE", "PYTHON", "VIRTUAL_ENV")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    path = f"{Path(sys.executable).parent}:{kept['PATH']}"
    return kept | {"PATH": path, "PWD": str(folder), "PYTHONUNBUFFERED": "1"} | variables


def test_the_page_works_as_it_stands(tmp_path: Path, provider: str) -> None:
    """What it says is seen is seen; the agent gets the provider's answer, and the provider its own key."""
    (capture, policy), (agent,), (start, run, look) = blocks("toml"), blocks("python"), blocks("sh")
    assert PROVIDER in capture and "aliases" in policy
    (tmp_path / "tracegrad.toml").write_text(capture.replace(PROVIDER, provider))
    (tmp_path / "my_agent.py").write_text(agent)
    out = tmp_path / "up.txt"
    with out.open("wb") as output:
        up = subprocess.Popen(
            ["bash", "-ec", start.replace("tracegrad up", "exec tracegrad up")],
            cwd=tmp_path,
            env=shell(tmp_path, OPENAI_API_KEY="sk-own"),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        until(lambda: "OPENAI_BASE_URL=" in out.read_text() or up.poll() is not None, 150)
        assert up.poll() is None, out.read_text()
        until(lambda: _asked(tmp_path, run), 60)
        for line in ("first span", "first call of another model: gpt-4o-mini"):
            until(partial(_is_in, out, line), 30)
        shown = _bash(tmp_path, look).stdout
        told = ("upstream=127.0.0.1", "model=gpt-4o-mini", "status=200", "sampled_tokens=4")
        assert all(word in shown for word in told), shown
        assert "chat gpt-4o-mini" in shown, shown
    finally:
        up.send_signal(signal.SIGINT)
        status = up.wait(60)
    assert status == 130, out.read_text()


def _is_in(file: Path, line: str) -> bool:
    return line in file.read_text()


def _asked(folder: Path, commands: str) -> bool:
    """Whether the agent had its answer; the gateways may still be starting."""
    done = _bash(folder, commands)
    return "Hello from elsewhere." in done.stdout


def _bash(folder: Path, commands: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-ec", commands],
        cwd=folder,
        env=shell(folder),
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
