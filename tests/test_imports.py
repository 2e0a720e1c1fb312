"""The house's walls: rooms meet only through schemas, light rooms stay light, files stay small.

Each test gathers every offence as `file:line: what`, so that one run shows them all.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
ROOMS = ("schemas", "producers", "streams", "trainer", "consumers", "compose")
MAY_IMPORT = {room: {"schemas"} for room in ROOMS} | {"schemas": set(), "compose": set(ROOMS)}
PLUGIN = "consumers/engine/vllm_plugin.py"
RUN_BY_PATH = (
    "producers/runner/agent_host.py",
    "producers/runner/grader_host.py",
    "producers/runner/span_ledger.py",
    "compose/run/die_with_parent.py",
    PLUGIN,
)
"""Run or loaded where we may not be installed, so they import nothing of ours."""
LIGHT_ROOMS = ("schemas", "producers", "streams", "consumers")
HEAVY = {"torch", "transformers", "peft", "vllm", "safetensors"}
CONTROL_FLOW = "compose/run/supervisor.py: _KillAllAtOnce"
"""A signal's way out of the main loop, caught beside it; no error that anybody hears of."""
FILES = tuple(sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py")))


def name_of(path: Path) -> str:
    """Its path from the root."""
    return path.relative_to(ROOT).as_posix()


def room_of(path: Path) -> str:
    """The room that it lies in."""
    return path.relative_to(ROOT).parts[0]


@cache
def tree_of(path: Path) -> ast.Module:
    """Parsed once for all tests."""
    return ast.parse(path.read_text())


@cache
def imports(path: Path) -> tuple[tuple[str, bool, int], ...]:
    """(absolute module, whether written relatively, line) of every import of a file, at any depth."""
    package = ("tracegrad", *path.relative_to(ROOT).parent.parts)
    found = []
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found += [(alias.name, False, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, *([node.module] if node.module else [])))
            found.append((module, bool(node.level), node.lineno))
    return tuple(found)


def test_rooms_import_schemas_only() -> None:
    """compose alone knows them all; bare `import schemas` is forbidden, users have their own."""
    offences = []
    for path in FILES:
        room = room_of(path)
        for module, _, line in imports(path):
            parts = module.split(".")
            is_wrong = parts[0] in ROOMS or (
                parts[0] == "tracegrad" and (len(parts) < 2 or parts[1] not in {room, *MAY_IMPORT[room]})
            )
            if is_wrong:
                offences.append(f"{name_of(path)}:{line}: {module}")
    assert offences == []


def test_imports_within_a_room_are_relative() -> None:
    """`from .join import ...`, so that a room can be read, and moved, by itself."""
    assert [
        f"{name_of(path)}:{line}: {module}"
        for path in FILES
        for module, is_relative, line in imports(path)
        if not is_relative and module.startswith(f"tracegrad.{room_of(path)}")
    ] == []


def test_confluent_kafka_has_one_door() -> None:
    """compose/kafka*.py; everybody else is handed a Log."""
    assert [
        f"{name_of(path)}:{line}"
        for path in FILES
        for module, _, line in imports(path)
        if module.split(".")[0] == "confluent_kafka" and not name_of(path).startswith("compose/kafka/")
    ] == []


def test_heavy_packages_stay_in_the_trainer() -> None:
    """And in the small plug-in that the engine loads."""
    assert [
        f"{name_of(path)}:{line}: {module}"
        for path in FILES
        for module, _, line in imports(path)
        if module.split(".")[0] in HEAVY and room_of(path) != "trainer" and name_of(path) != PLUGIN
    ] == []


@pytest.mark.parametrize("name", RUN_BY_PATH)
def test_files_run_by_path_import_nothing_of_ours(name: str) -> None:
    """They run under the user's Python or in the engine."""
    assert [module for module, _, _ in imports(ROOT / name) if module.split(".")[0] == "tracegrad"] == []


def test_errors_stand_in_one_module() -> None:
    """So that the tree on its top is the whole of it."""
    assert [
        f"{name_of(path)}: {node.name}"
        for path in FILES
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ClassDef)
        and any(ast.unparse(base).endswith(("Error", "Exception")) for base in node.bases)
        if name_of(path) != "schemas/errors.py" and f"{name_of(path)}: {node.name}" != CONTROL_FLOW
    ] == []


def test_only_ids_takes_an_id_apart() -> None:
    """Elsewhere `run_hash_of`, `attempt_of` and `split_episode_id` say what the digits mean."""
    cut = re.compile(r"\[(:8|:24|8:|:28|28:)\]|startswith\((\w+\.)*_?(run|rollout)(_hash|_id)?\)")
    assert [
        f"{name_of(path)}: {found[0]}"
        for path in FILES
        if name_of(path) not in ("schemas/ids.py", *RUN_BY_PATH)
        for found in cut.finditer(path.read_text())
    ] == []


def light_modules() -> Iterator[str]:
    """What a gateway, worker or tap process may load."""
    for path in FILES:
        if room_of(path) in LIGHT_ROOMS and name_of(path) not in RUN_BY_PATH:
            parts = ("tracegrad", *path.relative_to(ROOT).with_suffix("").parts)
            yield ".".join(parts).removesuffix(".__init__")


@pytest.mark.slow
def test_light_rooms_load_nothing_heavy() -> None:
    """A gateway process must not pay seconds and gigabytes for what it does not use."""
    code = (
        "import importlib, sys\n"
        f"for name in {list(light_modules())!r}: importlib.import_module(name)\n"
        f"heavy = sorted({HEAVY | {'confluent_kafka'}!r} & set(sys.modules))\n"
        "sys.exit(f'loaded: {heavy}' if heavy else 0)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert result.returncode == 0, result.stderr[-2000:]


def sort_key(name: str) -> tuple[int, str]:
    """Constants, then classes, then the rest, as the linter sorts them."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


def names_defined(tree: ast.Module) -> tuple[set[str], list[str] | None]:
    """Names that a module binds at its top, and its `__all__`."""
    defined: set[str] = set()
    exported: list[str] | None = None
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
    return defined, exported


def test_exports_are_sorted_and_true() -> None:
    """Every module has an `__all__`, in order, of public names that are there; a bare package needs none."""
    offences = []
    for path in FILES:
        defined, exported = names_defined(tree_of(path))
        if exported is None:
            if path.name not in ("__init__.py", "__main__.py"):
                offences.append(f"{name_of(path)}: no __all__")
            continue
        if exported != sorted(exported, key=sort_key):
            offences.append(f"{name_of(path)}: __all__ is not sorted")
        offences += [f"{name_of(path)}: no {name}" for name in exported if name not in defined]
        offences += [
            f"{name_of(path)}: private {name}"
            for name in exported
            if name.startswith("_") and not name.startswith("__")
        ]
    assert offences == []


def test_files_and_functions_are_small_ascii_and_say_what_they_are() -> None:
    """At most 400 lines, 60 a function; a docstring on top; ASCII."""
    offences = []
    for path in FILES:
        text = path.read_text()
        if not text.isascii():
            offences.append(f"{name_of(path)}: not ASCII")
        if len(text.splitlines()) > 400:
            offences.append(f"{name_of(path)}: {len(text.splitlines())} lines")
        if not ast.get_docstring(tree_of(path)):
            offences.append(f"{name_of(path)}: no docstring")
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > 60:
                    offences.append(f"{name_of(path)}:{node.lineno}: {node.name} has {length} lines")
    assert offences == []
