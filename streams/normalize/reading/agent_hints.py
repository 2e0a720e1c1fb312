"""Which agent is at work, as spans tell it that are no agent's own: a model's, a tool's, a step's.

In: a span's attributes, of any dialect. Out: rung -> name, as in SpanFact. Pure. Invariant: a wrapper (a graph, an
executor, a crew) is no agent, and its name is nobody's; several names for one rung are none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tracegrad.schemas.attributes import GEN_AI_AGENT_NAME
from tracegrad.schemas.text import json_value

from .span_view import MAX_TEXT

ATTRIBUTE_HINT = "agent_attribute"
"""The rung of the name that an attribute gives on a span which is no agent's."""
LANGCHAIN_HINT = "lc_agent_name"
"""The rung of the name that LangChain gives in the metadata of each run within an agent."""

_METADATA = "metadata"
_LC_NAME = "lc_agent_name"
_LC_KEYS = (f"metadata.{_LC_NAME}", f"langsmith.metadata.{_LC_NAME}", f"traceloop.association.properties.{_LC_NAME}")
_AGENT_KEYS = (GEN_AI_AGENT_NAME, "agent.name")
_LANGFUSE_KEY = f"langfuse.observation.metadata.{_LC_NAME}"
HINT_KEYS = frozenset((*_LC_KEYS, *_AGENT_KEYS, _METADATA, _LANGFUSE_KEY))
"""The attributes that are read here, whatever the dialect."""
_MAX_JSON = 100_000
_WRAPPERS = frozenset(
    (
        "agentexecutor",
        "agentworkflow",
        "compiledgraph",
        "compiledstategraph",
        "crew",
        "functionagent",
        "graph",
        "langgraph",
        "openaiagent",
        "pregel",
        "runnable",
        "runnablesequence",
        "swarm",
        "team",
        "unknown",
        "workflow",
    )
)
"""What frameworks call their own machinery, in small letters and without spaces."""
_RUNS = frozenset(
    {
        *("run", "run_sync", "run_stream", "arun", "invoke", "ainvoke", "kickoff", "kickoff_async", "execute"),
        *("_execute_core", "on_messages", "on_messages_stream", "take_step", "run_step", "chat", "achat", "agent"),
    }
)
"""Methods by which agents are run, at the end of a span's name."""
_CLASSES = frozenset(("agent", "assistantagent", "baseagent", "agentrunner", "agentworker", "chatagent"))
"""What a span is called after a framework's class: one agent's name as much as another's."""


def agent_hints(attributes: Mapping[str, Any]) -> dict[str, str]:
    """What a span's attributes hint at."""
    if HINT_KEYS.isdisjoint(attributes):
        return {}
    hints = {}
    for rung, names in ((ATTRIBUTE_HINT, _names(attributes, _AGENT_KEYS)), (LANGCHAIN_HINT, _langchain(attributes))):
        told = set(names)
        if len(told) == 1:
            hints[rung] = told.pop()
    return hints


def agent_of_span(name: str) -> str | None:
    """The agent's name in that of its span: `NAME.run` and its like, or all of it; None where it is a class's."""
    owner, _, method = name.removeprefix("invoke_agent ").rpartition(".")
    if not owner or method not in _RUNS:
        return None if name == "agent run" else name.removeprefix("invoke_agent ")
    return None if owner.lower() in _CLASSES else owner


def name_in_answers(output: object) -> str | None:
    """The name that the messages of a LangGraph node bear: its prebuilt agent gives them its own."""
    decoded = json_value(output)
    if isinstance(decoded, list) and len(decoded) == 1 and isinstance(decoded[0], dict):
        decoded = decoded[0].get("update")
    messages = decoded.get("messages") if isinstance(decoded, dict) else None
    last = messages[-1] if isinstance(messages, list) and messages else None
    if not isinstance(last, dict) or last.get("type") != "ai":
        return None
    name = last.get("name", last["data"].get("name") if isinstance(last.get("data"), dict) else None)
    return name[:MAX_TEXT] if isinstance(name, str) and name else None


def is_wrapper(name: str) -> bool:
    """Whether a framework's machinery is so called, not an agent of the user's."""
    return "".join(name.split()).lower() in _WRAPPERS


def _langchain(attributes: Mapping[str, Any]) -> Iterator[str]:
    """LangChain's name of the agent whose step runs: an attribute, or within OpenInference's JSON of the metadata."""
    yield from _names(attributes, _LC_KEYS)
    if _LANGFUSE_KEY in attributes:  # Langfuse writes each value as JSON
        yield from _names({_LC_NAME: json_value(attributes[_LANGFUSE_KEY])}, (_LC_NAME,))
    metadata = attributes.get(_METADATA)
    if isinstance(metadata, str) and _LC_NAME in metadata and len(metadata) <= _MAX_JSON:
        metadata = json_value(metadata)
    if isinstance(metadata, dict):
        yield from _names(metadata, (_LC_NAME,))


def _names(values: Mapping[str, Any], keys: tuple[str, ...]) -> set[str]:
    found = (values.get(key) for key in keys)
    return {name[:MAX_TEXT] for name in found if isinstance(name, str) and name and not is_wrapper(name)}
