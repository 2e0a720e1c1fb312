"""Two tiers of tests: what the second one holds is there, and is owed by the changes that it is about."""

from __future__ import annotations

import subprocess
from fnmatch import fnmatchcase

import pytest

from tests.tiers import ITEMS, ROOT, Item, is_left_out, owed

FILES = [
    path.relative_to(ROOT).as_posix()
    for top in ROOT.iterdir()
    if top.name not in (".venv", ".git", ".cache", "runs") and not top.name.endswith("_cache")
    for path in (top.rglob("*") if top.is_dir() else [top])
]


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.name)
def test_an_item_names_what_is_there(item: Item) -> None:
    """Its tests, and files by each of its globs: a folder that moved takes the globs along."""
    for test in item.tests:
        file, _, function = test.partition("::")
        assert (ROOT / file).exists(), test
        assert not function or f"def {function}(" in (ROOT / file).read_text(), test
    assert [glob for glob in item.globs if not any(fnmatchcase(file, glob) for file in FILES)] == []


def test_a_change_owes_what_is_about_it() -> None:
    """By a glob or by a test of its own; all of it where the changes cannot be seen, or a pin changed."""
    own = Item("it", ("tests/e2e/test_it.py", "tests/its"), ("streams/*",))
    named = {"streams/shell/worker.py": True, "tests/its/support.py": True, "tests/e2e/test_it.py": True}
    named |= {"tests/e2e/test_its.py": False, "docs/streams/page.md": False, "requirements/base.txt": True}
    assert {name: own.is_about(name) for name in named} == named
    assert owed(set()) == []
    assert owed(None) == list(ITEMS)
    assert 0 < len(owed({"examples/taps/follow.py"})) < len(ITEMS)


def test_the_second_tier_is_left_out_unless_it_is_named() -> None:
    """By itself or by what lies in it; a folder around it does not name it."""
    chaos, wheel = (
        "tests/e2e/test_chaos.py",
        "tests/packaging/test_extras.py::test_each_extra_resolves_alone_on_each_python",
    )
    assert is_left_out(chaos, ["tests"]) and is_left_out(chaos, ["tests/e2e"])
    assert not is_left_out(chaos, [chaos]) and not is_left_out(chaos, [f"{chaos}::test_it"])
    assert is_left_out("tests/frameworks/test_orders.py") and not is_left_out("tests/e2e/test_killed_demo.py")
    assert is_left_out(wheel, ["tests/packaging"]) and not is_left_out(wheel, ["tests/packaging/test_extras.py"])
    assert not is_left_out(wheel.partition("::")[0])


def test_a_tree_without_its_history_owes_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a clone of one commit does, or an unpacked archive."""
    from tests import tiers

    monkeypatch.setitem(tiers._TOLD, "tested", "0" * 40)
    assert tiers.changed() is None
    told = subprocess.CompletedProcess([], 0, "a.py\nb.py\n")
    monkeypatch.setattr("subprocess.run", lambda *_, **__: told)
    assert tiers.changed() == {"a.py", "b.py"}
