"""The first hour of somebody with another model behind the agent: no model of ours, no engine, no trainer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compose.run.other_model import answering
from tests.serving import until

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]
COMMAND = (sys.executable, "-m", "tracegrad.compose.cli")
ANSWER = {"id": "chatcmpl-AbC", "model": "gpt-4o", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}
FILE = """
run = "mine"

[[upstream]]
models = ["gpt-*"]
url = "{url}"
api_key_env = "MY_KEY"
"""


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    """Settings with a provider that is there."""
    with answering(ANSWER, key="sk-1") as url:
        (tmp_path / "tracegrad.toml").write_text(FILE.format(url=url))
        yield tmp_path / "tracegrad.toml"


def test_up_captures_other_models_without_any_of_ours(file: Path) -> None:
    """`up` says what came, `tail` shows it; a policy that is not there is 404 with what to configure."""
    folder, environ = file.parent, {**os.environ, "MY_KEY": "sk-1"}
    keyless = {name: value for name, value in os.environ.items() if name != "MY_KEY"}
    for arguments, variables, why in (
        (("up", "--only", "capture"), keyless, "MY_KEY"),
        (("up",), environ, "[policy] model is missing"),
    ):
        refused = subprocess.run(
            [*COMMAND, *arguments], cwd=folder, env=variables, capture_output=True, text=True, timeout=60, check=False
        )
        assert refused.returncode == 78 and why in refused.stderr, refused.stderr
    out = folder / "out.jsonl"
    with out.open("wb") as output, (folder / "err.txt").open("wb") as errors:
        up = subprocess.Popen(
            [*COMMAND, "up", "--only", "capture", "--json"], cwd=folder, env=environ, stdout=output, stderr=errors
        )
    try:
        (said,) = until(lambda: [line for line in out.read_text().splitlines() if "OPENAI_BASE_URL" in line], 120)
        given = json.loads(said)
        assert given["models"] == ["gpt-*"]
        url = given["variables"]["OPENAI_BASE_URL"] + "/chat/completions"

        def ask(model: str) -> tuple[int, str]:
            body = json.dumps({"model": model, "messages": []}).encode()
            request = urllib.request.Request(url, body, {"authorization": "Bearer agents-own"})
            try:
                with urllib.request.urlopen(request, timeout=10) as response:
                    return response.status, response.read().decode()
            except urllib.error.HTTPError as error:
                return error.code, error.read().decode()
            except OSError as error:
                return 0, str(error)

        assert until(lambda: (found := ask("gpt-4o"))[0] and found, 60) == (200, json.dumps(ANSWER))
        status, told = ask("policy")
        assert status == 404 and "[policy] model = DIR" in told
        until(lambda: "first call of another model: gpt-4o" in out.read_text(), 30)
        tail = [*COMMAND, "tail", "llm_calls"]
        shown = subprocess.run(tail, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
        for told in ("UpstreamCall ", " model=gpt-4o ", " upstream=127.0.0.1 ", " status=200 ", " sampled_tokens=4 "):
            assert told in shown.stdout, shown
        assert "sk-1" not in "".join(path.read_text(errors="replace") for path in folder.rglob("*.json*"))
    finally:
        up.terminate()
        up.wait(60)
