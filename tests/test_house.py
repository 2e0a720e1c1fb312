"""The house's manners: errors and ids have one owner, exports are true, files are small and say what they are.

Each test gathers every offence as `file:line: what`, so that one run shows them all.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from tests.house import FILES, ROOT, RUN_BY_PATH, code_lines, name_of, tree_of

pytestmark = pytest.mark.slow

CONTROL_FLOW = "compose/run/supervisor.py: _KillAllAtOnce"
"""A signal's way out of the main loop, caught beside it; no error that anybody hears of."""
MAX_FILE = 350
TABLE = "schemas/reasons.py"
"""Rows of one form, which nobody reads through: it may be longer."""
MAX_FUNCTION = 50
MAX_FOLDER = 16
MAX_CODE_LINES = 40_000
"""Of the six rooms together: a feature that breaks it names what goes."""


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


def test_only_ids_spells_an_id() -> None:
    """Elsewhere `episode_id`, `new_attempt`, `new_call`, `wire_id` put it together; credentials.py names holders."""
    form = re.compile(r"cmpl-|^(msg|resp|call)_$|^r[thr]-|^0000$")
    joined = re.compile(r"rollout(_id)? \+ |\{[\w.]*rollout(_id)?\}\{|:04x")
    offences = []
    for path in FILES:
        if name_of(path) in ("schemas/ids.py", "schemas/credentials.py", *RUN_BY_PATH):
            continue
        nodes = list(ast.walk(tree_of(path)))
        prose = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        for node in nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
                found = form.search(node.value)
            else:
                found = joined.search(ast.unparse(node)) if isinstance(node, ast.BinOp | ast.JoinedStr) else None
            if found:
                offences.append(f"{name_of(path)}:{getattr(node, 'lineno', 0)}: {found[0]}")
    assert offences == []


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
    """A package's are, in order. A module has none: what bears no underscore is public, and a list says it twice."""
    offences = []
    for path in FILES:
        defined, exported = names_defined(tree_of(path))
        if exported is None:
            continue
        if path.name != "__init__.py":
            offences.append(f"{name_of(path)}: __all__ repeats what the underscores say")
        if exported != sorted(exported, key=sort_key):
            offences.append(f"{name_of(path)}: __all__ is not sorted")
        offences += [f"{name_of(path)}: no {name}" for name in exported if name not in defined]
        offences += [
            f"{name_of(path)}: private {name}"
            for name in exported
            if name.startswith("_") and not name.startswith("__")
        ]
    assert offences == []


def _length(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def test_files_and_functions_are_small() -> None:
    """A reader holds one in mind; a folder fits on a screen."""
    offences = set()
    for path in (*FILES, *(ROOT / "tests").rglob("*.py")):
        if len(path.read_text().splitlines()) > MAX_FILE and name_of(path) != TABLE:
            offences.add(name_of(path))
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _length(node) > MAX_FUNCTION:
                offences.add(f"{name_of(path)}: {node.name}")
    assert offences == set()
    crowded = {folder: num for folder, num in Counter(path.parent for path in FILES).items() if num > MAX_FOLDER}
    assert crowded == {}


def test_the_rooms_stay_under_their_ceiling() -> None:
    """One maintainer can hold them in mind."""
    assert sum(map(code_lines, FILES)) <= MAX_CODE_LINES


def test_comments_docstrings_and_blank_lines_are_no_code(tmp_path: Path) -> None:
    """So words are free, and joining them saves nothing."""
    path = tmp_path / "one.py"
    path.write_text(
        '"""Two\nlines."""\n\n# why\nclass A:\n    x: int = 1\n    """Its unit."""\n    y: str = "# text"\n'
    )
    assert code_lines(path) == 3


def test_files_are_ascii_and_say_what_they_are() -> None:
    """In a docstring on top."""
    assert [name_of(path) for path in FILES if not path.read_text().isascii()] == []
    assert [name_of(path) for path in FILES if not ast.get_docstring(tree_of(path))] == []
