"""`[[upstream]]` in the settings, and the keys that the environment holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tracegrad.compose.run.load import load
from tracegrad.compose.run.settings import RunSettings
from tracegrad.compose.run.wiring import upstream
from tracegrad.producers.llm_gateway.config import PolicyConfig, UpstreamConfig
from tracegrad.schemas.errors import ConfigurationError

FILE = """
run = "mine"
[policy]
model = "{model}"
aliases = ["gpt-4o-mini"]
[[upstream]]
models = ["gpt-*"]
url = "https://api.openai.com/v1"
api_key_env = "OPENAI_API_KEY"
[[upstream]]
models = ["local"]
url = "http://127.0.0.1:11434"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Settings with two upstreams."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "tracegrad.toml").write_text(FILE.format(model=tmp_path / "model"))
    return tmp_path / "tracegrad.toml"


def test_upstreams_are_read_in_order(file: Path) -> None:
    """A variable or a flag gives all of them at once, as JSON."""
    assert [one.models for one in load(file, environ={}, flags={}).upstream] == [("gpt-*",), ("local",)]
    others = '[{"models": ["x"], "url": "http://other"}]'
    for given in (
        {"environ": {"TRACEGRAD_UPSTREAM": others}, "flags": {}},
        {"environ": {}, "flags": {"upstream": others}},
    ):
        assert [one.url for one in load(file, **given).upstream] == ["http://other"]  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"--set upstream='\[...\]'"):
        load(file, environ={}, flags={"upstream.url": "http://other"})


def test_a_key_is_read_from_the_environment_and_one_that_is_missing_is_named() -> None:
    """The URL is what clients have for a base URL; a host alone means its /v1."""
    config = UpstreamConfig(models=("gpt-*",), url="https://api.openai.com", api_key_env="OPENAI_API_KEY")
    made = upstream(config, {"OPENAI_API_KEY": "sk-1"})
    assert (made.name, made.base_url, made.key) == ("api.openai.com", "https://api.openai.com/v1", "sk-1")
    assert "sk-1" not in repr(made)
    for environ in ({}, {"OPENAI_API_KEY": ""}):
        with pytest.raises(
            ConfigurationError, match=r"api\.openai\.com: expected its key in the variable OPENAI_API_KEY"
        ):
            upstream(config, environ)
    bare = UpstreamConfig(models=("x",), url="https://openrouter.ai/api/v1/", name="router")
    made = upstream(bare, {})
    assert (made.name, made.base_url, made.key) == ("router", "https://openrouter.ai/api/v1", None)


@pytest.mark.parametrize(
    "fields",
    [
        {"url": "ftp://host"},
        {"url": "api.openai.com/v1"},
        {"url": "https://"},
        {"url": "https://user:key@host"},
        {"url": "https://host/v1?key=1"},
        {"url": "https://host:x/v1"},
        {"models": ()},
        {"models": ("",)},
        {"max_inflight": 0},
    ],
    ids=str,
)
def test_an_upstream_that_cannot_work_is_refused(fields: dict[str, Any]) -> None:
    """At load, and without a word of a key that stands in its URL."""
    with pytest.raises(ConfigurationError) as refused:
        UpstreamConfig(**{"models": ("gpt-*",), "url": "https://api.openai.com/v1", **fields})
    assert "key@" not in str(refused.value)


def test_a_name_is_the_policys_or_an_upstreams() -> None:
    """A pattern that fits leaves it to the policy."""
    policy = PolicyConfig(model="none", aliases=("gpt-4o-mini",))
    url = "https://api.openai.com/v1"
    RunSettings(run="mine", policy=policy, upstream=(UpstreamConfig(models=("gpt-*",), url=url),))
    with pytest.raises(ConfigurationError, match="'gpt-4o-mini' is a name of the policy"):
        RunSettings(run="mine", policy=policy, upstream=(UpstreamConfig(models=("gpt-4o-mini",), url=url),))
