"""README and docs describe what is there: each path exists, each command is one that the command line takes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
DOCS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]
ROOMS = (
    "schemas",
    "producers",
    "streams",
    "trainer",
    "consumers",
    "compose",
    "examples",
    "docs",
    "tests",
    "benchmarks",
)
YOURS = {
    *("my_agent.py", "agent.py", "file.py", "tasks.jsonl", "train.jsonl.gz", "eval.jsonl", "tracegrad.toml"),
    *("feedback_client.py", "strict.py", "history.toml", "tools.json", "rewards.jsonl"),
}
"""Files of the reader's own, or that a command beside them makes."""
MADE = {
    "config.json",
    "key.json",
    "results.json",
    "audit.json",
    "run.json",
    "replay.json",
    "grades.jsonl",
    "server.properties",
}
"""Files of a run or of a model folder."""
_FILE = re.compile(
    r"(?<![\w/.*-])(?:\.\./)*[A-Za-z_][\w-]*(?:/[\w.-]+)*\.(?:py|md|toml|svg|jsonl\.gz|jsonl|json|lock)\b"
)
_FOLDER = re.compile(r"(?<![\w/.<-])(?:[a-z_][\w-]*/)+(?![\w{<*])")
_LINK = re.compile(r"\]\(([^)#\s]+)")
_NUMBERS = {"S": "0", "N": "1"}
"""What stands in for a number that the reader chooses."""
_CODE = re.compile(r"^```[a-z]*\n(.*?)^```|`([^`\n]+)`", re.MULTILINE | re.DOTALL)


def names(path: Path) -> str:
    """As a test's id."""
    return str(path.relative_to(ROOT))


def codes(path: Path) -> Iterator[str]:
    """Fenced blocks and inline code."""
    for block, inline in _CODE.findall(path.read_text()):
        yield block or inline


def exists(text: str, beside: Path) -> bool:
    """A path from the root, from the document, or, when a folder is known from the context, within a room."""
    return (
        (ROOT / text).exists()
        or (beside / text).exists()
        or any(True for room in ROOMS for _ in (ROOT / room).rglob(text.rstrip("/")))
    )


@pytest.mark.parametrize("path", DOCS, ids=names)
def test_every_path_in_the_docs_exists(path: Path) -> None:
    """Links, and files and folders in code."""
    text = path.read_text()
    links = [link for link in _LINK.findall(text) if "://" not in link]
    assert [link for link in links if not (path.parent / link).exists()] == []
    named = {found for code in codes(path) for kind in (_FILE, _FOLDER) for found in kind.findall(code)}
    own = {name for name in named if Path(name).name in YOURS | MADE or name.startswith(("runs/", "bin/"))}
    assert [name for name in sorted(named - own) if not exists(name, path.parent)] == []


def test_a_path_that_is_gone_is_found() -> None:
    """Else the test above proves nothing."""
    assert exists("streams/credit/fold.py", ROOT) and exists("segments.py", ROOT) and exists("llm_gateway/", ROOT)
    assert not exists("streams/gone.py", ROOT) and not exists("gone/", ROOT)
    assert _FILE.findall("see streams/gone.py, runs") == ["streams/gone.py"] and _FOLDER.findall("gone/") == ["gone/"]


def commands(path: Path) -> Iterator[list[str]]:
    """The arguments of each `tracegrad ...` in code; two on a line stand apart by blanks."""
    for code in codes(path):
        for line in code.replace("\\\n", " ").splitlines():
            for part in re.split(r"\s{2,}|&&|\||;", line.partition("#")[0]):
                found = re.search(r'(?:^|["(/\s])tracegrad\s+([a-z-].*)', part)
                if found:
                    words = shlex.split(re.sub(r'\)"?$', "", found[1].rstrip()))
                    yield [_NUMBERS.get(word, word) for word in words]


def parse(arguments: list[str]) -> None:
    """What the command line does before it runs a command."""
    import typer

    from tracegrad.compose.cli import app

    command: Any = typer.main.get_command(app)
    rest = list(arguments)
    while hasattr(command, "commands"):
        name = rest.pop(0)
        assert name in command.commands, f"tracegrad has no command {name!r}"
        command = command.commands[name]
    command.make_context("tracegrad", rest)


@pytest.mark.parametrize("path", DOCS, ids=names)
def test_every_command_in_the_docs_is_one(path: Path) -> None:
    """Flags and arguments as the parser wants them; nothing is run."""
    for arguments in commands(path):
        try:
            parse(arguments)
        except Exception as error:
            raise AssertionError(f"{names(path)}: tracegrad {shlex.join(arguments)}: {error}") from error


def test_the_docs_name_commands_at_all() -> None:
    """Else the test above proves nothing; and a wrong flag is found."""
    named = {arguments[0] for path in DOCS for arguments in commands(path)}
    assert {"up", "env", "train", "status", "audit", "serve", "topics", "tail"} <= named
    with pytest.raises(Exception, match="No such option"):
        parse(["up", "--onlly", "train"])


def test_every_test_that_security_names_is_one() -> None:
    """Each defence has its test: `FILE::FUNCTION` under tests/, the file left out when it is the one before."""
    named, file = [], ""
    for path, function in re.findall(r"`([\w/.]*)::(\w+)`", (ROOT / "docs" / "security.md").read_text()):
        file = path or file
        named.append(function)
        assert re.search(rf"def {function}\(", (ROOT / "tests" / file).read_text()), (file, function)
    assert len(named) >= 20


def test_every_make_target_in_the_docs_exists() -> None:
    """And the ARGS of `make demo` are the demo's."""
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for path in DOCS:
        for code in codes(path):
            for target, quoted, plain in re.findall(r'(?:^|\s)make ([a-z]+)(?: ARGS=(?:"([^"]*)"|(\S+)))?', code):
                assert target in targets, f"{names(path)}: make {target}"
                if target == "demo":
                    parse(["demo", *shlex.split(quoted or plain)])
