"""What `replay --from files:` costs, import and fold apart, and whether the files' order changes an episode.

    PYTHONPATH=. python benchmarks/history_files.py DIR [--spans 100000] [--orders time,trace] [--render] [--proto]

Each trace has nine spans: an agent, four calls of a model with 2 kB of content, four tools. A new one begins each
20 ms and lasts 4 s, so that some 200 are at work at any time. `time` is what a Collector writes: requests of 50 spans
of many traces, by their ends. `trace` is what a database gives: a trace behind another, in no order of time, its root
first. Files are JSON lines, or with `--proto` zstd messages behind lengths. Without `--render` every call is said to
be rendered. Out: a line an order with spans a second of the process' own CPU, its memory as it went, and the sha256 of
what it wrote, by which two orders are compared.
"""

from __future__ import annotations

import argparse
import hashlib
import heapq
import itertools
import json
import os
import random
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import zstandard

from tracegrad.compose.cli import app
from tracegrad.compose.history.rendering import HistoryRenderer
from tracegrad.compose.history.run_broker import open_broker
from tracegrad.compose.run.run_dir import RunDir
from tracegrad.compose.run.wiring import Wiring
from tracegrad.schemas.log.follow import read_to_end
from tracegrad.schemas.otlp.read import read_request
from tracegrad.schemas.otlp.signal import TRACES
from tracegrad.schemas.reasons import Reason
from tracegrad.schemas.records.tokens import CallTokens
from tracegrad.schemas.topics import Topic

