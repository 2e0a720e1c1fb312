"""The house's walls: rooms meet only through schemas, programs of a room not at all, light rooms stay light.

Each test gathers every offence as `file:line: what`, so that one run shows them all.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.house import (
    FILES,
    PLUGIN,
    ROOMS,
    ROOT,
    RUN_BY_PATH,
    TOOL_PARSER,
    files_imported,
    imports,
    module_of,
    name_of,
    room_of,
)

pytestmark = pytest.mark.slow

MAY_IMPORT = {room: {"schemas"} for room in ROOMS} | {"schemas": set(), "compose": set(ROOMS)}
APART = {
    "producers": ("llm_gateway", "otlp_gateway", "rewards", "runner", "tasks"),
    "streams": ("assemble", "credit", "normalize", "shell"),
    "consumers": ("audit", "engine", "history", "index", "views"),
    "compose": ("engine", "kafka", "local_kafka"),
}
"""Folders of a room that do not import each other; what two of them share lies beside them, or in schemas. So a fold
knows neither another fold nor the shell that drives it, and a view nothing of the audit."""
TOPS = {"compose": ("run", "history", "page", "cli"), "consumers": ("page",)}
"""Folders of a room that may import those that stay apart, and each what stands before it; never the other way."""
DOORS = {
    "confluent_kafka": ("compose/kafka/",),
    "faust": ("streams/shell/",),
    "mode": ("streams/shell/",),
    "aiokafka": ("streams/shell/",),
    **dict.fromkeys(("torch", "transformers", "peft", "vllm", "safetensors"), ("trainer/", PLUGIN, TOOL_PARSER)),
}
"""Package -> the only places that import it; everybody else is handed what is made of it."""
ALONE = {"trainer/algorithm/": {"torch", "msgspec", "tracegrad.schemas.errors", "tracegrad.schemas.section"}}
"""Folder -> all that it imports besides itself and Python's own library, so that its formulas can be read alone; a
recipe is a section of the settings."""
LIGHT_ROOMS = ("schemas", "producers", "streams", "consumers")
SLOW = {"numpy", "pyarrow", "starlette", "uvicorn", "faust"}
"""A command that shows or starts something does not wait for these."""
HEAVY = {"torch", "transformers", "peft", "vllm", "safetensors", "confluent_kafka"}


def test_rooms_import_schemas_only() -> None:
    """compose alone knows them all, and the root; bare `import schemas` is forbidden, users have their own."""
    offences = []
    for path in FILES:
        room = room_of(path)
        for module, _, line, *_ in imports(path):
            parts = module.split(".")
            is_wrong = (
                parts[0] in ROOMS
                or (module == "tracegrad" and room != "compose")
                or (parts[0] == "tracegrad" and len(parts) > 1 and parts[1] not in {room, *MAY_IMPORT[room]})
            )
            if is_wrong:
                offences.append(f"{name_of(path)}:{line}: {module}")
    assert offences == []


def test_imports_within_a_room_are_relative() -> None:
    """`from .join import ...`, so that a room can be read, and moved, by itself."""
    assert [
        f"{name_of(path)}:{line}: {module}"
        for path in FILES
        for module, is_relative, line, *_ in imports(path)
        if not is_relative and module.startswith(f"tracegrad.{room_of(path)}")
    ] == []


def test_folders_of_a_room_stay_apart() -> None:
    """They meet on topics, as rooms do; the room's top may know them all."""
    offences = []
    for path in FILES:
        room, folder, *_ = path.relative_to(ROOT).parts
        apart = APART.get(room, ())
        for target, line in files_imported(path).items():
            other = target.relative_to(ROOT).parts
            if folder in apart and other[0] == room and other[1] in apart and other[1] != folder:
                offences.append(f"{name_of(path)}:{line}: {name_of(target)}")
    assert offences == []


def test_folders_that_stay_apart_import_none_that_uses_them() -> None:
    """How a broker is asked is not bound to how a run is started: each can be used, and read, without it."""
    offences = []
    for path in FILES:
        room, folder, *_ = path.relative_to(ROOT).parts
        tops = TOPS.get(room, ())
        above = tops[tops.index(folder) + 1 :] if folder in tops else tops if folder in APART.get(room, ()) else ()
        for target, line in files_imported(path).items():
            other = target.relative_to(ROOT).parts
            if other[0] == room and other[1] in above:
                offences.append(f"{name_of(path)}:{line}: {name_of(target)}")
    assert offences == []


def test_a_model_api_is_known_to_the_routes_alone() -> None:
    """So that one more is its own file and a row; all else of the gateway sees a ChatRequest and events."""
    neutral = {"__init__.py", "chat_request.py", "events.py", "openai_error.py", "reading.py"}
    assert [
        f"{name_of(path)}:{line}: {name_of(target)}"
        for path in FILES
        for target, line in files_imported(path).items()
        if name_of(target).startswith("producers/llm_gateway/api/") and target.name not in neutral
        if name_of(path) != "producers/llm_gateway/app.py" and path.parent != target.parent
    ] == []


def test_no_module_imports_itself_in_a_circle() -> None:
    """Also not through an import inside a function or for type checkers only: it is one module in several files."""
    try:
        TopologicalSorter({name_of(path): map(name_of, files_imported(path)) for path in FILES}).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


def test_each_outside_package_has_its_door() -> None:
    """So that another broker client, stream library or tensor library is a matter of one folder."""
    assert [
        f"{name_of(path)}:{line}: {module}"
        for path in FILES
        for module, _, line, *_ in imports(path)
        if not name_of(path).startswith(DOORS.get(module.split(".")[0], ("",)))
    ] == []


@pytest.mark.parametrize("folder", ALONE)
def test_what_stands_alone_imports_nothing_else(folder: str) -> None:
    """No records of the log."""
    assert [
        f"{name_of(path)}:{line}: {module}"
        for path in FILES
        if name_of(path).startswith(folder)
        for module, _, line, *_ in imports(path)
        if not module.startswith("tracegrad." + folder.rstrip("/").replace("/", "."))
        and not {module, module.split(".")[0]} & (ALONE[folder] | sys.stdlib_module_names)
    ] == []


@pytest.mark.parametrize("name", RUN_BY_PATH)
def test_files_run_by_path_import_nothing_of_ours(name: str) -> None:
    """They run under the user's Python or in the engine."""
    assert list(files_imported(ROOT / name)) == []


def light_modules() -> Iterator[str]:
    """What a gateway, worker or tap process may load."""
    for path in FILES:
        if room_of(path) in LIGHT_ROOMS and name_of(path) not in RUN_BY_PATH:
            yield module_of(path)


@pytest.mark.parametrize(
    ("modules", "heavy"),
    [
        pytest.param(list(light_modules()), HEAVY, id="light rooms"),
        pytest.param(["tracegrad.compose.cli"], HEAVY - {"confluent_kafka"} | SLOW, id="the command line's help"),
        pytest.param(["tracegrad.compose.cli.chat"], {"httpx"}, id="a command of who installed another extra"),
    ],
)
def test_light_programs_load_nothing_heavy(modules: list[str], heavy: set[str]) -> None:
    """A gateway must not pay seconds and gigabytes, nor `--help` a quarter of its time, for what they do not use."""
    code = (
        "import importlib, sys\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        f"heavy = sorted({heavy!r} & set(sys.modules))\n"
        "sys.exit(f'loaded: {heavy}' if heavy else 0)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
