"""A hub name is fetched once, or refused in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracegrad.compose.engine.fetch_model import with_local_model
from tracegrad.producers.llm_gateway.config import PolicyConfig
from tracegrad.schemas.errors import ConfigurationError

pytestmark = pytest.mark.slow

hub = pytest.importorskip("huggingface_hub")


def test_a_folder_stays_as_it_is(tmp_path: Path) -> None:
    """Nothing is fetched."""
    policy = PolicyConfig(model=str(tmp_path))
    assert with_local_model(policy, pytest.fail) is policy


def test_a_hub_name_becomes_the_folder_it_was_fetched_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And only files without code."""
    asked: dict[str, object] = {}

    def fetch(name: str, **options: object) -> str:
        asked.update(options, name=name)
        return str(tmp_path)

    monkeypatch.setattr(hub, "snapshot_download", fetch)
    said: list[str] = []
    policy = with_local_model(PolicyConfig(model="org/small"), said.append)
    assert policy.model == str(tmp_path)
    assert asked["name"] == "org/small" and "*.bin" not in str(asked["allow_patterns"])
    assert said == ["fetching org/small from the hub"]


def test_an_unreachable_hub_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the remedy."""

    def fetch(name: str, **options: object) -> str:
        raise OSError("no route to host")

    monkeypatch.setattr(hub, "snapshot_download", fetch)
    with pytest.raises(ConfigurationError, match=r"no route to host; name a local folder"):
        with_local_model(PolicyConfig(model="org/small"), lambda _: None)
