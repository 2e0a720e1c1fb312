"""The plug-in before it meets a model: inert, alone, and strict about folders and tensors."""

from __future__ import annotations

import ast
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tracegrad.consumers.engine import vllm_plugin
from tracegrad.consumers.engine.vllm_plugin import check_files, check_index, resolve_version

SOURCE = Path(vllm_plugin.__file__)


def test_register_is_inert_without_our_variable() -> None:
    """A user's own vLLM in the same environment is not touched: nothing is imported, no thread started."""
    script = (
        "import sys, threading, runpy\n"
        f"runpy.run_path({str(SOURCE)!r}, run_name='plugin')['register']()\n"
        "print(sorted(m for m in sys.modules if m.split('.')[0] in ('vllm', 'torch', 'tracegrad', 'safetensors')))\n"
        "print(threading.active_count())\n"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", script], capture_output=True, text=True, timeout=30, check=True, env={}
    )
    assert done.stdout.split("\n")[:2] == ["[]", "1"]


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


@pytest.mark.torch
@pytest.mark.parametrize("rows", [1, 7, 20, 1000])
def test_widened_products_are_float32_products_rounded_once(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the pieces of the weight, with a bias or without."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(vllm_plugin, "_CHUNK_NUMEL", 24 * rows)
    torch.manual_seed(0)
    x, weight, bias = (torch.randn(shape, dtype=torch.bfloat16) for shape in ((5, 24), (20, 24), (20,)))
    widened_linear = vllm_plugin.make_widened_linear()
    for given in (bias, None):
        got = widened_linear(x, weight, given)
        exact = torch.nn.functional.linear(x.float(), weight.float(), None if given is None else given.float())
        assert got.dtype == torch.bfloat16
        torch.testing.assert_close(got.float(), exact, rtol=2.0**-8, atol=1e-6)


def test_version_folder_is_found_under_the_root_only(tmp_path: Path) -> None:
    """Dots, links and the root itself lead nowhere; no root, no load."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "v1").mkdir(parents=True)
    outside.mkdir()
    (root / "link").symlink_to(outside)
    assert resolve_version(str(root), str(root / "v1")) == (root / "v1").resolve()
    for path in (root, outside, root / "link", root / "v1" / ".." / ".." / "outside"):
        with pytest.raises(ValueError, match="expected a version folder under"):
            resolve_version(str(root), str(path))
    with pytest.raises(ValueError, match="got nothing at"):
        resolve_version(str(root), str(root / "v2"))
    with pytest.raises(ValueError, match="TRACEGRAD_WEIGHT_ROOT"):
        resolve_version("", str(root / "v1"))


def test_files_must_be_inside_and_whole(tmp_path: Path) -> None:
    """Only listed safetensors are loaded; a size that differs, or a name that leaves the folder, is refused."""
    folder = tmp_path / "v1"
    folder.mkdir()
    (folder / "a.safetensors").write_bytes(b"1234")
    (folder / "unlisted.safetensors").write_bytes(b"1234")
    (folder / "config.json").write_bytes(b"{}")
    listed = [{"name": "a.safetensors", "bytes": 4}, {"name": "config.json", "bytes": 2}]
    assert check_files(folder, listed) == [folder / "a.safetensors"]
    for bad in ({"name": "a.safetensors", "bytes": 5}, {"name": "b.safetensors", "bytes": 4}):
        with pytest.raises(ValueError, match="bytes"):
            check_files(folder, [bad])
    (tmp_path / "x.safetensors").write_bytes(b"1234")
    with pytest.raises(ValueError, match="inside"):
        check_files(folder, [{"name": "../x.safetensors", "bytes": 4}])


def test_tensors_must_be_those_of_the_engines_model(tmp_path: Path) -> None:
    """A name too many, too few or of another shape is refused; a tied head may come or not."""
    file = tmp_path / "f"
    base = {"model.embed_tokens.weight": (file, (8, 4)), "model.norm.weight": (file, (4,))}
    head = {"lm_head.weight": (file, (8, 4))}
    check_index(dict(base), base, is_tied=False)
    check_index(base | head, base, is_tied=True)
    check_index(dict(base), base | head, is_tied=True)
    check_index(dict(base), None, is_tied=False)
    with pytest.raises(ValueError, match="1 missing"):
        check_index({"model.norm.weight": (file, (4,))}, base, is_tied=True)
    with pytest.raises(ValueError, match="1 unknown"):
        check_index(base | head, base, is_tied=False)
    with pytest.raises(ValueError, match="shape"):
        check_index(base | {"model.norm.weight": (file, (5,))}, base, is_tied=False)
