"""What somebody's spans hold, before anything is made of them: `replay --from topic:NAME|files:PATH --dry-run`.

In: requests of spans and log records, in any order. Out: how many spans and traces there are, of whom, and what they
tell of models' calls: which models, whether prompt and answer, tools and token ids, and what is lacking. Invariants:
nothing is written; memory is bounded, so that only so many traces and names are told apart. A model's span is not yet a
call: some instrumentations make several of one.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec

from tracegrad.schemas.errors import RecordError
from tracegrad.schemas.metrics import Metrics
from tracegrad.schemas.otlp.signal import TRACES, Signal, items_of
from tracegrad.schemas.reasons import Reason, reason_text
from tracegrad.schemas.records.facts import CallFact, SpanFact
from tracegrad.schemas.records.told import ChatMessage, ToldCall
from tracegrad.streams.config import HistoryConfig
from tracegrad.streams.normalize.read_logs import LogReader
from tracegrad.streams.normalize.read_spans import SpanReader
from tracegrad.streams.normalize.reading.judge_tool import ToolJudge
from tracegrad.streams.normalize.told.read_call import joined

from ..run.show import Show
from .exports.file_items import LostBytes

_MAX_TRACES, _MAX_NAMES, _MAX_CALLS, _MAX_SHOWN = 1_000_000, 500, 5_000, 20
_LOOK_S = 10.0
"""For a look that is not at all of them."""
_TABLES = ("services", "agents", "models", "told_by", "lacks", "refused", "tools")
_REASONS = ("lacks", "refused")
_COLUMNS = {"model_spans": "models' spans", "with_content": "with prompt and answer", "with_tools": "with tools"}
"""In words."""
_UNSAID = (ChatMessage(role=""),)


def take_census(items: Iterable[tuple[Signal, bytes | LostBytes]], show: Show, *, is_full: bool) -> None:
    """Shows what requests hold: all of them, or as many as there is time for."""
    census, num, until = Census(), 0, time.monotonic() + _LOOK_S
    more = "nothing was written"
    for signal, value in items:
        if not is_full and time.monotonic() > until:
            more = f"these are the first {num} requests; --dry-run=full looks at all; {more}"
            break
        num += 1
        census.add(signal, value)
    fields, lines = census.report()
    show.result("census", {"requests": num, **fields}, [*lines, more])


class Census:
    """Requests are added; `report` says what was found."""

    def __init__(self) -> None:
        self._num_spans = 0
        self._traces: set[str] = set()
        self._tables: dict[str, dict[str, Counter[str]]] = {table: {} for table in _TABLES}
        """By name what is counted: spans, models' spans, items; of an agent its tools."""
        self._refusals: dict[str, str] = {}
        """What was said of the first item of each reason: where it lies."""
        self._calls: dict[tuple[str, str], list[ToldCall]] = {}
        """The last ones: what a span tells and log events of it, without the words."""
        history, judge, metrics = HistoryConfig(models=("*",)), ToolJudge(()), Metrics()
        self._spans = SpanReader((), judge=judge, metrics=metrics, history=history)
        self._logs = LogReader((), judge=judge, metrics=metrics, history=history)

    def add(self, signal: Signal, value: bytes | LostBytes) -> None:
        """A request, or what can be read as none."""
        try:
            if isinstance(value, LostBytes):
                raise RecordError(value.why, reason=Reason(value.reason))
            scan = (self._spans if signal is TRACES else self._logs).read(value, signer=None)
        except RecordError as error:
            self._count("refused", error.reason, "items")
            self._refusals.setdefault(error.reason, str(error))
            return
        for reason, refused in scan.refused.items():
            self._count("refused", reason, *("items" for _ in items_of(signal, refused.request)))
        if scan.damage is not None:
            self._count("refused", scan.damage.reason, "items")
        agents: dict[str, str] = {}
        for fact in (fact for facts in scan.facts.values() for fact in facts):
            if isinstance(fact, SpanFact):
                agents[fact.span_id] = fact.agent_name or next(iter(fact.agent_hints.values()), "")
                self._add_span(fact, agents[fact.span_id])
            elif isinstance(fact, CallFact) and isinstance(fact.told, ToldCall):
                told = fact.told
                self._count("tools", agents.get(told.span_id, ""), *(tool.name for tool in told.tools or ()))
                told = msgspec.structs.replace(
                    told, messages=told.messages and _UNSAID, answer=told.answer and _UNSAID[0]
                )
                self._calls.setdefault((told.trace_id, told.span_id), []).append(told)
                if len(self._calls) > _MAX_CALLS:
                    self._add_call(self._calls.pop(next(iter(self._calls))))

    def report(self) -> tuple[dict[str, Any], list[str]]:
        """For machines, and for people."""
        while self._calls:
            self._add_call(self._calls.popitem()[1])
        at_least = "at least " if len(self._traces) >= _MAX_TRACES else ""
        lines = [f"{self._num_spans} spans in {at_least}{len(self._traces)} traces"]
        for table, rows in self._tables.items():
            lines += [f"  {table.replace('_', ' ')}:"] * bool(rows)
            for name, row in sorted(rows.items(), key=lambda row: -row[1].total())[:_MAX_SHOWN]:
                counted = ", ".join(f"{num} {_COLUMNS.get(what, what)}" for what, num in row.items())
                lines.append(f"    {reason_text(name) if table in _REASONS else name or '(no name)'}: {counted}")
            lines += [f"    and {len(rows) - _MAX_SHOWN} more"] * (len(rows) > _MAX_SHOWN)
        lines += [f"  the first item that is `{reason}`: {why}" for reason, why in self._refusals.items()]
        # Refused as they stand: what a tool takes is for who knows it to fill in.
        skeleton = {
            agent or "*": [{"type": "function", "function": {"name": tool, "parameters": []}} for tool in row]
            for agent, row in self._tables["tools"].items()
        }
        return {
            "spans": self._num_spans,
            "traces": len(self._traces),
            **self._tables,
            "refusals": self._refusals,
            "tools_file": skeleton,
        }, lines

    def _add_span(self, span: SpanFact, agent: str) -> None:
        self._num_spans += 1
        if len(self._traces) < _MAX_TRACES:
            self._traces.add(span.trace_id)
        self._count("services", span.service, "spans")
        self._count("agents", agent, "spans")
        if span.tool_name:
            self._count("tools", agent, span.tool_name)

    def _add_call(self, parts: list[ToldCall]) -> None:
        events = [one for one in parts if one.is_event]
        for call in (joined(one, events) for one in parts if not one.is_event):
            told = {"with_content": call.messages and call.answer, "with_tools": call.tools, "with_ids": call.ids}
            what = ["model_spans", *(name for name, value in told.items() if value is not None)]
            self._count("models", call.model, *what)
            self._count("told_by", call.scope, *what)
            for reason in call.lacks:
                self._count("lacks", reason, "model_spans")

    def _count(self, table: str, name: str, *what: str) -> None:
        rows = self._tables[table]
        for one in what:
            row = rows.setdefault(name if name in rows or len(rows) < _MAX_NAMES else "(others)", Counter())
            row[one if one in row or len(row) < _MAX_NAMES else "(others)"] += 1
