"""Two tiers of tests: what the second one holds is there, and is owed by the changes that it is about."""

from __future__ import annotations

import subprocess
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from tests import tiers
from tests.tiers import ITEMS, ROOT, Item, is_left_out

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
    """By a glob or by a test of its own; and a pin that changed."""
    own = Item("it", ("tests/e2e/test_it.py", "tests/its"), ("streams/*",))
    named = {"streams/shell/worker.py": True, "tests/its/support.py": True, "tests/e2e/test_it.py": True}
    named |= {"tests/e2e/test_its.py": False, "docs/streams/page.md": False, "requirements/base.txt": True}
    assert {name: own.is_about(name) for name in named} == named
    assert 0 < len([item for item in ITEMS if item.is_about("examples/taps/follow.py")]) < len(ITEMS)


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
    assert tiers.changed_since("0" * 40) is None
    assert all(item._replace(tested="0" * 40).is_owed() for item in ITEMS)
    told = subprocess.CompletedProcess([], 0, "a.py\nb.py\n")
    monkeypatch.setattr("subprocess.run", lambda *_, **__: told)
    assert tiers.changed_since("1" * 40) == frozenset({"a.py", "b.py"})


def tree(root: Path, monkeypatch: pytest.MonkeyPatch) -> list[Item]:
    """A repository with a green item, a red one, one that hangs and one that skips; tiers works on it."""
    tests = root / "tests"
    tests.mkdir()
    (root / "pyproject.toml").write_text("")
    (root / ".gitignore").write_text(".cache\n__pycache__\n.pytest_cache\n")
    bodies = {"green": "pass", "red": "assert 'this' == 'that'", "hangs": "__import__('time').sleep(60)"}
    bodies["skips"] = "__import__('pytest').skip('none here')"
    for name, body in bodies.items():
        (tests / f"test_{name}.py").write_text(f"def test_it():\n    {body}\n")
    (tests / "tiers.toml").write_text("".join(f'[[item]]\nname = "{name}"\ntested = "old"\n' for name in bodies))
    for words in ("init -q", "add .", "-c user.name=a -c user.email=a@b.c commit -qm one"):
        subprocess.run(["git", *words.split()], cwd=root, check=True)
    monkeypatch.setattr(tiers, "ROOT", root)
    monkeypatch.setattr(tiers, "_FILE", tests / "tiers.toml")
    monkeypatch.setattr(tiers, "_LOGS", root / ".cache" / "owed")
    return [Item(name, (f"tests/test_{name}.py",), (), "old") for name in bodies]


def commits(root: Path) -> list[str]:
    """The commits that its file tells, of green, red and hangs."""
    told = tomllib.loads((root / "tests" / "tiers.toml").read_text())
    return [one["tested"] for one in told["item"]]


def test_what_was_green_gets_the_commit_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that failed is shown with its end; one that time does not suffice for is named; both are still owed."""
    items = tree(tmp_path, monkeypatch)
    head = tiers._git("rev-parse", "HEAD")
    assert tiers.Run(300, mark=True).run(items[:2]) == 1
    told = capsys.readouterr().out
    assert "green: green" in told and "'this' == 'that'" in told
    assert commits(tmp_path) == [head, "old", "old", "old"]
    assert tiers.Run(2, mark=True).run([items[2]]) == 1
    assert "hangs: expected green tests, got no end" in capsys.readouterr().out
    assert tiers.Run(0, mark=True).run([items[2]]) == 1
    assert "hangs: expected time" in capsys.readouterr().out


def test_a_tree_that_changed_and_tests_that_were_skipped_mark_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was green is then no commit, or not all of it was."""
    green, *_, skips = tree(tmp_path, monkeypatch)
    assert tiers.Run(300, mark=True).run([skips]) == 0
    assert "skips: green" in (told := capsys.readouterr().out) and "1 skipped" in told
    (tmp_path / "new.py").write_text("")
    assert tiers.Run(300, mark=True).run([green]) == 0
    assert "not marked: files differ" in capsys.readouterr().out
    assert commits(tmp_path) == ["old"] * 4
