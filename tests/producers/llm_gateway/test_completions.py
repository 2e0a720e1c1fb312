"""OpenAI's completions: prompts that the agent wrote itself, token-true and recorded like all others."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from openai.types import Completion

from tests.fake_engine.scripted import Reply
from tests.fake_engine.tokenizer import EOT
from tests.producers.keys import HOST, KEY
from tests.producers.llm_gateway.harness import ATTEMPT, GENERATE, ROLLOUT, Rig, full_prompt, rig
from tests.producers.llm_gateway.merging import assert_merged, rows_of
from tests.producers.llm_gateway.streaming import live_rig
from tests.producers.llm_gateway.strictly import parsed_as
from tracegrad.schemas.credentials import credential
from tracegrad.schemas.ids import canonical_call
from tracegrad.schemas.records.tokens import ids_from_bytes

pytestmark = pytest.mark.slow
PATH = f"/rollout/{ROLLOUT}/attempt/{ATTEMPT}/v1"


@contextlib.asynccontextmanager
async def asked(r: Rig) -> AsyncIterator[openai.AsyncOpenAI]:
    """OpenAI's own client, of the attempt."""
    async with openai.AsyncOpenAI(base_url=r.url + PATH, api_key=credential(KEY, HOST), max_retries=0) as client:
        yield client


async def complete(r: Rig, prompt: Any, **fields: Any) -> Any:
    """The body of an answer, which must have just the fields of OpenAI's type."""
    async with r.http.post(r.url + PATH + "/completions", json={"prompt": prompt, **fields}) as response:
        body = await response.text()
        assert response.status == 200, body
    return parsed_as(Completion, body)


def sampled(r: Rig, index: int) -> list[int]:
    """The ids of a call's answer."""
    ids: list[int] = ids_from_bytes(r.calls()[index].sampled_ids).tolist()
    return ids


async def test_the_official_client_completes_whole_and_streamed() -> None:
    """The same text, on the record; the id is the record's, as this API spells it."""
    async with live_rig() as (r, script), asked(r) as client:
        script.goes_on.set()
        r.engine.replies.extend([Reply("not to be")] * 2)
        whole = await client.completions.create(model="policy", prompt="to be or ", max_tokens=50)
        stream = await client.completions.create(model="policy", prompt="to be or ", max_tokens=50, stream=True)
        chunks = [chunk async for chunk in stream]
        assert whole.choices[0].text == "not to be" == "".join(chunk.choices[0].text for chunk in chunks)
        assert whole.choices[0].finish_reason == "stop" == chunks[-1].choices[0].finish_reason
        assert [body["stream"] for body in r.asked(GENERATE)] == [False, True]
        first, second = r.calls()
        assert (canonical_call(whole.id), canonical_call(chunks[0].id)) == (first.call_id, second.call_id)
        assert whole.id.startswith("cmpl-") and first.content == second.content == "not to be"
        assert full_prompt(first, r.calls()) == r.engine.tokenizer.encode("to be or ")
        assert whole.usage is not None and whole.usage.prompt_tokens == len("to be or ")
        assert [call["outcome"] for call in await r.end()] == ["delivered"] * 2


async def test_a_text_that_goes_on_keeps_the_ids_that_were_sampled() -> None:
    """Encoded anew they would be others; the turns merge into one row."""
    async with rig() as r:
        await r.begin()
        r.engine.replies.extend([Reply("42", ends=False), Reply(" 43")])
        await complete(r, "count: 41 ")
        await complete(r, "count: 41 42 then")
        first, second = r.calls()
        prompt = full_prompt(second, r.calls())
        assert r.engine.tokenizer.encode("count: 41 42 then") != prompt
        assert prompt[: len(full_prompt(first, r.calls())) + 2] == full_prompt(first, r.calls()) + sampled(r, 0)
        assert (second.splice.kind, second.parent_call_id) == ("extended", first.call_id)
        assert_merged(await rows_of(r), r.calls())


@pytest.mark.parametrize("said", ["", "<|im_end|>"], ids=["dropped", "repeated"])
async def test_the_terminal_token_is_in_the_prompt_if_the_agent_repeats_it(said: str) -> None:
    """It is no text of the answer; an agent that writes its own template does."""
    async with rig() as r:
        await r.begin()
        r.engine.replies.extend([Reply("42"), Reply("43")])
        await complete(r, "a ")
        await complete(r, f"a 42{said} b")
        second = r.calls()[1]
        assert sampled(r, 0)[-1] == EOT
        before = r.engine.tokenizer.encode("a ") + (sampled(r, 0) if said else sampled(r, 0)[:-1])
        assert full_prompt(second, r.calls()) == before + r.engine.tokenizer.encode(" b")
        assert second.shared_tokens == len(before)


