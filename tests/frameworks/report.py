"""docs/frameworks.md, made of the fixtures: `python -m tests.frameworks.report` writes it.

In: the committed recordings and the catalogue. Out: the page. Invariant: each number on it is counted now, by the folds
that are installed; a test compares the page with what this makes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path

from tests.frameworks.catalogue import CATALOGUE, Entry
from tests.frameworks.fixture import Recording, fixtures, load
from tests.frameworks.judge import Score, score

PAGE = Path(__file__).parents[2] / "docs" / "frameworks.md"
_HEAD = """# Frameworks: what is seen of each

Recorded from the real packages against both gateways, in front of an engine that answers by script: a planner asks for
two tools at once, of which one fails, reaches an expert, which asks for a tool too. `runner`: one conversation, started
as the runner starts a command. `captured`: two conversations one after the other in a process that nobody of ours
started, which knows two addresses and nothing else. "Agents at once": a coordinator asks two agents at once, one of
them asks a fourth, their last answers are equal, a tool runs twice with equal arguments, and the captured conversations
run at once; `hidden` leaves the messages' content out of the spans, as their settings allow; `content` has a switch
on, without which the instrumentation tells no content or no tools (`tests/frameworks/content.py`). The counts are those
of normalize and assemble over the recordings in `tests/frameworks/fixtures/`; the truth beside them comes from the
agents' own tools and instructions.

- calls: joined to a span that tells of them, of the calls that have such a span; a second figure in brackets is all
  calls, where some have none. A span of the HTTP client alone tells nothing.
- agents: calls with the right agent's name. The rest is unknown, never wrong.
- tools: executions at the call that asked for them, with the true outcome; `+n ?` are those of which nothing tells how
  they ended. The rest is missing, never wrong.
- episodes: records that the conversations' calls came to lie in; more than conversations means that calls of one lie
  apart, because nothing that they bear says that they belong together.

Every recording loads the instrumentors of the HTTP clients too (`HTTPXClientInstrumentor`, and
`HTTX2` for openai 3 and later), because they carry `traceparent`; those named `-bare` do not. Only a replay of a
[history](history.md) reads the content of messages. This page is made by `python -m tests.frameworks.report`, the
recordings by `python -m tests.frameworks.record`.

A script forces no tool call, and vLLM does: `tests/frameworks/test_smolagents_on_vllm.py` has smolagents, which demands
one with each request, call its tools on vLLM 0.32 through the LLM gateway. None of its calls is constrained, and each
sampled token trains.

| framework | instrumentation | way | calls | agents | tools | episodes |
|---|---|---|---|---|---|---|
""".replace("HTTX2", "HTTPX2ClientInstrumentor")


def scores() -> dict[tuple[str, str], tuple[Recording, Score]]:
    """Of every fixture, by name and way."""
    read = [load(path) for path in fixtures()]
    return {(one.name, one.way): (one, score(one)) for one in read}


def _rows(counted: Mapping[tuple[str, str], tuple[Recording, Score]]) -> Iterator[str]:
    for entry in CATALOGUE:
        for way in ("runner", "captured"):
            if (entry.name, way) in counted:
                yield _row(entry, way, counted[entry.name, way][1])


def _row(entry: Entry, way: str, one: Score) -> str:
    calls = f"{one.joined_with_span}/{one.with_span}" + (f" ({one.calls})" if one.calls != one.with_span else "")
    agents = f"{one.agents_right}/{one.agents}" if one.agents else "-"
    agents += f" ({one.agents_wrong} wrong)" if one.agents_wrong else ""
    tools = f"{one.tools_right}" + (f" +{one.tools_unknown} ?" if one.tools_unknown else "") + f"/{one.tools}"
    tools += f" ({one.tools_wrong} wrong)" if one.tools_wrong else ""
    kind = entry.name.partition("-")[2].replace("-", ", ")
    return f"| {entry.title} | {kind} | {way} | {calls} | {agents} | {tools} | {one.episodes}/{one.conversations} |"


def _totals(counted: Mapping[tuple[str, str], tuple[Recording, Score]]) -> Iterator[str]:
    for way in ("runner", "captured"):
        found = [one for (_, their), (_, one) in counted.items() if their == way]
        joined, spanned, calls = (
            sum(getattr(one, n) for one in found) for n in ("joined_with_span", "with_span", "calls")
        )
        right, agents = sum(one.agents_right for one in found), sum(one.agents for one in found)
        known, unknown = sum(one.tools_right for one in found), sum(one.tools_unknown for one in found)
        tools, episodes = sum(one.tools for one in found), sum(one.episodes for one in found)
        yield (
            f"| **all** | | {way} | {joined}/{spanned} ({calls}) | {right}/{agents} | {known} +{unknown} ?/{tools} | "
            f"{episodes}/{sum(one.conversations for one in found)} |"
        )


def _notes() -> Iterator[str]:
    yield "\n## What is not seen, and why\n"
    for title, entries in groupby(CATALOGUE, key=lambda entry: entry.title):
        for entry in entries:
            if entry.note:
                yield f"- {title}, {entry.name.partition('-')[2].replace('-', ', ')}: {entry.note}"


def _versions(counted: Mapping[tuple[str, str], tuple[Recording, Score]]) -> Iterator[str]:
    yield "\n## Versions that were recorded\n"
    for environment in dict.fromkeys(entry.environment for entry in CATALOGUE):
        entries = (entry.name for entry in CATALOGUE if entry.environment == environment)
        found = {k: v for name in entries if (name, "runner") in counted for k, v in _of(counted, name).items()}
        if found:
            yield f"- {environment}: " + ", ".join(f"{name} {version}" for name, version in found.items())


def _of(counted: Mapping[tuple[str, str], tuple[Recording, Score]], name: str) -> dict[str, str]:
    return counted[name, "runner"][0].versions


def page(counted: Mapping[tuple[str, str], tuple[Recording, Score]]) -> str:
    """The whole page."""
    return _HEAD + "\n".join([*_rows(counted), *_totals(counted), *_notes(), *_versions(counted)]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(scores()))
