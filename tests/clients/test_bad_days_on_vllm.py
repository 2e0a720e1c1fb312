"""What goes wrong between a client, the gateway and a real engine: each answer is recorded once and trained once.

Sampled at a temperature at which the policy babbles: bytes that are no text, special tokens, no two answers alike.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import msgspec
import openai
import pytest
from tokenizers import Tokenizer

from tests.clients.tap import tapped
from tests.engine_fixture import RunningEngine, generate_body
from tests.producers.keys import HOST, KEY
from tests.producers.llm_gateway.harness import ATTEMPT, ROLLOUT, Rig, rig, until
from tests.producers.llm_gateway.merging import assert_merged, masks_of, rows_of
from tests.producers.llm_gateway.speakers import SPEAKERS
from tests.serving import ENGINE_TOKEN
from tracegrad.producers.llm_gateway.config import PolicyConfig
from tracegrad.schemas.credentials import bearer, credential
from tracegrad.schemas.ids import canonical_call
from tracegrad.schemas.records.calls import CallRecord
from tracegrad.schemas.records.tokens import ids_from_bytes

pytestmark = [pytest.mark.engine, pytest.mark.torch, pytest.mark.timeout(300)]
PATH = f"/rollout/{ROLLOUT}/attempt/{ATTEMPT}/v1"


@contextlib.asynccontextmanager
async def babbling(engine: RunningEngine, **settings: Any) -> AsyncIterator[Rig]:
    """A gateway in front of the engine, an attempt begun."""
    policy = PolicyConfig(model=str(engine.model), temperature=2.0, max_tokens=40)
    given = {"engine_url": engine.url, "engine_wait_s": 60, "folder": str(engine.model), **settings}
    async with rig(policy=policy, **given) as r:
        await r.begin()
        yield r


def text_of(engine: RunningEngine, call: CallRecord, *, has_tools: bool) -> str:
    """What was sampled, as the tokenizer reads it by itself; bytes at the end that are no character yet are none."""
    ids = ids_from_bytes(call.sampled_ids).tolist()
    said = ids if call.is_truncated else ids[:-1]
    tokenizer: Any = Tokenizer.from_file(str(engine.model / "tokenizer.json"))
    text: str = tokenizer.decode(said, skip_special_tokens=not has_tools)
    return text.rstrip("\ufffd")


@pytest.mark.parametrize("name", SPEAKERS)
async def test_what_is_no_text_survives_every_api(engine: RunningEngine, name: str) -> None:
    """Four conversations of six turns, sent back as clients do: the client reads what was sampled, and all turns
    merge."""
    num_broken = 0
    for seed in range(4):
        async with babbling(engine) as r:
            speaker = SPEAKERS[name](r, random.Random(seed))
            texts = [(await speaker.ask(f"and {number}?"))[0] for number in range(6)]
            calls = r.calls()
            assert [call.splice.kind for call in calls] == ["first", *["extended"] * 5], [it.splice for it in calls]
            for text, call in zip(texts, calls, strict=True):
                assert text == (call.content or "")
                assert text.rstrip("\ufffd") == text_of(engine, call, has_tools=True)
            assert_merged(await rows_of(r), calls)
            num_broken += sum("\ufffd" in text for text in texts)
    assert num_broken, "the test needs what is no text"


def client_of(api: str, url: str, **given: Any) -> Any:
    """The official client of an API, as an agent of the attempt makes it."""
    given = {"api_key": credential(KEY, HOST), "max_retries": 4, **given}
    if api == "messages":
        return anthropic.AsyncAnthropic(base_url=url + PATH.removesuffix("/v1"), **given)
    return openai.AsyncOpenAI(base_url=url + PATH, **given)


async def ask(client: Any, api: str, messages: list[Any], **given: Any) -> Any:
    """One request; appends the answer, and what is said next."""
    if api == "chat":
        answer = await client.chat.completions.create(model="policy", messages=messages, **given)
        said: Any = [answer.choices[0].message.model_dump(include={"role", "content"})]
    elif api == "responses":
        answer = await client.responses.create(model="policy", input=messages, **given)
        said = [item.model_dump(exclude_none=True) for item in answer.output]
    else:
        answer = await client.messages.create(model="policy", messages=messages, max_tokens=40, **given)
        said = [{"role": "assistant", "content": answer.content}]
    messages += [*said, {"role": "user", "content": "go on"}]
    return answer


def id_of(answer: Any) -> str:
    """Of its call's record."""
    call_id = canonical_call(answer.id)
    assert call_id is not None
    return call_id


APIS = pytest.mark.parametrize("api", ["chat", "responses", "messages"])


async def masks(r: Rig) -> dict[str, str]:
    """Call id -> why it leaves the loss, once the attempt has ended; of what babbled on to its limit, nothing."""
    return {call_id: "" if mask == "truncated" else mask for call_id, mask in (await masks_of(r)).items()}


