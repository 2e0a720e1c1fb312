"""`[[feedback.sources]]` in the settings, and the keys that the environment holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tracegrad.compose.run.load import load
from tracegrad.compose.run.wiring import source_keys
from tracegrad.producers.feedback_names import RangeConfig
from tracegrad.producers.rewards.config import FeedbackConfig, SourceConfig, SourceKind
from tracegrad.schemas.errors import ConfigurationError

FILE = """
run = "mine"
[policy]
model = "{model}"
[feedback.names.thumb]
low = 0.0
high = 1.0
[[feedback.sources]]
kind = "langfuse"
url = "https://cloud.langfuse.com"
api_key_env = "LANGFUSE_KEYS"
names = {{ "user-feedback" = "thumb" }}
labels = {{ good = 1, bad = 0 }}
[[feedback.sources]]
kind = "phoenix"
url = "http://127.0.0.1:6006"
"""


def test_sources_are_read_with_their_keys_from_the_environment(tmp_path: Path) -> None:
    """One that is missing is named, at the start."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "tracegrad.toml").write_text(FILE.format(model=tmp_path / "model"))
    config = load(tmp_path / "tracegrad.toml", environ={}, flags={}).feedback
    assert config is not None
    langfuse, phoenix = config.sources
    assert (langfuse.label, langfuse.names, langfuse.labels) == (
        "langfuse",
        {"user-feedback": "thumb"},
        {"good": 1.0, "bad": 0.0},
    )
    assert (phoenix.label, phoenix.api_key_env) == ("phoenix", None)
    assert source_keys(config, {"LANGFUSE_KEYS": "pk:sk"}) == {"langfuse": "pk:sk"}
    for environ in ({}, {"LANGFUSE_KEYS": ""}):
        with pytest.raises(ConfigurationError, match="langfuse: expected its key in the variable LANGFUSE_KEYS"):
            source_keys(config, environ)
    assert source_keys(None, {}) == {}


@pytest.mark.parametrize(
    ("sources", "words"),
    [
        ([{"url": "ftp://host"}], "url: expected"),
        ([{"url": "https://user:key@host"}], "url: expected"),
        ([{"url": "https://host?key=1"}], "url: expected"),
        ([{"url": "https://"}], "url: expected"),
        ([{"url": "http://host:x"}], "url: expected"),
        ([{"project": "p"}], "a Langfuse key is of one project"),
        ([{"every_s": 0}], "every_s: expected"),
        ([{"look_back_s": -1}], "look_back_s: expected"),
        ([{"labels": {"good": float("inf")}}], "labels: expected"),
        ([{}, {}], "'langfuse' twice"),
        ([{"look_back_s": 59}], "look_back_s: expected at least wait_s"),
        ([{"names": {"theirs": "mood"}}], "got 'mood'"),
    ],
    ids=str,
)
def test_a_source_that_cannot_work_is_refused(sources: list[dict[str, Any]], words: str) -> None:
    """At load, and without a word of a key that stands in its URL."""
    with pytest.raises(ConfigurationError, match=words) as refused:
        made = tuple(SourceConfig(**{"kind": SourceKind.LANGFUSE, "url": "https://host"} | one) for one in sources)
        FeedbackConfig(names={"thumb": RangeConfig(low=0.0, high=1.0)}, sources=made)
    assert "key@" not in str(refused.value)
