"""Which captured calls are one conversation: by what they name, else by what was said."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.fake_engine.scripted import Reply, tool_call_text
from tests.producers.keys import RUN_HASH, bearer
from tests.producers.llm_gateway.harness import ASK, ATTEMPT, CALC, ROLLOUT, TOPICS, Rig, full_prompt, rig, until
from tracegrad.producers.llm_gateway.leaves import Leaf, Leaves, Said
from tracegrad.producers.llm_gateway.nested import Nesting
from tracegrad.producers.llm_gateway.sessions import Session
from tracegrad.schemas.credentials import attempt_holder
from tracegrad.schemas.ids import AttemptId, RolloutId, conversation_key, key_in, new_tool_call
from tracegrad.schemas.metrics import CALLS_JOINED
from tracegrad.schemas.records.calls import LLM_CALLS, CallRecord, Purpose
from tracegrad.schemas.records.tokens import ids_from_bytes
from tracegrad.schemas.topics import Topic

GO_ON = {"role": "user", "content": "go on"}
TRACE = "0af7651916cd43dd8448eb211c80319c"
OTHER_TRACE = "1bf7651916cd43dd8448eb211c80319c"
ANN = {"authorization": "Bearer sk-ann"}


async def ask(
    r: Rig, messages: list[Any], headers: dict[str, str] | None = None, *, reply: Reply | None = None, tools: Any = None
) -> Any:
    """The answer's message to a captured agent."""
    r.engine.replies.append(reply or Reply("hello"))
    body = {"messages": messages} | ({"tools": tools} if tools else {})
    status, answer = await r.post("/v1/chat/completions", body, **(ANN | (headers or {})))
    assert status == 200, answer
    return answer["choices"][0]["message"]


def keys(r: Rig) -> list[str]:
    """The keys of the call records, by the calls' start."""
    records = r.log.records(TOPICS.name(Topic.LLM_CALLS))
    calls = [(LLM_CALLS.decode(record.value), (record.key or b"").decode()) for record in records]
    found = sorted((call.started_at_ns, key) for call, key in calls if isinstance(call, CallRecord))
    return [key for _, key in found]


@pytest.mark.parametrize(
    "headers",
    [
        {"x-conversation-id": " c-17 "},
        {"baggage": "a=b,gen_ai.conversation.id=c%2D17;p=1"},
        {"baggage": "session.id=c-17"},
        {"baggage": "session.id=other,conversation.id=c-17"},
        {"x-conversation-id": "c-17", "baggage": "conversation.id=other"},
        {"x-conversation-id": "c-17", "traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"},
        {"baggage": "conversation.id=,session.id=c-17", "x-conversation-id": ""},
    ],
    ids=["header", "gen-ai", "session", "first-key", "header-first", "before-trace", "empty-is-absent"],
)
async def test_a_conversation_is_known_by_its_id(headers: dict[str, str]) -> None:
    """From any of its sources, before the trace; the record and the minted ids bear its key."""
    async with rig() as r:
        await ask(r, ASK, headers)
        (call,) = r.calls()
        assert keys(r) == [conversation_key("c-17")] == [call.conversation_key] == [key_in(call.call_id)]
        assert call.trace_id == (TRACE if "traceparent" in headers else None)


async def test_the_id_of_a_conversation_is_not_recorded() -> None:
    """It may be an address or a name."""
    async with rig() as r:
        await ask(r, ASK, {"x-conversation-id": "ann@example.org", "baggage": "session.id=ann@example.org"})
        await until(lambda: len(r.records()) == 2)
        for record in r.log.records(TOPICS.name(Topic.LLM_CALLS)):
            assert b"example.org" not in (record.value or b"") + (record.key or b"")