async def test_ids_are_taken_as_they_are() -> None:
    """And go on from the call whose ids they begin with."""
    async with rig() as r:
        await r.begin()
        r.engine.replies.extend([Reply("42"), Reply("43"), Reply("44")])
        ids = [20, 21, 22]
        await complete(r, ids)
        longer = [*ids, *sampled(r, 0), 30]
        await complete(r, longer)
        await complete(r, [7])
        calls = r.calls()
        assert [full_prompt(call, calls) for call in calls] == [ids, longer, [7]]
        assert [call.splice.kind for call in calls] == ["first", "extended", "new_segment"]


async def test_a_cut_answer_is_not_gone_on_from() -> None:
    """The agent has less of it than was sampled."""
    async with rig() as r:
        await r.begin()
        r.engine.replies.extend([Reply("one END two"), Reply("x")])
        answer = await complete(r, "a ", stop=" END")
        assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("one", "stop")
        await complete(r, "a one and")
        assert r.calls()[1].splice.kind == "new_segment"


@pytest.mark.parametrize("said", ["\u4f60", "<tool_call>"], ids=["half_a_character", "special_token"])
async def test_the_same_prompt_again_goes_on_from_no_answer_that_shows_nothing(said: str) -> None:
    """Its prompt is what was asked, without a token that the agent has never seen."""
    async with live_rig() as (r, _):
        r.engine.replies.extend([Reply(said, ends=False), Reply("43")])
        answer = await complete(r, "a ", max_tokens=1)
        assert answer.choices[0].text == "" and len(sampled(r, 0)) == 1
        await complete(r, "a ")
        first, second = r.calls()
        assert full_prompt(second, r.calls()) == full_prompt(first, r.calls()) == r.engine.tokenizer.encode("a ")
        assert second.parent_call_id is None


async def test_each_prompt_and_choice_is_a_call() -> None:
    """In the order of the prompts; only choices of one prompt are chosen from."""
    async with rig() as r:
        await r.begin()
        r.engine.policy = lambda prompt, draw: Reply(f"{prompt}!")
        answer = await complete(r, ["a", [75, 76]], n=2)
        assert [(choice.index, choice.text) for choice in answer.choices] == [
            (0, "a!"), (1, "a!"), (2, "AB!"), (3, "AB!"),
        ]  # fmt: skip
        calls = r.calls()
        assert {call.num_choices for call in calls} == {2} and len(calls) == 4
        assert answer.usage.prompt_tokens == 3 and answer.usage.completion_tokens == 2 * 3 + 2 * 4


async def test_logprobs_are_those_of_the_record() -> None:
    """Also where the gateway could parse by itself."""
    async with live_rig() as (r, _):
        r.engine.replies.append(Reply("42"))
        answer = await complete(r, "a", logprobs=0)
        said = answer.choices[0].logprobs
        assert said.tokens == ["4", "2"] and said.text_offset == [0, 1]
        assert said.token_logprobs == pytest.approx([-0.1 * (1 + token % 7) for token in sampled(r, 0)[:-1]])


async def test_what_it_does_not_say_is_openais() -> None:
    """16 tokens; sampling as in training all the same."""
    async with rig() as r:
        await r.begin()
        r.engine.replies.append(Reply("x" * 40))
        answer = await complete(r, "a", temperature=0.1)
        assert answer.choices[0].text == "x" * 16 and answer.choices[0].finish_reason == "length"
        (body,) = r.asked(GENERATE)
        assert body["sampling_params"]["temperature"] == 1.0
        assert r.calls()[0].sampling_asked == {"temperature": 0.1}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"echo": True}, "echo"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": ["a"] * 65}, "prompt"),
        ({"logprobs": True}, "logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
async def test_what_cannot_be_honoured_is_refused_by_name(fields: Any, param: str) -> None:
    """In OpenAI's words."""
    async with rig() as r:
        await r.begin()
        status, answer = await r.post(PATH + "/completions", {"prompt": "a", **fields})
        assert (status, answer["error"]["param"], answer["error"]["type"]) == (400, param, "invalid_request_error")
        assert not r.asked(GENERATE)


async def test_a_captured_agent_that_names_its_conversation_goes_on() -> None:
    """By its header; one that names nothing has an episode for each request."""
    async with rig() as r:
        r.engine.replies.extend([Reply("42", ends=False), Reply("43"), Reply("44")])
        for prompt, headers in (
            ("a ", {"x-conversation-id": "c"}),
            ("a 42 b", {"x-conversation-id": "c"}),
            ("a 42", {}),
        ):
            status, _ = await r.post("/v1/completions", {"prompt": prompt}, **headers)
            assert status == 200
        assert [call.splice.kind for call in r.calls()] == ["first", "extended", "first"]
