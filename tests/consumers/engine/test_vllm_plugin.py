"""The plug-in before it meets a model: alone, and strict about tensors."""

from __future__ import annotations

import ast
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tracegrad.consumers.engine import vllm_plugin
from tracegrad.consumers.engine.vllm_plugin import check_index

SOURCE = Path(vllm_plugin.__file__)


def test_process_spawned_by_a_server_that_died_meanwhile_ends() -> None:
    """A spawned Python needs a second to come up; its parent may be gone by then, and init its parent."""
    script = f"import runpy, time; runpy.run_path({str(SOURCE)!r}, run_name='__mp_main__'); time.sleep(30)"
    dead = subprocess.Popen([sys.executable, "-S", "-c", ""])
    dead.wait(30)
    done = subprocess.run(
        [sys.executable, "-S", "-c", script], env={"TRACEGRAD_ENGINE_PARENT": str(dead.pid)}, timeout=25, check=False
    )
    assert done.returncode == -signal.SIGKILL


def test_plugin_imports_only_the_standard_library_at_its_top() -> None:
    """So it can be laid beside any vLLM installation; torch and vllm come when called."""
    imported = set()
    for node in ast.walk(ast.parse(SOURCE.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported.add((node.module or "").split(".")[0])
    assert imported <= set(sys.stdlib_module_names)


def test_tensors_must_be_those_of_the_engines_model(tmp_path: Path) -> None:
    """A name too many, too few or of another shape is refused; a tied head may come or not."""
    file = tmp_path / "f"
    base = {"model.embed_tokens.weight": (file, (8, 4)), "model.norm.weight": (file, (4,))}
    head = {"lm_head.weight": (file, (8, 4))}
    check_index(dict(base), base, is_tied=False)
    check_index(base | head, base, is_tied=True)
    check_index(dict(base), base | head, is_tied=True)
    with pytest.raises(ValueError, match="1 missing"):
        check_index({"model.norm.weight": (file, (4,))}, base, is_tied=True)
    with pytest.raises(ValueError, match="1 unknown"):
        check_index(base | head, base, is_tied=False)
    with pytest.raises(ValueError, match="shape"):
        check_index(base | {"model.norm.weight": (file, (5,))}, base, is_tied=False)
