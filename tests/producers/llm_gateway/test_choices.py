"""Several answers to one request: a record for each, and only what the agent made something of trains."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fake_engine.scripted import Reply, tool_call_text
from tests.producers.llm_gateway.harness import ASK, ATTEMPT, CALC, ROLLOUT, Rig
from tests.producers.llm_gateway.merging import masks_of
from tracegrad.schemas.records.calls import CallOutcome
from tracegrad.schemas.records.tokens import ids_from_bytes

pytestmark = pytest.mark.slow


async def test_each_choice_has_a_record_and_the_one_that_goes_on_trains(r: Rig) -> None:
    """By its tool call's id; the others were delivered too, and leave the loss as not chosen."""
    texts = [tool_call_text("calc", expr=f"12+3{i}") for i in range(3)]
    r.engine.replies.extend([*map(Reply, texts), Reply("42")])
    answer = await r.chat(ASK, tools=CALC, n=3)
    choices = answer["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2]
    calls = r.calls()
    sampled = {r.engine.tokenizer.decode(ids_from_bytes(call.sampled_ids).tolist()[:-1]) for call in calls}
    assert sampled == set(texts) and {call.num_choices for call in calls} == {3}
    assert answer["id"] in {call.call_id for call in calls}
    assert answer["usage"]["completion_tokens"] == sum(call.num_sampled for call in calls)
    chosen = choices[1]["message"]
    result = {"role": "tool", "tool_call_id": chosen["tool_calls"][0]["id"], "content": "42"}
    await r.chat([*ASK, chosen, result], tools=CALC)
    parent = r.calls()[-1].parent_call_id
    (own,) = [call for call in calls if call.tool_calls[0].id == chosen["tool_calls"][0]["id"]]
    assert parent == own.call_id
    told = {call["call_id"]: call["outcome"] for call in await r.end()}
    assert set(told.values()) == {CallOutcome.DELIVERED} and len(told) == 4
    found = await masks_of(r)
    assert {id_: found[id_] for id_ in told} == {
        call.call_id: "not_chosen" if call.num_choices > 1 and call.call_id != parent else "" for call in r.calls()
    }


def joined(body: str) -> dict[int, str]:
    """The text of each choice of a stream."""
    texts: dict[int, str] = {}
    for line in body.splitlines():
        if line.startswith("data: {"):
            for choice in json.loads(line[6:])["choices"]:
                text = choice["delta"].get("content") or ""
                texts[choice["index"]] = texts.get(choice["index"], "") + text
    return texts


async def test_choices_are_streamed_with_their_index(r: Rig) -> None:
    """Each with a finish reason of its own; the usage is that of all."""
    r.engine.replies.extend([Reply("42"), Reply("43", ends=False)])
    path = f"{r.url}/rollout/{ROLLOUT}/attempt/{ATTEMPT}/v1/chat/completions"
    body: dict[str, Any] = {"messages": ASK, "n": 2, "stream": True, "stream_options": {"include_usage": True}}
    async with r.http.post(path, json=body) as response:
        text = await response.text()
    assert sorted(joined(text)) == [0, 1] and set(joined(text).values()) == {"42", "43"}
    chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    ends = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]
    assert sorted(ends) == ["length", "stop"] and text.count("[DONE]") == 1
    assert chunks[-1]["usage"]["completion_tokens"] == sum(call.num_sampled for call in r.calls())


@pytest.mark.parametrize("fields", [{"n": 0}, {"n": 17}, {"n": "2"}, {"best_of": 3}], ids=str)
async def test_more_than_can_be_served_is_refused(r: Rig, fields: dict[str, Any]) -> None:
    """400, with the field at fault."""
    status, answer = await r.chat_raw(ASK, **fields)
    assert (status, answer["error"]["param"]) == (400, next(iter(fields)))