async def test_traces_of_one_conversation_are_spliced() -> None:
    """Each request a trace of its own, as a server makes them: the second starts with the first's ids."""
    async with rig() as r:
        headers = {"x-conversation-id": "c", "traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
        said = await ask(r, ASK, headers)
        await ask(r, [*ASK, said, GO_ON], headers | {"traceparent": f"00-{OTHER_TRACE}-00f067aa0ba902b7-01"})
        one, two = r.calls()
        assert (two.parent_call_id, two.splice.kind) == (one.call_id, "extended")
        assert [one.trace_id, two.trace_id] == [TRACE, OTHER_TRACE]


async def test_after_a_pause_a_record_holds_its_whole_prompt() -> None:
    """Its episode may have closed, and the next one could not rebuild it; what was sampled stands in it still."""
    async with rig() as r:
        messages: list[Any] = [*ASK]
        for i, pause_s in enumerate((1e9, 0.0, 1e9)):
            parts = r.gateway.parts
            parts.handles = msgspec.structs.replace(parts.handles, pause_s=pause_s)
            messages += [await ask(r, messages, {"x-conversation-id": "c"}, reply=Reply(f"answer {i}")), GO_ON]
        one, two, three = r.calls()
        assert [call.splice.kind for call in (one, two, three)] == ["first", "extended", "extended"]
        assert (two.parent_call_id, two.shared_tokens, three.parent_call_id) == (None, 0, two.call_id)
        before = full_prompt(one, []) + ids_from_bytes(one.sampled_ids).tolist()
        assert full_prompt(two, [])[: len(before)] == before


def within(conversation: str, **more: str) -> dict[str, str]:
    """The headers of a framework's run of an agent, within the one trace."""
    traced = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01", "baggage": f"gen_ai.conversation.id={conversation}"}
    return traced | {name.replace("_", "-"): value for name, value in more.items()}


async def test_an_agent_that_works_for_a_tool_is_in_its_callers_conversation() -> None:
    """pydantic-ai draws an id for each run: the inner one begins while the outer's tool is awaited."""
    async with rig() as r:
        said = await ask(r, ASK, within("outer"), reply=Reply(tool_call_text("calc", a=1)), tools=CALC)
        for messages in (ASK, [*ASK, {"role": "assistant", "content": "hello"}, GO_ON]):
            await ask(r, messages, within("inner"))
        result = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "1"}
        await ask(r, [*ASK, said, result], within("outer"), tools=CALC)
        await ask(r, ASK, within("after"))
        await ask(r, ASK, within("inner"))
        outer, after = conversation_key("outer"), conversation_key("after")
        assert keys(r) == [outer] * 4 + [after, outer]
        assert {key_in(call.call_id) for call in r.calls()} == {outer, after}


async def test_an_agent_that_works_for_a_tool_goes_on_by_naming_its_answer() -> None:
    """Which bears the key of the outer conversation."""
    async with rig() as r:
        await ask(r, ASK, within("outer"), reply=Reply(tool_call_text("calc", a=1)), tools=CALC)
        body: dict[str, Any] = {"model": "policy", "input": "hi"}
        for _ in range(2):
            r.engine.replies.append(Reply("hello"))
            status, answer = await r.post("/v1/responses", body, **(ANN | within("inner")))
            assert status == 200, answer
            body = body | {"previous_response_id": answer["id"]}
        assert keys(r) == [conversation_key("outer")] * 3


