"""How a tool execution ended: succeeded, failed, or unknown, which pays nothing and costs nothing.

In: a tool's span, what its dialect declares, its result. Out: the outcome and what it was read from. Signs, the
strongest first: the span's status; attributes (`error.type`, a status, an error flag, an exit code); the result where
it is structured; the result's text, if `[[streams.tools]]` does not switch that off. A result that failed beats the
mild signs that every execution shows (an OK status, LangChain's `success`, MCP's `isError: false`).
Invariant: signs of one strength that disagree, and texts that may report a failure, are unknown, never a guess.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from fnmatch import fnmatchcase

from tracegrad.schemas.attributes import ERROR_TYPE
from tracegrad.schemas.otlp.values import AttributeValue
from tracegrad.schemas.records.facts import ToolStatus
from tracegrad.schemas.section import Section

from .span_view import SpanView
from .tool_result import Sign, of_exit_code, of_flag, of_result, of_status, worst

STATUS_OK = 1
STATUS_ERROR = 2
_STATUSES = ("gen_ai.tool.status", "gen_ai.tool.call.status", "tool.status", "tool.call.status")
_FLAGS = ("gen_ai.tool.is_error", "gen_ai.tool.call.is_error", "tool.is_error", "mcp.tool.is_error")
_EXIT_CODES = ("process.exit.code", "process.exit_code", "exit_code")
_RETURNED = frozenset({"gcp.vertex.agent", "agentscope", "openinference.instrumentation.autogen_agentchat"})
"""Scopes whose tools return their errors (ADK, AgentScope, AutoGen), and whose spans end well all the same: where
one does not hold what was returned, nothing tells."""
_MCP = ("mcp.method.name", "rpc.system", "rpc.system.name")
"""An MCP client's span ends well though the tool failed: its error is a result, which the server knows. Likewise."""
_ABSENT = frozenset({"", "none", "null"})
"""An `error.type` that a client made of the absence of one."""
JUDGED_KEYS = frozenset((ERROR_TYPE, *_STATUSES, *_FLAGS, *_EXIT_CODES))
"""Attributes that are read here, whatever the dialect."""


class ResultPart(StrEnum):
    """How much of a tool's result may tell its outcome."""

    ALL = "all"
    """Its fields where it is JSON, and how its text reads."""
    STRUCTURED = "structured"
    """Its fields only: for tools whose text is the world's (pages, logs, source code)."""
    NONE = "none"
    """Nothing: for tools whose fields report on others (a job's error, a page's status)."""


class ToolRule(Section, frozen=True, kw_only=True):
    """One `[[streams.tools]]`: how the results of some tools are read. The first rule whose glob matches is used.

    Example: ToolRule(tool="search_*", result=ResultPart.STRUCTURED).
    """

    tool: str
    """Glob on the tool's name."""
    result: ResultPart = ResultPart.ALL
    """How much of the result may tell: its fields and its text, its fields only, or nothing."""
    error_prefixes: tuple[str, ...] = ()
    """A text that begins with one of these (any case) is a failure, also where `result` leaves texts out."""


_DEFAULT = ToolRule(tool="*")


class ToolJudge:
    """Judges executions by the rules of `[[streams.tools]]`."""

    def __init__(self, rules: tuple[ToolRule, ...] = ()) -> None:
        self._rules = rules

    def __call__(
        self, span: SpanView, name: str, results: Sequence[object] = (), declared: Iterable[object] = ()
    ) -> tuple[ToolStatus, str]:
        """(outcome, what it was read from) of an execution of tool `name`.

        `results` are the forms in which the span holds the result, `declared` the statuses that frameworks gave it.
        These fail, but prove no success: frameworks declare success by default.
        """
        if span.status == STATUS_ERROR:
            return ToolStatus.FAILED, "exception" if span.has_exception else "span_status"
        signs = set(_of_attributes(span.attributes))
        mild = {of_status(status) for status in declared}
        if Sign.FAILED in signs or Sign.FAILED in mild:
            return ToolStatus.UNKNOWN if Sign.SUCCEEDED in signs else ToolStatus.FAILED, "attribute"
        sign, sign_from = self._of_results(name, results)
        if Sign.SUCCEEDED in signs:
            # A text that may mean anything says nothing against an attribute.
            return ToolStatus.UNKNOWN if sign is Sign.FAILED else ToolStatus.SUCCEEDED, "attribute"
        if sign is not Sign.NONE:
            return _STATUS[sign], sign_from
        if Sign.SUCCEEDED in mild:
            return ToolStatus.SUCCEEDED, "attribute"
        # What was cut may have held a sign, and nobody says whether a recorded exception was dealt with.
        is_clean = span.status == STATUS_OK or not (span.is_cut or span.has_exception)
        is_clean &= span.scope not in _RETURNED and (span.is_server or span.text(*_MCP) is None)
        return (ToolStatus.SUCCEEDED, "span_status") if is_clean else (ToolStatus.UNKNOWN, "")

    def _of_results(self, name: str, results: Sequence[object]) -> tuple[Sign, str]:
        found = [self._of_result(name, result) for result in results]
        sign, sign_from = worst(found)
        is_disputed = sign is Sign.FAILED and any(one is Sign.SUCCEEDED for one, _ in found)
        return (Sign.DOUBTFUL if is_disputed else sign), sign_from

    def _of_result(self, name: str, result: object) -> tuple[Sign, str]:
        rule = next((rule for rule in self._rules if fnmatchcase(name, rule.tool)), _DEFAULT)
        prefixes = tuple(prefix.lower() for prefix in rule.error_prefixes)
        if prefixes and isinstance(result, str) and result.lower().lstrip(" \t\r\n\"'").startswith(prefixes):
            return Sign.FAILED, "text"
        if rule.result is ResultPart.NONE:
            return Sign.NONE, ""
        try:
            return of_result(result, has_text=rule.result is ResultPart.ALL)
        except ValueError:  # a number of more digits than Python writes
            return Sign.DOUBTFUL, "result"


_STATUS = {
    Sign.FAILED: ToolStatus.FAILED,
    Sign.SUCCEEDED: ToolStatus.SUCCEEDED,
    Sign.DOUBTFUL: ToolStatus.UNKNOWN,
}


def _of_attributes(attributes: Mapping[str, AttributeValue]) -> Iterator[Sign]:
    if JUDGED_KEYS.isdisjoint(attributes):
        return
    error_type = attributes.get(ERROR_TYPE)
    if error_type is not None and str(error_type).strip().lower() not in _ABSENT:
        yield Sign.FAILED
    for keys, judge in ((_STATUSES, of_status), (_FLAGS, of_flag), (_EXIT_CODES, of_exit_code)):
        yield from (judge(attributes[key]) for key in keys if key in attributes)