MODEL = Path(__file__).resolve().parents[1] / "examples" / "calculator" / "policy"
SPANS_A_TRACE, TEMPLATES, BATCH, LINES_A_FILE = 9, 50, 50, 5_000
BEGAN_NS, EVERY_NS, SECOND = 1_700_000_000_000_000_000, 20_000_000, 1_000_000_000
AGENTS, MODELS = "shop", "openinference.instrumentation.openai"
_QUESTION = "what is 12 times 7 minus 5? " * 71
_AT = re.compile(r"@(\d+)@")
_STEP = re.compile(r"(\d+) of (\d+) records")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--spans", type=int, default=100_000)
    parser.add_argument("--orders", default="time,trace")
    parser.add_argument("--render", action="store_true")
    parser.add_argument("--proto", action="store_true")
    parser.add_argument("--replay", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.replay:
        sys.exit(_replay(asked.replay, renders=asked.render))
    told = {}
    for order in asked.orders.split(","):
        files = write_files(asked.folder / f"files-{order}", asked.spans, order, is_proto=asked.proto)
        found = measure(asked.folder, f"by-{order}", files, renders=asked.render)
        told[order] = found.pop("records")
        shutil.rmtree(files)
        print(json.dumps({"order": order, "spans": asked.spans, **found, "records": told[order]}), flush=True)
    if len(set(map(str, told.values()))) > 1:
        sys.exit(f"the orders differ: {told}")


def write_files(folder: Path, num_spans: int, order: str, *, is_proto: bool = False) -> Path:
    """Of so many spans; memory holds those of the traces at work."""
    folder.mkdir(parents=True)
    lines = (_line(batch) for batch in _batches(num_spans // SPANS_A_TRACE, order))
    for number in itertools.count():
        chunk = list(itertools.islice(lines, LINES_A_FILE // (1 if order == "time" else 10)))
        if not chunk:
            return folder
        if is_proto:
            values = [zstandard.compress(read_request(TRACES, line).request.SerializeToString()) for line in chunk]
            data = b"".join(len(value).to_bytes(4) + value for value in values)
        else:
            data = b"\n".join(chunk) + b"\n"
        (folder / f"spans-{number:05d}.{'pb' if is_proto else 'json'}").write_bytes(data)
    raise AssertionError


def _batches(num_traces: int, order: str) -> Iterator[list[tuple[str, str]]]:
    """(scope, span's JSON) of each request."""
    templates = [_trace(number) for number in range(TEMPLATES)]
    if order == "trace":
        numbers = list(range(num_traces))
        random.Random(0).shuffle(numbers)
        for number in numbers:
            made = _spans(templates, number)
            yield [(scope, span) for _, _, scope, span in reversed(made)]
        return
    by_end = heapq.merge(*(_every(templates, begin, num_traces) for begin in range(400)))
    while batch := list(itertools.islice(by_end, BATCH)):
        yield [(scope, span) for _, _, scope, span in batch]


def _every(templates: list[list[tuple[int, str, str]]], begin: int, end: int) -> Iterator[tuple[int, str, str, str]]:
    """The spans of each 400th trace, of which none begins before the one before has ended."""
    for number in range(begin, end, 400):
        yield from _spans(templates, number)


def _spans(templates: list[list[tuple[int, str, str]]], number: int) -> list[tuple[int, str, str, str]]:
    """(end, trace, scope, JSON) of a trace's spans, by their ends."""
    began, trace = BEGAN_NS + number * EVERY_NS, f"{number + 1:032x}"
    return [
        (began + end, trace, scope, _AT.sub(lambda at: str(began + int(at[1])), span.replace("TRACE", trace)))
        for end, scope, span in templates[number % TEMPLATES]
    ]


def _trace(number: int) -> list[tuple[int, str, str]]:
    """(end, scope, JSON with TRACE for its id and @ns@ for times) of a trace's spans, by their ends."""
    question = {"role": "user", "content": f"{number} {_QUESTION}"}
    spans = [_span(1, None, 0, 4 * SECOND, "agent clerk", AGENTS, **{"openinference.span.kind": "AGENT"})]
    for turn in range(4):
        begin, answer = turn * SECOND + 1, {"role": "assistant", "content": f"{turn} of {number}"}
        told = {
            "openinference.span.kind": "LLM",
            "input.value": json.dumps({"model": "gpt-4o", "messages": [question]}),
            "output.value": json.dumps(
                {"id": f"TRACE-{turn}", "choices": [{"message": answer, "finish_reason": "stop"}]}
            ),
        }
        spans.append(_span(10 + turn, 1, begin, begin + SECOND // 2, "chat", MODELS, **told))
        tool = {"openinference.span.kind": "TOOL", "tool.name": "calculator", "output.value": "79"}
        spans.append(_span(20 + turn, 1, begin + SECOND // 2, begin + SECOND * 3 // 4, "calculator", AGENTS, **tool))
    return sorted(spans)


def _span(
    id_: int, parent: int | None, begin: int, end: int, name: str, scope: str, **told: str
) -> tuple[int, str, str]:
    made = {
        "traceId": "TRACE",
        "spanId": f"{id_:016x}",
        **({"parentSpanId": f"{parent:016x}", "flags": 256} if parent else {}),
        "name": name,
        "kind": 1,
        "startTimeUnixNano": f"@{begin}@",
        "endTimeUnixNano": f"@{end}@",
        "attributes": [{"key": key, "value": {"stringValue": value}} for key, value in told.items()],
    }
    return end, scope, json.dumps(made)


def _line(spans: list[tuple[str, str]]) -> bytes:
    scopes = [(scope, ",".join(json_ for one, json_ in spans if one == scope)) for scope in (AGENTS, MODELS)]
    told = ",".join(f'{{"scope":{{"name":"{scope}"}},"spans":[{one}]}}' for scope, one in scopes if one)
    service = '{"attributes":[{"key":"service.name","value":{"stringValue":"shop"}}]}'
    return f'{{"resourceSpans":[{{"resource":{service},"scopeSpans":[{told}]}}]}}'.encode()


def _replay(arguments: list[str], *, renders: bool) -> int:
    """In a process of its own."""
    if not renders:
        setattr(HistoryRenderer, "tokens", lambda self, call: CallTokens(reason=Reason.TEXT))  # noqa: B010
    status: int = app(["replay", *arguments], standalone_mode=False)
    return status


def command(folder: Path, into: str, files: Path, *, renders: bool) -> list[str]:
    """That replays the files into a run of the folder."""
    settings = folder / "history.toml"
    if not settings.exists():
        settings.write_text(
            f'run = "history"\n[history]\nmodels = ["*"]\n[policy]\nmodel = "{MODEL}"\n[replay]\nunrated = "train"\n'
        )
    own = [sys.executable, "-u", __file__, str(folder), *(["--render"] if renders else []), "--replay"]
    return [*own, str(settings), "--from", f"files:{files}", "--into", into, "--runs-dir", str(folder / "runs")]


def measure(folder: Path, into: str, files: Path, *, renders: bool) -> dict[str, Any]:
    """Of one replay, until it ends well."""
    began_s = time.monotonic()
    process = subprocess.Popen(command(folder, into, files, renders=renders), stdout=subprocess.PIPE, text=True)
    samples = _Samples(process.pid)
    samples.start()
    assert process.stdout is not None
    whole, imported, done = [], (0.0, 0.0), {0: 0}
    for line in process.stdout:
        whole.append(line)
        if line.startswith("imported:"):
            imported = time.monotonic() - began_s, samples.cpu_s
        elif step := _STEP.search(line):
            done[100 * int(step[1]) // max(int(step[2]), 1)] = samples.mib
    if process.wait() != 0:
        sys.exit("".join(whole[-20:]))
    num_spans = int(next(re.finditer(r"(\d+) spans", "".join(line for line in whole if "imported:" in line)))[1])
    fold_cpu_s, fold_s = samples.cpu_s - imported[1], time.monotonic() - began_s - imported[0]
    told = next((line.strip() for line in whole if line.startswith("spans:")), "")
    wanted = {share: min(done, key=lambda at, share=share: abs(at - share)) for share in (10, 50, 100)}
    return {
        "import_spans_a_cpu_s": round(num_spans / imported[1]),
        "fold_spans_a_cpu_s": round(num_spans / fold_cpu_s),
        "import_s": round(imported[0]),
        "fold_s": round(fold_s),
        "mib_at": {f"{at} %": done[at] for at in wanted.values()},
        "mib_most": samples.most_mib,
        "load": round(os.getloadavg()[1], 1),
        "told": told,
        "records": records_of(RunDir.open(folder / "runs" / into)),
    }


class _Samples(threading.Thread):
    """Memory and CPU of a process, without its children, while it lives."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._proc = Path("/proc", str(pid))
        self.cpu_s, self.mib, self.most_mib = 0.0, 0, 0

    def run(self) -> None:
        """Until it has ended."""
        while True:
            try:
                fields = self._proc.joinpath("stat").read_text().rpartition(")")[2].split()
            except OSError:
                return
            if fields[0] == "Z":
                return
            self.cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            self.mib = int(fields[21]) * os.sysconf("SC_PAGE_SIZE") // 2**20
            self.most_mib = max(self.most_mib, self.mib)
            time.sleep(0.05)


def records_of(run_dir: RunDir) -> dict[str, str]:
    """How many records of episodes and transitions there are, and the sha256 of their sorted keys and values."""
    found = {}
    with open_broker(run_dir) as servers:
        wiring = Wiring(run_dir, bootstrap_servers=servers)
        for topic in (Topic.EPISODES, Topic.TRANSITIONS):
            all_ = sorted(
                hashlib.sha256((one.key or b"") + b"\0" + (one.value or b"")).digest()
                for one in read_to_end(wiring.log(), wiring.topics.name(topic))
            )
            found[topic.value] = f"{len(all_)}: {hashlib.sha256(b''.join(all_)).hexdigest()[:16]}"
    return found


if __name__ == "__main__":
    main()
