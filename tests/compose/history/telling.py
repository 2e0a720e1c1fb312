"""Calls told in words, and the folders of models whose ids they become."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.producers.llm_gateway.families import ENDS
from tests.producers.llm_gateway.real_templates import RealTemplate
from tests.producers.llm_gateway.real_templates import load as load_real
from tracegrad.compose.history.history_model import load_history_renderer
from tracegrad.compose.history.rendering import ExactIdRules, HistoryRenderer
from tracegrad.schemas.reasons import Reason
from tracegrad.schemas.records.calls import ToolCall
from tracegrad.schemas.records.told import ChatMessage, ToldCall, ToolDefinition

DATA = Path(__file__).parents[2] / "data"
DAY_NS = 1_795_860_000_000_000_000
"""28 November 2026, on which the templates of the tests render."""
CALC = ToolDefinition(name="calc", description="adds <two> & more", parameters=json.dumps({"type": "object"}))
ASK = ChatMessage(role="user", content="What is 1+2? \u4f60\u597d ")
SAYS = ChatMessage(role="assistant", content="It is 3.\n\nReally.")
CALLS = ChatMessage(
    role="assistant", tool_calls=(ToolCall(id="call_1", name="calc", arguments='{"expr": "1+\\"2\\"", "n": 1.50}'),)
)
FINAL = {
    "qwen2_5": "<|im_end|>",
    "trimming": "<|im_end|>",
    "nine_character_ids": "<|stop|>",
    "alternating": "<|end|>",
}
UNTOLD: dict[str, Any] = {"lacks": (Reason.NO_TOOLS_TOLD,), "tools": None}


def told(*messages: ChatMessage, answer: ChatMessage | None = SAYS, **fields: Any) -> ToldCall:
    """A call, whose agent has no tools if none are given."""
    named: dict[str, Any] = {"tools": (), "started_ns": DAY_NS, "finish_reason": "stop"} | fields
    return ToldCall(trace_id="t", span_id="s", scope="x", messages=messages or (ASK,), answer=answer, **named)


def real(name: str) -> RealTemplate:
    """A template with the tokenizer of bytes."""
    return load_real(name) if (DATA / "templates" / f"{name}.jinja").exists() else RealTemplate(source(name))


def source(name: str) -> str:
    """A template's text."""
    paths = (DATA / f"{name}.jinja", DATA / "templates" / f"{name}.jinja")
    return next(path.read_text() for path in paths if path.exists())


def folder_of(path: Path, name: str, ends: Sequence[str] | None = None) -> Path:
    """A model's folder, as far as rendering needs it."""
    template = real(name)
    path.mkdir(exist_ok=True)
    template.tokenizer.save(str(path / "tokenizer.json"))
    (path / "chat_template.jinja").write_text(source(name))
    (path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<|begin|>", "eos_token": "<|stop|>"}))
    ended = ends if ends is not None else ENDS.get(name) or (FINAL[name],)
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [*map(template.special, ended)]}))
    return path


def renderer_of(path: Path, name: str, rules: ExactIdRules = ExactIdRules(), **options: Any) -> HistoryRenderer:  # noqa: B008
    return load_history_renderer(folder_of(path, name, **options), rules)
