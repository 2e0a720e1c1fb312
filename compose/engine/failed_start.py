"""Why an engine of ours did not start, as its log tells.

In: what one start wrote. Out: the root cause in one line, whether another start would meet it again, one clear sentence
for a known failure. vLLM is several processes: those that only wait for another one that failed end with an exception
that points at a root cause above, so the cause is the first exception of the last process that does not. Pure; no log
makes it raise.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from tracegrad.schemas.text import one_line

_PASSING = (
    (
        r"max seq len.{0,120}KV cache|KV cache is needed|No available memory for the cache blocks",
        "the KV cache is too small for one full context; raise [engine] kv_cache_bytes or lower max_model_len",
    ),
    (r"[Aa]ddress already in use", "its port is taken by another process; free it or choose another"),
    (r"Available memory on node.{0,80}is less than", "too little free memory; lower [engine] kv_cache_bytes"),
    (
        r"CUDA out of memory|OutOfMemoryError|Free memory on device",
        "the GPU has too little free memory; lower [engine] gpu_memory_utilization, or give engine and trainer a GPU "
        "each ([engine] device, [trainer] device)",
    ),
    (
        r"Failed core proc\(s\): \{[^}]*: -\d",
        "its core was killed by a signal: perhaps the system ran out of memory",
    ),
    (
        r"MemoryError|DefaultCPUAllocator: can't allocate|Cannot allocate memory",
        "too little free memory",
    ),
)
"""What another start may not meet again."""
_LASTING = (
    (r"ModuleNotFoundError: No module named 'vllm'", "there is no vLLM in that environment; set [engine] python"),
    (
        r"Head size (\d+) is not supported|head_size.{0,40}not supported",
        "this build lacks the model's head_dim",
    ),
    (r"greater than the derived max_model_len", "[engine] max_model_len is longer than the model's context window"),
    (r"invalid tool call parser|is not a registered tool.?parser", "[engine] tool_call_parser is unknown to this vLLM"),
    (r"unrecognized arguments: (.+)", "[engine] args holds an option that this vLLM does not know"),
    (
        r"model type .{0,60}does not recognize|Model architectures .{0,80}not supported",
        "this vLLM lacks the model",
    ),
    (r"SafetensorError|Error while deserializing header", "a safetensors file of the model is damaged"),
    (r"libcuda|CUDA driver version is insufficient|No CUDA GPUs", "a CUDA build of vLLM found no usable GPU"),
)
_IMPORT = (
    r"\b(?:ModuleNotFoundError|ImportError): ",
    "a module that it needs is missing or does not load: mend the environment of [engine] python",
)
"""Lasting where it is the root cause; vLLM warns of others, which it does without."""
_MARK = re.compile(r"(?P<process>\(\S[^()]*pid=\d+\) ?)?(?:[A-Z]+ \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\] ?)?")
"""What vLLM puts before each line: the process, and what its logger adds."""
_TRACEBACK = "Traceback (most recent call last):"
_POINTS_ELSEWHERE = re.compile(r"[Ss]ee (?:root cause|stack trace)")
_GOES_ON = re.compile(r"Failed to (?:load|instantiate endpoint) plugin ")
"""vLLM logs the exception of a plugin, and starts without it."""
_CHAINED = re.compile(r"The above exception was|During handling of the above")
_LAST_LINES = 12
"""In which a program that says what is wrong without an exception has said it."""
_MAX_CAUSE = 300


class FailedStart(msgspec.Struct, frozen=True, kw_only=True):
    """One start. Example: FailedStart(cause="ModuleNotFoundError: No module named 'x'", is_lasting=True, ...)."""

    cause: str = ""
    """The first exception of the process that failed, in one line; empty: the log has none."""
    is_lasting: bool = False
    """Every other start would fail so: by settings, the model or the installation."""
    is_passing: bool = False
    """Another start may not meet it: a port, memory."""


def read_failed_start(log: str) -> FailedStart:
    """Of what one start wrote."""
    lines = log.splitlines()
    found = list(_exceptions(lines))
    telling = "\n".join([*(text for _, text in found), *lines[-_LAST_LINES:]])
    own = [(process, text) for process, text in found if not _POINTS_ELSEWHERE.search(text)] or found
    cause = next((text for process, text in own if process == own[-1][0]), "")
    is_passing = any(re.search(pattern, telling) for pattern, _ in _PASSING)
    is_known = any(re.search(pattern, telling) for pattern, _ in _LASTING) or bool(re.match(_IMPORT[0], cause))
    cause = one_line(cause)[:_MAX_CAUSE]
    return FailedStart(cause=cause, is_lasting=is_known and not is_passing, is_passing=is_passing)


def explain(log: str) -> str | None:
    """One sentence for a start that failed in a known way, else None. `log` is its cause, and the end of its output."""
    for pattern, sentence in (*_PASSING, *_LASTING, _IMPORT):
        if re.search(pattern, log):
            return sentence
    return None


def _exceptions(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Process and last line of each traceback that ended something, in order; lines of processes that write at once
    lie between each other's."""
    inside: dict[str, bool] = {}
    goes_on: dict[str, bool] = {}
    heading: dict[str, str] = {}
    for number, line in enumerate(lines):
        mark = _MARK.match(line)
        assert mark is not None  # it may match nothing
        process, text = mark["process"] or "", line[mark.end() :]
        if text.startswith(_TRACEBACK):
            inside[process] = True
            above = heading.pop(process, "")
            goes_on[process] = bool(_GOES_ON.match(above) or (goes_on.get(process) and _CHAINED.match(above)))
        elif not inside.get(process):
            heading[process] = text if text.strip() else heading.get(process, "")
        elif text[:1].strip():
            inside[process] = False
            if goes_on[process]:
                continue
            # pydantic tells how many errors there are, and which behind it.
            more = lines[number + 1 :][:2] if "validation error" in text else []
            yield process, " ".join([text, *(_MARK.sub("", one, count=1).strip() for one in more)])
