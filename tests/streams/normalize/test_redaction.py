"""Spans that a Collector's redaction processor has gone over are told as they are, or not at all.

The processor: opentelemetry-collector-contrib, processor/redactionprocessor/processor.go (`processAttrs`, `maskValue`,
`addMetaAttrs`).
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.streams.make import Streams, agent_span, call, config, otlp
from tests.streams.normalize.rows_of_told_calls import GENAI, OI, OI_FLAT, OTEL, made
from tracegrad.schemas.records.calls import Purpose
from tracegrad.streams.config import SelectConfig
from tracegrad.streams.normalize.told.read_call import told_call

FLAT = "llm.input_messages.1.message.content"
ANSWER = "llm.output_messages.0.message.content"
SCOPES = {"flat": (f"{OI}llama_index", OI_FLAT), "json": (f"{OTEL}anthropic", GENAI)}


def redacted(told: dict[str, Any], values: str = "$^", keys: str = "$^", kept: str = "") -> dict[str, Any]:
    """A span's attributes behind it: texts that match are masked, of some keys whole, line by line; what may not stay
    is deleted. With `summary: debug`."""
    texts = {key: value if isinstance(value, str | int | float) else json.dumps(value) for key, value in told.items()}
    stay = {key: value for key, value in texts.items() if re.search(kept, key)}
    masked = {
        key: re.sub(r"(?m)^.*$" if re.search(keys, key) else values, "****", value) if isinstance(value, str) else value
        for key, value in stay.items()
    }
    changed = sorted(key for key in stay if masked[key] != stay[key])
    gone = sorted(texts.keys() - stay.keys())
    summary = {"masked": changed, "redacted": gone}
    found = {f"redaction.{name}.keys": ",".join(told) for name, told in summary.items() if told}
    return masked | found | {f"redaction.{name}.count": len(told) for name, told in summary.items() if told}


@pytest.mark.parametrize("way", SCOPES)
def test_a_masked_text_is_told_as_it_is(way: str) -> None:
    """In prompt, calls and answer; the call lacks nothing, for the mask is what people chose to train on."""
    scope, told = SCOPES[way]
    call = told_call(made(redacted(told, values="Oslo|Sunny")), scope)
    said = call.messages or ()
    assert [message.content for message in said if message.role in ("user", "tool")] == ["Weather in ****?", "sunny"]
    assert said[2].tool_calls[0].arguments == '{"city": "****"}'
    assert call.answer is not None and call.answer.content == "****."
    assert (call.lacks, call.model) == ((), "m")


@pytest.mark.parametrize(
    ("way", "options", "lacks"),
    [
        ("flat", {"keys": re.escape(FLAT)}, ("no_prompt_told",)),
        ("flat", {"keys": re.escape(ANSWER)}, ("no_answer_told",)),
        ("flat", {"kept": f"^(?!{re.escape(FLAT)})"}, ("no_prompt_told",)),
        ("flat", {"kept": f"^(?!{re.escape(ANSWER)})"}, ("no_answer_told",)),
        ("flat", {"kept": r"^(?!llm\.input_messages\.2)"}, ("content_cut", "no_prompt_told")),
        ("json", {"keys": r"input\.messages"}, ("content_cut", "no_prompt_told")),
        ("json", {"keys": r"output\.messages"}, ("content_cut", "no_answer_told")),
        ("json", {"values": '"parts": '}, ("content_cut", "no_prompt_told", "no_answer_told")),
        ("json", {"kept": r"^(?!gen_ai\.input)"}, ("no_prompt_told",)),
        ("json", {"kept": r"^(?!gen_ai\.(in|out)put)"}, ("no_prompt_told", "no_answer_told")),
        ("json", {"kept": r"^gen_ai\.request\.model"}, ("no_prompt_told", "no_answer_told", "no_tools_told")),
    ],
)
def test_content_that_is_masked_whole_or_deleted_is_not_told(
    way: str, options: dict[str, str], lacks: tuple[str, ...]
) -> None:
    """The call lacks it by a reason, and does not train."""
    scope, told = SCOPES[way]
    call = told_call(made(redacted(told, **options)), scope)
    assert call.lacks == lacks


def test_a_text_of_several_lines_that_is_masked_whole_is_not_told() -> None:
    """Each line is a mask."""
    told = redacted({**OI_FLAT, FLAT: "Weather in\nOslo?\n\nNow."}, keys=re.escape(FLAT))
    assert told[FLAT] == "****\n****\n****\n****"
    assert told_call(made(told), f"{OI}llama_index").messages is None


@pytest.mark.parametrize("key", ["gen_ai.conversation.id", "session.id"])
@pytest.mark.parametrize(("named", "episodes"), [("c-17", 1), ("****", 3), ("shop-****", 3)])
def test_a_conversation_whose_id_is_masked_is_none(key: str, named: str, episodes: int) -> None:
    """Else all whose id was an address would be one conversation."""
    streams = Streams(config(select=SelectConfig(capture_all=True)))
    for number in range(1, 4):
        one = call(f"n{number}", None, [1], [2], trace_id=f"{number:032x}", purpose=Purpose.UNKNOWN)
        said = {key.replace(".", "__"): named}
        streams.feed(one, otlp(agent_span(f"{number:032x}", number, "solver", **said)))
    streams.tick(*range(0, 2000, 50))
    assert len(streams.episodes) == episodes
