"""The product's files as the tests of the house read them: parsed once, with what each of them imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

ROOT = Path(__file__).parents[1]
ROOMS = ("schemas", "producers", "streams", "trainer", "consumers", "compose")
FILES = tuple(sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py")))
PLUGIN = "consumers/engine/vllm_plugin.py"
TOOL_PARSER = "consumers/engine/json_block.py"
RUN_BY_PATH = (
    "compose/die_with_parent.py",
    "producers/runner/hosted/agent_host.py",
    "producers/runner/hosted/grader_host.py",
    "producers/runner/hosted/host_main.py",
    "producers/runner/hosted/span_ledger.py",
    PLUGIN,
    TOOL_PARSER,
)
"""Run or loaded where we may not be installed, so they import nothing of ours."""


When = Literal["load", "call", "never"]
"""The file's own import, a call of a function in it, or type checkers alone."""


class Import(NamedTuple):
    """One import statement's module, at any depth of a file."""

    module: str
    """Absolute."""
    is_relative: bool
    """As it is written."""
    line: int
    names: tuple[str, ...]
    """What is taken from it; some may be modules."""
    when: When
    """What runs it."""


def name_of(path: Path) -> str:
    """Its path from the root."""
    return path.relative_to(ROOT).as_posix()


def room_of(path: Path) -> str:
    """The room that it lies in."""
    return path.relative_to(ROOT).parts[0]


def module_of(path: Path) -> str:
    """What others import it as."""
    return ".".join(("tracegrad", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")


@cache
def tree_of(path: Path) -> ast.Module:
    """Parsed once for all tests."""
    return ast.parse(path.read_text())


@cache
def imports(path: Path) -> tuple[Import, ...]:
    """Every import of a file: inside functions and for type checkers too."""
    package = ("tracegrad", *path.relative_to(ROOT).parent.parts)
    found = []
    for node, when in _statements(tree_of(path), "load"):
        if isinstance(node, ast.Import):
            found += [Import(alias.name, False, node.lineno, (), when) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, *([node.module] if node.module else [])))
            names = tuple(alias.name for alias in node.names)
            found.append(Import(module, bool(node.level), node.lineno, names, when))
    return tuple(found)


def _statements(tree: ast.AST, when: When) -> Iterator[tuple[ast.AST, When]]:
    for node in ast.iter_child_nodes(tree):
        yield node, when
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from _statements(node, "never")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and when == "load":
            yield from _statements(node, "call")
        else:
            yield from _statements(node, when)


def files_imported(path: Path) -> dict[Path, int]:
    """The files of the house that a file imports -> the line where."""
    found = {}
    for module, _, line, names, _ in imports(path):
        modules = [f"{module}.{name}" for name in names if f"{module}.{name}" in _BY_MODULE] or [module]
        found.update({_BY_MODULE[name]: line for name in modules if name in _BY_MODULE})
    return found


def code_lines(path: Path) -> int:
    """Its lines that are neither blank, nor a comment, nor of a docstring; a bare text under a field is one too."""
    prose = {
        number
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines = enumerate(map(str.strip, path.read_text().splitlines()), 1)
    return sum(bool(line) and not line.startswith("#") and number not in prose for number, line in lines)


_BY_MODULE = {module_of(path): path for path in FILES}
