"""Keys that are gone: a file that has one is told what takes its place, a run that was recorded with it opens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tracegrad.compose.run.load import load
from tracegrad.compose.run.pipeline import prepare_run
from tracegrad.compose.run.settings import GONE, RunSettings
from tracegrad.producers.rewards.config import FeedbackConfig
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.ids import RunName


@pytest.mark.parametrize("key", GONE)
def test_a_file_with_a_key_that_is_gone_is_told_what_takes_its_place(key: str, tmp_path: Path) -> None:
    """Not that it may have meant another."""
    section, _, name = key.rpartition(".")
    (tmp_path / "tracegrad.toml").write_text(f'run = "mine"\n[{section}]\n{name} = []\n')
    with pytest.raises(ConfigurationError, match=f"'{name}' in .{section}.; it is gone: ") as refused:
        load(tmp_path / "tracegrad.toml", environ={}, flags={})
    assert GONE[key] in str(refused.value)


@pytest.mark.parametrize("key", GONE)
def test_a_flag_or_a_variable_of_a_key_that_is_gone_is_told_so_too(key: str) -> None:
    """`--set section.key=value`, `TRACEGRAD_SECTION_KEY`."""
    variable = f"TRACEGRAD_{key.replace('.', '_').upper()}"
    for origin, environ, flags in ((f"flag for {key}", {}, {key: "1"}), (variable, {variable: "1"}, {})):
        with pytest.raises(ConfigurationError, match=f"{origin}: unknown key {key}; it is gone: ") as refused:
            load(None, environ=environ, flags={"run": "mine", **flags})
        assert GONE[key] in str(refused.value)


def test_settings_of_an_earlier_release_open_without_the_keys_that_are_gone(tmp_path: Path) -> None:
    """A key that nobody ever had is still refused: it may be a later release's."""
    run_dir = prepare_run(RunSettings(run=RunName("mine")), tmp_path / "mine")
    recorded = json.loads(run_dir.config.read_text())
    run_dir.config.write_text(json.dumps(recorded | {"feedback": {"sources": [{"kind": "langfuse"}], "wait_s": 7.0}}))
    assert run_dir.settings.feedback == FeedbackConfig(wait_s=7.0)
    run_dir.config.write_text(json.dumps(recorded | {"later": 1}))
    with pytest.raises(ConfigurationError, match=r"config\.json: .*written by another release"):
        _ = run_dir.settings
