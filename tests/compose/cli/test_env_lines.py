"""`tracegrad env` gives back what went in, read by what reads it."""

from __future__ import annotations

import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracegrad.compose.cli.run import env_lines

NAMES = st.from_regex(r"[A-Z][A-Z0-9_]{0,12}", fullmatch=True)
LINE = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=30)
VARIABLES = st.dictionaries(NAMES, LINE, min_size=1, max_size=4)


@given(VARIABLES)
def test_a_shell_reads_back_what_was_written(variables: dict[str, str]) -> None:
    """Words as a shell splits them."""
    lines = [shlex.split(line) for line in env_lines(variables, is_shell=True)]
    assert [(first, len(words)) for first, *words in lines] == [("export", 1)] * len(variables)
    assert dict(words[1].split("=", 1) for words in lines) == variables


@pytest.mark.slow
def test_a_real_shell_does_too() -> None:
    """With all that it could expand."""
    value = "a b'c\"d $HOME `date` $(id) \\ * # ! ~"
    text = "\n".join([*env_lines({"ODD": value}, is_shell=True), 'printf %s "$ODD"'])
    assert subprocess.run(["sh", "-c", text], capture_output=True, text=True, timeout=10, check=True).stdout == value


@given(VARIABLES)
def test_a_file_of_variables_has_each_line_as_it_is(variables: dict[str, str]) -> None:
    """`docker run --env-file` has no quotes."""
    assert dict(line.split("=", 1) for line in env_lines(variables, is_shell=False)) == variables