@pytest.mark.parametrize("names", [{"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}, {"x-conversation-id": "c"}])
async def test_an_answer_is_gone_on_with_by_its_client_or_who_names_its_conversation(names: dict[str, str]) -> None:
    """Whatever other clients are in the trace; by the answer's id alone nobody else comes in."""
    ann, bob = {"x-api-key": "sk-ann"}, {"x-api-key": "sk-bob"}
    async with rig() as r:
        r.engine.replies.extend([Reply("1"), Reply("2"), Reply("3"), Reply("4")])
        _, one = await r.post("/v1/responses", {"model": "policy", "input": "hi"}, **ann, **names)
        await r.post("/v1/responses", {"model": "policy", "input": "hello"}, **bob, **names)
        further = {"model": "policy", "input": "on", "previous_response_id": one["id"]}
        assert (await r.post("/v1/responses", further, **bob))[0] == 400
        assert (await r.post("/v1/responses", further, **ann))[0] == 200
        status, _ = await r.post("/v1/responses", further, **bob, **names)
        assert status == (200 if "x-conversation-id" in names else 400)


async def test_a_conversation_that_the_header_names_is_its_own() -> None:
    """Whatever waits in its trace: the header is the program's own word."""
    async with rig() as r:
        await ask(r, ASK, within("outer"), reply=Reply(tool_call_text("calc", a=1)), tools=CALC)
        await ask(r, ASK, within("x", x_conversation_id="inner"))
        assert keys(r) == [conversation_key("outer"), conversation_key("inner")]


def test_nesting_is_bounded() -> None:
    """The trace that is longest unused is forgotten; so many conversations of one trace are known, and no more."""
    nesting = Nesting(max_traces=1)
    nesting.key_of("t", "outer")
    nesting.answered("t", (), ["call_1"])
    assert [nesting.key_of("t", f"inner{i}") for i in (*range(256), 255)] == ["outer"] * 257
    assert (nesting.key_of("t", "inner256"), nesting.key_of("t", "inner0")) == ("inner256", "outer")
    nesting.key_of("other", "k")
    nesting.answered("t", (), ["call_2"])
    assert nesting.key_of("t", "inner0") == "inner0"


async def test_an_attempt_is_keyed_by_its_rollout_whatever_conversation_it_names() -> None:
    """A runner's episode is no captured one."""
    async with rig() as r:
        r.engine.replies.append(Reply("ok"))
        await r.begin()
        path = f"/rollout/{RUN_HASH}{'0' * 19}7/attempt/9a3c/v1/chat/completions"
        assert (await r.post(path, {"messages": ASK}, **{"x-conversation-id": "c"}))[0] == 200
        (call,) = r.calls()
        assert (keys(r), call.conversation_key) == ([call.rollout_id], None)


async def test_a_request_that_names_nothing_goes_on_with_what_was_said() -> None:
    """Turn by turn; each continues the one before, in one episode."""
    async with rig() as r:
        messages: list[Any] = [*ASK]
        for i in range(3):
            messages += [await ask(r, messages, reply=Reply(f"answer {i}")), GO_ON]
        one, two, three = r.calls()
        assert keys(r) == [one.trace_id] * 3
        assert [two.parent_call_id, three.parent_call_id] == [one.call_id, two.call_id]
        assert {key_in(call.call_id) for call in r.calls()} == set(keys(r))
        assert r.gateway.parts.metrics.value(CALLS_JOINED) == 2


async def test_two_users_who_say_the_same_stay_apart() -> None:
    """And get the same: of two equal ends nobody knows which is continued, so neither is."""
    async with rig() as r:
        said = [await ask(r, ASK) for _ in range(2)]
        await ask(r, [*ASK, said[0], GO_ON])
        await ask(r, [*ASK, said[1], GO_ON])
        assert len(set(keys(r))) == 4
        assert [call.parent_call_id for call in r.calls()] == [None] * 4


async def test_equal_answers_are_told_apart_by_their_tool_calls() -> None:
    """Whose ids the gateway drew."""
    async with rig() as r:
        said = [await ask(r, ASK, reply=Reply(tool_call_text("calc", a=1)), tools=CALC) for _ in range(2)]
        for answer in reversed(said):
            result = {"role": "tool", "tool_call_id": answer["tool_calls"][0]["id"], "content": "1"}
            await ask(r, [*ASK, answer, result], tools=CALC)
        one, two, three, four = keys(r)
        assert (three, four) == (two, one) and one != two


async def test_an_end_is_continued_once() -> None:
    """A second branch from one answer may be another user's; it is an episode of its own."""
    async with rig() as r:
        said = await ask(r, ASK)
        await ask(r, [*ASK, said, GO_ON], reply=Reply("one"))
        await ask(r, [*ASK, said, {"role": "user", "content": "no"}], reply=Reply("two"))
        one, two, three = keys(r)
        assert one == two != three


async def test_another_client_joins_nothing() -> None:
    """Another API key is another client; who names a conversation is in that."""
    async with rig() as r:
        said = await ask(r, ASK)
        await ask(r, [*ASK, said, GO_ON], {"authorization": "Bearer sk-bob"})
        await ask(r, [*ASK, said, GO_ON], {"x-conversation-id": "c-18"})
        assert len(set(keys(r))) == 3 and keys(r)[2] == conversation_key("c-18")


async def test_a_client_that_begins_a_trace_for_each_request_is_known_by_its_words() -> None:
    """Its first trace is the key. A trace that has calls keeps its own."""
    first, second, known = ({"traceparent": f"00-{one * 16}-00f067aa0ba902b7-01"} for one in ("a1", "a2", "a3"))
    other = [{"role": "user", "content": "another"}]
    async with rig() as r:
        said = await ask(r, ASK, first)
        await ask(r, [*ASK, said, GO_ON], second)
        again = await ask(r, other, reply=Reply("yes"))
        await ask(r, [{"role": "user", "content": "new"}], known)
        await ask(r, [*other, again, GO_ON], known)
        found = keys(r)
        assert [found[0], found[1], found[3], found[4]] == ["a1" * 16, "a1" * 16, "a3" * 16, "a3" * 16]
        one, two, *_ = r.calls()
        assert (two.trace_id, two.parent_call_id) == ("a2" * 16, one.call_id)


async def test_a_changed_history_joins_nothing() -> None:
    """Nor does one that another system prompt or other tools stand before: exact, or not at all."""
    async with rig() as r:
        said = await ask(r, ASK)
        await ask(r, [*ASK, said | {"content": "Hello"}, GO_ON])
        await ask(r, [{"role": "system", "content": "s"}, *ASK, said, GO_ON])
        await ask(r, [*ASK, said, GO_ON], tools=CALC)
        assert len(set(keys(r))) == 4


async def test_a_call_that_failed_leaves_its_conversation_to_the_retry() -> None:
    """The client asks the same again, and is still in it."""
    async with rig(engine_wait_s=0.05) as r:
        said = await ask(r, ASK)
        r.engine.fail_next = 1_000
        status, _ = await r.post("/v1/chat/completions", {"messages": [*ASK, said, GO_ON]}, **ANN)
        assert status == 503
        r.engine.fail_next = 0
        await ask(r, [*ASK, said, GO_ON])
        assert len(set(keys(r))) == 1


def test_an_end_of_one_conversation_that_comes_twice_is_one() -> None:
    """As of two equal choices, or of an answer that its client had to ask for again."""
    leaves, leaf = Leaves(), Leaf(Said(b"", b"d", ()), "a")
    leaves.add(leaf)
    leaves.add(leaf)
    assert (leaves.take(leaf.said), leaves.take(leaf.said)) == (leaf, None)


def test_equal_ends_are_forgotten_together() -> None:
    """The last one left would look like the only one."""
    leaves = Leaves(max_ends=2)
    said = [Said(b"", bytes([i]), ()) for i in range(3)]
    for one, key in ((said[0], "a"), (said[0], "b"), (said[1], "c"), (said[2], "d")):
        leaves.add(Leaf(one, key))
    assert [leaves.take(one) for one in said] == [None, Leaf(said[1], "c"), Leaf(said[2], "d")]
    assert leaves.take(said[1]) is None


async def test_a_rollout_of_agent_lightning_names_a_conversation() -> None:
    """By the path that its `ProxyLLM` makes, or by its headers; its attempts are no ids of ours."""
    key, body = conversation_key("ro-1a2b3c4d5e6f"), {"messages": ASK}
    async with rig() as r:
        for path, headers in (
            ("/rollout/ro-1a2b3c4d5e6f/attempt/at-1a2b3c4d/v1/chat/completions", {}),
            ("/v1/chat/completions", {"x-rollout-id": "ro-1a2b3c4d5e6f", "x-attempt-id": "at-1a2b3c4d"}),
        ):
            status, answer = await r.post(path, body, **(ANN | headers))
            assert (status, key_in(answer["id"])) == (200, key)
        assert keys(r) == [key, key]
        assert (await r.post(path, body, **(ANN | headers | {"baggage": "rollout.id=ro-9"})))[0] == 400


async def test_under_the_runner_its_own_names_change_nothing() -> None:
    """The credential says which attempt it is; the path's name is none of ours, also behind our own address."""
    path = "/rollout/ro-1a2b3c4d5e6f/attempt/at-1a2b3c4d/v1/chat/completions"
    async with rig() as r:
        await r.begin(host=None)
        own = {"x-api-key": "", **bearer(attempt_holder(RolloutId(ROLLOUT), AttemptId(ATTEMPT)))}
        for address in ("", f"/rollout/{ROLLOUT}/attempt/{ATTEMPT}"):
            status, answer = await r.post(address + path, {"messages": ASK}, **own)
            assert (status, key_in(answer["id"])) == (200, ROLLOUT)
        assert keys(r) == [ROLLOUT, ROLLOUT]


REFLECTS = {
    "no-tools": ([], None),
    "other-tools": ([], [{"type": "function", "function": {"name": "other"}}]),
    "other-instructions": ([{"role": "system", "content": "You are the other agent."}], CALC),
}


async def answered_by_a_tool(r: Rig, headers: dict[str, str] | None = None) -> list[Any]:
    """The messages of the next request: question, answer, the tool's result."""
    said = await ask(r, ASK, headers, reply=Reply(tool_call_text("calc", a=1)), tools=CALC)
    return [*ASK, said, {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "1"}]


@pytest.mark.parametrize(("before", "tools"), REFLECTS.values(), ids=REFLECTS)
@pytest.mark.parametrize("traced", [False, True], ids=["alone", "traces"])
async def test_a_request_that_repeats_our_tool_ids_is_in_their_conversation(
    before: list[Any], tools: Any, traced: bool
) -> None:
    """Whatever its tools and instructions: AutoGen reflects without tools, a handoff has another agent's."""
    traces = [{"traceparent": f"00-{one}-00f067aa0ba902b7-01"} if traced else {} for one in (TRACE, OTHER_TRACE)]
    async with rig() as r:
        messages = await answered_by_a_tool(r, traces[0])
        said = await ask(r, [*before, *messages], traces[1], tools=tools)
        await ask(r, [*before, *messages, said, GO_ON], traces[1], tools=tools)
        assert len(set(keys(r))) == 1
        assert [call.splice.kind for call in r.calls()] == ["first", "new_segment", "extended"]
        assert r.gateway.parts.metrics.value(CALLS_JOINED) == 2


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer sk-bob"},
        {"x-conversation-id": "c-18"},
        {"baggage": "conversation.id=c-18"},
        {"traceparent": f"00-{OTHER_TRACE}-00f067aa0ba902b7-01"},
    ],
    ids=["stranger", "header", "baggage", "trace-with-calls"],
)
async def test_our_tool_ids_alone_join_nobody_else(headers: dict[str, str]) -> None:
    """A stranger, who names another conversation, a trace that has its own: each stays where it is."""
    async with rig() as r:
        await ask(r, [{"role": "user", "content": "first"}], headers)
        messages = await answered_by_a_tool(r)
        await ask(r, messages, headers)
        one, two, three = keys(r)
        assert two not in (one, three)
        assert r.gateway.parts.metrics.value(CALLS_JOINED) == 0


async def test_ids_of_two_conversations_and_ids_that_were_never_drawn_join_neither() -> None:
    """A critic that is given both transcripts, and an id of our form that no answer here bore."""
    async with rig() as r:
        one, two = [await answered_by_a_tool(r) for _ in range(2)]
        await ask(r, [*one, *two])
        drawn = new_tool_call(keys(r)[0])
        made_up = {"id": drawn, "type": "function", "function": {"name": "calc", "arguments": "{}"}}
        asked = {"role": "assistant", "tool_calls": [made_up]}
        await ask(r, [*ASK, asked, {"role": "tool", "tool_call_id": drawn, "content": "1"}])
        assert len(set(keys(r))) == 4


def test_remembered_tool_calls_are_bounded() -> None:
    """The oldest are forgotten."""
    session = Session("k", Purpose.UNKNOWN)
    session.remember_tools([f"call_{i}" for i in range(1_001)], b"")
    assert len(session.tool_calls) == 1_000 and "call_0" not in session.tool_calls
