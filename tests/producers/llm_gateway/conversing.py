"""What a captured agent says, and under which keys its calls lie."""

from __future__ import annotations

from typing import Any

from tests.fake_engine.scripted import Reply, tool_call_text
from tests.producers.llm_gateway.harness import ASK, CALC, TOPICS, Rig
from tracegrad.schemas.records.calls import LLM_CALLS, CallRecord
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


REFLECTS = {
    "no-tools": ([], None),
    "other-tools": ([], [{"type": "function", "function": {"name": "other"}}]),
    "other-instructions": ([{"role": "system", "content": "You are the other agent."}], CALC),
}


async def answered_by_a_tool(r: Rig, headers: dict[str, str] | None = None) -> list[Any]:
    """The messages of the next request: question, answer, the tool's result."""
    said = await ask(r, ASK, headers, reply=Reply(tool_call_text("calc", a=1)), tools=CALC)
    return [*ASK, said, {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "1"}]
