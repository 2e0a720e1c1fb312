"""Each form of `tracegrad env` gives back what went in, read by what reads it."""

from __future__ import annotations

import io
import shlex
import subprocess

import pytest
import yaml  # type: ignore[import-untyped]
from dotenv import dotenv_values
from hypothesis import example, given
from hypothesis import strategies as st

from tracegrad.compose.cli.env_forms import Form, written
from tracegrad.schemas.errors import ConfigurationError

NAMES = st.from_regex(r"[A-Z][A-Z0-9_]{0,12}", fullmatch=True)
LINE = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=30)
VARIABLES = st.dictionaries(NAMES, LINE, min_size=1, max_size=4)


@given(VARIABLES)
def test_a_shell_reads_back_what_was_written(variables: dict[str, str]) -> None:
    """Words as a shell splits them."""
    lines = [shlex.split(line) for line in written(variables, Form.SHELL).splitlines()]
    assert [(first, len(words)) for first, *words in lines] == [("export", 1)] * len(variables)
    assert dict(words[1].split("=", 1) for words in lines) == variables


@pytest.mark.slow
def test_a_real_shell_does_too() -> None:
    """With all that it could expand."""
    value = "a b'c\"d $HOME `date` $(id) \\ * # ! ~"
    text = written({"ODD": value}, Form.SHELL) + '\nprintf %s "$ODD"'
    assert subprocess.run(["sh", "-c", text], capture_output=True, text=True, timeout=10, check=True).stdout == value


@given(VARIABLES)
def test_docker_takes_each_line_as_it_is(variables: dict[str, str]) -> None:
    """An --env-file has no quotes; what is no line is refused."""
    assert dict(line.split("=", 1) for line in written(variables, Form.DOCKER).splitlines()) == variables
    with pytest.raises(ConfigurationError, match="one line"):
        written({"A": "b\nc"}, Form.DOCKER)


@example({"ON": ""})
@given(VARIABLES)
def test_kubernetes_reads_back_what_was_written(variables: dict[str, str]) -> None:
    """YAML, in which Kubernetes expands $(NAME), and $$( is $(."""
    env = yaml.safe_load(written(variables, Form.K8S))["env"]
    assert {item["name"]: item["value"].replace("$$(", "$(") for item in env} == {
        name: value.replace("$$(", "$(") for name, value in variables.items()
    }
    assert all(isinstance(item["value"], str) for item in env)


@given(VARIABLES)
def test_a_dotenv_file_reads_back_what_was_written(variables: dict[str, str]) -> None:
    """Nothing in it is expanded."""
    assert dotenv_values(stream=io.StringIO(written(variables, Form.DOTENV) + "\n")) == variables
