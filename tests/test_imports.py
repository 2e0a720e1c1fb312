"""The house's walls: rooms meet only through schemas, and light rooms stay light."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("schemas", "producers", "streams", "trainer", "consumers", "compose")
MAY_IMPORT = {room: {"schemas"} for room in ROOMS} | {"schemas": set(), "compose": set(ROOMS)}
RUN_BY_PATH = {"producers/agent_host.py", "producers/grader_host.py", "compose/guard.py", "consumers/vllm_plugin.py"}
"""Run or loaded without us installed beside them, so they import nothing of ours."""
TORCH_FILES = {"consumers/vllm_plugin.py"}
LIGHT_ROOMS = ("schemas", "producers", "streams", "consumers")
FILES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
MODULES = [
    ".".join(("tracegrad", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__") for path in FILES
]


def name_of(path: Path) -> str:
    """Its path from the root, for messages."""
    return path.relative_to(ROOT).as_posix()


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """(absolute module, line) of every import statement of a file, at any depth."""
    package = ("tracegrad", *path.relative_to(ROOT).parent.parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            yield ".".join((*base, *([node.module] if node.module else []))), node.lineno


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_rooms_import_schemas_only(path: Path) -> None:
    """compose alone knows them all; within a room imports are relative, across rooms absolute."""
    room = path.relative_to(ROOT).parts[0]
    for module, line in imports(path):
        parts = module.split(".")
        assert parts[0] not in ROOMS, f"{name_of(path)}:{line}: bare `{module}`; users have their own"
        if parts[0] == "tracegrad":
            assert len(parts) > 1, f"{name_of(path)}:{line}: name the room"
            assert parts[1] == room or parts[1] in MAY_IMPORT[room], f"{name_of(path)}:{line}: {room} imports {module}"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_within_a_room_are_relative(path: Path) -> None:
    """`from .join import ...`; only a file that is run by its path cannot."""
    room = path.relative_to(ROOT).parts[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            assert not (node.module or "").startswith(f"tracegrad.{room}"), f"{name_of(path)}:{node.lineno}"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_confluent_kafka_has_one_door(path: Path) -> None:
    """compose/kafka*.py; everybody else is handed a Log."""
    if path.parent.name == "compose" and path.name.startswith("kafka"):
        return
    assert not [line for module, line in imports(path) if module.split(".")[0] == "confluent_kafka"]


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_torch_stays_in_the_trainer(path: Path) -> None:
    """And in the small plug-in that the engine loads."""
    if name_of(path).startswith("trainer/") or name_of(path) in TORCH_FILES:
        return
    heavy = {"torch", "transformers", "peft", "vllm", "safetensors"}
    assert not [line for module, line in imports(path) if module.split(".")[0] in heavy]


@pytest.mark.parametrize("name", sorted(RUN_BY_PATH))
def test_files_run_by_path_import_nothing_of_ours(name: str) -> None:
    """They run under the user's Python."""
    assert not [module for module, _ in imports(ROOT / name) if module.split(".")[0] == "tracegrad"]


def test_light_rooms_load_neither_torch_nor_vllm() -> None:
    """A gateway process must not pay seconds and gigabytes for what it does not use."""
    names = [module for module in MODULES if module.split(".")[1] in LIGHT_ROOMS and "vllm_plugin" not in module]
    names = [name for name in names if not name.endswith("_host")]
    code = (
        "import importlib, sys\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        "heavy = sorted({'torch', 'vllm', 'transformers', 'confluent_kafka'} & set(sys.modules))\n"
        "sys.exit(f'loaded: {heavy}' if heavy else 0)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert result.returncode == 0, result.stderr[-2000:]


def sort_key(name: str) -> tuple[int, str]:
    """Constants, then classes, then the rest, as the linter sorts them."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_exports_are_sorted_and_true(path: Path) -> None:
    """`__all__` names public things that the file defines or imports on purpose, in order."""
    tree = ast.parse(path.read_text())
    exported: list[str] | None = None
    defined: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            defined |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = {target.id for target in targets if isinstance(target, ast.Name)}
            defined |= names
            if "__all__" in names and node.value is not None:
                exported = ast.literal_eval(node.value)
    if exported is None:
        assert path.name in ("__init__.py", "__main__.py"), f"{name_of(path)} has no __all__"
        return
    assert exported == sorted(exported, key=sort_key), f"{name_of(path)}: __all__ is not sorted"
    assert set(exported) <= defined, f"{name_of(path)}: {set(exported) - defined} is not there"
    missing = {name for name in exported if name.startswith("_")}
    assert not missing, f"{name_of(path)} exports private {missing}"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_files_and_functions_are_small_ascii_and_say_what_they_are(path: Path) -> None:
    """At most 400 lines, 60 a function; a docstring on top; ASCII."""
    text = path.read_text()
    assert text.isascii(), name_of(path)
    assert len(text.splitlines()) <= 400, name_of(path)
    tree = ast.parse(text)
    assert ast.get_docstring(tree), f"{name_of(path)} has no docstring"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= 60, f"{name_of(path)}:{node.lineno}: {node.name} has {length} lines"


def test_every_package_is_installed() -> None:
    """A folder that setuptools does not know is missing from the wheel."""
    import tomllib

    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    found = {
        ".".join(("tracegrad", *path.parent.relative_to(ROOT).parts)) for path in FILES if path.name == "__init__.py"
    }
    assert found == listed
    schemas = importlib.import_module("tracegrad.schemas")
    assert {info.name for info in pkgutil.iter_modules(schemas.__path__)} >= {"topics", "log", "ids"}
