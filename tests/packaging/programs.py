"""The extras and what each promises: the modules that its program starts from, and what those import.

Used by the tests of this folder. An import inside a function counts, as somebody reaches that line; what type
checkers alone see does not.
"""

from __future__ import annotations

import sys
import tomllib
from functools import cache
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.house import ROOT, imports

SERVE = "tracegrad.compose.run.serve"
PROGRAMS = {
    "agent": (
        "tracegrad.producers.runner.hosted.host_main",
        *("tracegrad.producers.runner.hosted.agent_host", "tracegrad.producers.runner.hosted.span_ledger"),
        *("tracegrad.producers.runner.hosted.relay", "tracegrad.producers.client.attach"),
    ),
    "cli": ("tracegrad.compose.cli.__main__", "tracegrad.compose.run.session"),
    "engine": (SERVE, "tracegrad.consumers.engine.weight_sync", "tracegrad.compose.engine.server"),
    "gateway": (SERVE, "tracegrad.producers.otlp_gateway.app", "tracegrad.producers.llm_gateway.app"),
    "kafka": ("tracegrad.compose.local_kafka.broker",),
    "runner": (
        *(SERVE, "tracegrad.producers.tasks.admission", "tracegrad.producers.runner.runner"),
        *("tracegrad.producers.runner.hosted.agent_host", "tracegrad.producers.runner.hosted.span_ledger"),
        *("tracegrad.producers.runner.hosted.host_main", "tracegrad.producers.runner.hosted.grader_host"),
    ),
    "streams": (SERVE, "tracegrad.streams.folds", "tracegrad.streams.shell.worker"),
    "trainer": (SERVE, "tracegrad.trainer.run"),
}
"""Extra -> where its program begins."""
LAUNCHERS = ("compose/run/serve.py", "compose/run/wiring.py")
"""They import a room in a function, when its turn comes: that room is another program's."""
DISTRIBUTIONS = {
    "faust": "faust-streaming",
    "google.protobuf": "protobuf",
    "google.rpc": "googleapis-common-protos",
    "grpc": "grpcio",
    "mode": "mode-streaming",
    "opentelemetry": "opentelemetry-api",
    "opentelemetry.exporter": "opentelemetry-exporter-otlp-proto-http",
    "opentelemetry.instrumentation": "opentelemetry-instrumentation",
    "opentelemetry.proto": "opentelemetry-proto",
    "opentelemetry.sdk": "opentelemetry-sdk",
}
"""Longest prefix of a module -> who brings it, where the two names differ."""


@cache
def requirements(extra: str | None = None) -> tuple[Requirement, ...]:
    """What the project asks for: always, or for one extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = project["dependencies"] if extra is None else project["optional-dependencies"][extra]
    return tuple(map(Requirement, texts))


def declared(extra: str | None = None) -> set[str]:
    """The distributions of an extra, those of the extras that it names included."""
    found = set()
    for requirement in requirements(extra):
        if requirement.name == "tracegrad":
            found |= set().union(*map(declared, requirement.extras))
        else:
            found.add(canonicalize_name(requirement.name))
    return found


def libraries(starts: tuple[str, ...]) -> dict[str, str]:
    """Distribution -> a file that imports it, over all our files that these modules lead to."""
    found: dict[str, str] = {}
    seen: set[Path] = set()
    waiting = [path for name in starts for path in files_of(name)]
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        name = path.relative_to(ROOT).as_posix()
        for module, _, _, names, when in imports(path):
            if when == "never" or (when == "call" and name in LAUNCHERS and module.startswith("tracegrad.")):
                continue
            for full in [f"{module}.{part}" for part in names] or [module]:
                if full.startswith("tracegrad."):
                    waiting += files_of(full)
                elif full.partition(".")[0] not in sys.stdlib_module_names:
                    found.setdefault(distribution(full), name)
    return found


def files_of(module: str) -> list[Path]:
    """The file of a module of ours and those of its packages; a name in a module gives that module's."""
    parts = module.split(".")[1:]
    ways = [ROOT.joinpath(*parts[:count]) for count in range(1, len(parts) + 1)]
    return [file for way in ways for file in (way / "__init__.py", way.with_suffix(".py")) if file.is_file()]


def distribution(module: str) -> str:
    """Who brings a module."""
    parts = module.split(".")
    for count in range(len(parts), 0, -1):
        if (known := DISTRIBUTIONS.get(".".join(parts[:count]))) is not None:
            return known
    return canonicalize_name(parts[0])