@APIS
@pytest.mark.parametrize("fault", ["refuse", "drop"])
@pytest.mark.parametrize("place", ["before the gateway", "before the engine"])
async def test_what_did_not_come_through_is_tried_again(
    engine: RunningEngine, api: str, fault: Any, place: str
) -> None:
    """By the client or by the gateway; three turns are three records, which merge."""
    async with contextlib.AsyncExitStack() as stack:
        if place == "before the engine":
            tap = await stack.enter_async_context(tapped(engine.url))
            r = await stack.enter_async_context(babbling(engine, engine_url=tap.url))
            client = await stack.enter_async_context(client_of(api, r.url))
        else:
            r = await stack.enter_async_context(babbling(engine))
            tap = await stack.enter_async_context(tapped(r.url))
            client = await stack.enter_async_context(client_of(api, tap.url))
        messages: list[Any] = [{"role": "user", "content": "go on"}]
        for _ in range(3):
            tap.faults.extend([fault] * 2)
            await ask(client, api, messages)
            assert not tap.faults
        calls = r.calls()
        assert [call.splice.kind for call in calls] == ["first", "extended", "extended"]
        assert_merged(await rows_of(r), calls)


@APIS
async def test_an_engine_that_stays_away_is_503_which_the_client_tries_again(engine: RunningEngine, api: str) -> None:
    """The gateway gives up first; what the client is answered at last is the only record."""
    async with tapped(engine.url) as tap, babbling(engine, engine_url=tap.url, engine_wait_s=0.2) as r:
        tap.faults.extend(["refuse"] * 6)
        async with client_of(api, r.url) as client:
            answer = await ask(client, api, [{"role": "user", "content": "go on"}])
        assert [call.call_id for call in r.calls()] == [id_of(answer)]
        assert {told["outcome"] for told in await r.end()} == {"delivered"}


@APIS
async def test_of_a_request_that_timed_out_only_the_answer_that_was_read_trains(
    engine: RunningEngine, api: str
) -> None:
    """The client gives up while the engine is paused, and asks again; the conversation goes on from the second."""
    async with babbling(engine) as r, client_of(api, r.url, timeout=2.0, max_retries=20) as client:
        messages: list[Any] = [{"role": "user", "content": "go on"}]
        own = bearer(ENGINE_TOKEN)
        async with r.http.post(engine.url + "/pause?mode=keep", headers=own) as response:
            assert response.status == 200
        asked = asyncio.create_task(ask(client, api, messages))
        await until(lambda: r.gateway._chat.num_inflight == 2, 30)
        async with r.http.post(engine.url + "/resume", headers=own) as response:
            assert response.status == 200
        answers = [await asyncio.wait_for(asked, 60), await ask(client, api, messages)]
        found = await masks(r)
        assert [found.pop(id_of(answer)) for answer in answers] == ["", ""]
        assert found and set(found.values()) == {"client_disconnected"}


def test_the_settings_allow_the_temperatures_that_the_engine_takes(engine: RunningEngine) -> None:
    """Or every call of a run would be refused."""
    for temperature, status in ((0.01, 200), (2.0, 200), (2.01, 400)):
        body = generate_body([1, 2, 3], temperature=temperature)
        assert engine.client.post("/inference/v1/generate", json=body).status_code == status
    assert msgspec.convert({"temperature": 2.0}, PolicyConfig).temperature == 2
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"temperature": 2.01}, PolicyConfig)


async def test_of_two_choices_the_one_that_goes_on_trains(engine: RunningEngine) -> None:
    """n = 2: two records of one request, differently sampled; three turns of the chosen ones merge."""
    async with babbling(engine) as r, client_of("chat", r.url) as client:
        messages: list[Any] = [{"role": "user", "content": "go on"}]
        chosen = []
        for _ in range(3):
            answer = await client.chat.completions.create(model="policy", messages=messages, n=2)
            texts = [choice.message.content for choice in answer.choices]
            assert texts[0] != texts[1]
            chosen.append(texts[1])
            messages += [{"role": "assistant", "content": texts[1]}, {"role": "user", "content": "go on"}]
        calls = r.calls()
        assert len(calls) == 6 and {call.num_choices for call in calls} == {2}
        kept = [next(call for call in calls if call.content == text) for text in chosen]
        assert [call.parent_call_id for call in calls if call.parent_call_id] == [
            call.call_id for call in kept[:2] for _ in range(2)
        ]
        found = await masks(r)
        # What babbled on to its limit is masked for that, whether it was chosen or not.
        is_apart = [call in kept[:2] or call.is_truncated for call in calls]
        assert [found[call.call_id] for call in calls] == ["" if apart else "not_chosen" for apart in is_apart]
