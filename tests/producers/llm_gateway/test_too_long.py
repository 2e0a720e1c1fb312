"""A prompt that is longer than the context window: each API says it in the words by which its clients compact."""

from __future__ import annotations

import json
import re

import pytest

from tests.fake_engine.scripted import Reply, ScriptedEngine, too_long
from tests.producers.llm_gateway.edge import STARTED
from tests.producers.llm_gateway.harness import rig
from tests.producers.llm_gateway.strictly import server_sent
from tests.versions import label
from tracegrad.producers.llm_gateway.api.events import TOO_LONG, Failed, Problem
from tracegrad.producers.llm_gateway.api.messages.write import MESSAGES as ANTHROPIC
from tracegrad.producers.llm_gateway.api.responses.write import RESPONSES

LIMIT = 200
LONG = {"role": "user", "content": "a word " * 200}
COMPACTS = re.compile(r"prompt is too long: (\d+) tokens > (\d+) maximum")
"""Claude Code 2.1.332 looks for this, from the beginning to the end."""
MESSAGES = {"model": "policy", "max_tokens": 10, "messages": [LONG]}


def engine() -> ScriptedEngine:
    """With a short context window."""
    return ScriptedEngine(label=label(0), max_model_len=LIMIT)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_messages_say_it_in_the_words_by_which_claude_code_compacts(is_stream: bool) -> None:
    """With both numbers; a stream that has not begun has the status too."""
    async with rig(engine(), keep_alive_s=5.0) as r:
        status, answer = await r.post("/v1/messages", {**MESSAGES, "stream": is_stream})
        assert status == 400 and answer["error"]["type"] == "invalid_request_error"
        found = COMPACTS.fullmatch(answer["error"]["message"])
        _, counted = await r.post("/v1/messages/count_tokens", {"model": "policy", "messages": [LONG]})
        assert found is not None and (int(found[1]), int(found[2])) == (counted["input_tokens"], LIMIT)
        assert not r.records()


async def test_a_prompt_that_is_too_long_is_counted_all_the_same() -> None:
    """Who counts wants to know by how much; with the tools, which the template writes too."""
    tools = [{"name": "calc", "input_schema": {"type": "object"}}]
    body = {"model": "policy", "messages": [LONG]}
    async with rig(engine()) as short, rig(ScriptedEngine(label=label(0))) as wide:
        for asked in (body, body | {"tools": tools}):
            answers = [await r.post("/v1/messages/count_tokens", asked) for r in (short, wide)]
            assert answers[0] == answers[1] and answers[0][0] == 200
            assert answers[0][1]["input_tokens"] > LIMIT


async def test_openais_apis_say_it_by_their_code() -> None:
    """`context_length_exceeded`, which Codex and others know, also of a stream that has begun to wait."""
    async with rig(engine()) as r:
        for path, fields in (("/v1/chat/completions", {"messages": [LONG]}), ("/v1/responses", {"input": [LONG]})):
            status, answer = await r.post(path, {"model": "policy", **fields})
            assert (status, answer["error"]["code"]) == (400, TOO_LONG)


def test_a_stream_of_responses_that_fails_has_the_code() -> None:
    """At which Codex compacts."""
    writer = RESPONSES.write(RESPONSES.read({"input": "x"}))
    problem = Failed(Problem(status=400, message="long", code=TOO_LONG))
    (_, last) = server_sent(b"".join(chunk for event in (STARTED, problem) for chunk in writer.chunks(event)))[-1]
    assert json.loads(last)["response"]["error"] == {"code": TOO_LONG, "message": "long"}


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (too_long(5000, 4096), "prompt is too long: 5000 tokens > 4096 maximum"),
        (
            too_long(5000, 4096).replace("contains ", "contains at least "),
            "prompt is too long: 5000 tokens > 4096 maximum",
        ),
        (
            "The decoder prompt (length 513) is longer than the maximum model length of 512. Make sure",
            "prompt is too long: 513 tokens > 512 maximum",
        ),
        (
            "This model's maximum context length is 512 tokens. However, your prompt contains 9000 characters (more "
            "than 5120 characters, which is the upper bound for 512 input tokens).",
            "prompt is too long: 513 tokens > 512 maximum",
        ),
        ("max_model_len it is", "max_model_len it is"),
    ],
    ids=["tokens", "at-least", "at-sampling", "characters", "other"],
)
def test_each_of_the_engines_ways_to_say_it_is_read(said: str, words: str) -> None:
    """Where it tells characters alone, the prompt has one token too many at least."""
    problem = Problem(status=400, message=said, code=TOO_LONG)
    assert json.loads(ANTHROPIC.error(problem))["error"]["message"] == words


async def test_a_prompt_that_fits_is_sampled_from() -> None:
    """The other side of the bound."""
    async with rig(engine()) as r:
        r.engine.replies.append(Reply("ok"))
        status, _ = await r.post("/v1/messages", {**MESSAGES, "messages": [{"role": "user", "content": "hi"}]})
        assert status == 200
