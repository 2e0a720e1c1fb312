"""Answers that end at a stop string: what is recorded, which next requests go on from them, and what of them trains."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fake_engine.scripted import Reply, ScriptedEngine, tool_call_text
from tests.fake_engine.tokenizer import EOT
from tests.producers.keys import RUN_HASH
from tests.producers.llm_gateway.harness import ASK, ATTEMPT, CALC, ROLLOUT, Rig, begun, full_prompt
from tests.producers.llm_gateway.merging import assert_merged, rows_of
from tests.streams.make import Streams, config, event, reward
from tests.versions import label
from tracegrad.schemas.records.rollouts import GroupRef
from tracegrad.schemas.records.tokens import ids_from_bytes
from tracegrad.schemas.records.transitions import decode_group
from tracegrad.schemas.topics import Topic

pytestmark = pytest.mark.slow
STOP = "</code>"
THOUGHT = "Thought: count.\n<code>\nprint(3)\n"
RESULT = {"role": "user", "content": "Observation: 3"}


class CoarseTokens(ScriptedEngine):
    """Its engine samples so many ids at once: text behind the stop string comes with it, as in a token `>x`."""

    beyond = 0

    def sample(self, prompt_ids: list[int], parameters: dict[str, Any]) -> Any:
        """As the scripted engine's, with some ids more behind a stop string."""
        reply = self.replies[0]
        ids, finish, stop, said_by = super().sample(prompt_ids, parameters)
        if stop is not None and self.beyond:
            ids = self.tokenizer.encode(reply.text, merge=False)[: len(ids) + self.beyond]
        return ids, finish, stop, said_by


async def two_turns(r: Rig, back: str, *, said: str = f"{THOUGHT}{STOP}", stop: str = STOP) -> None:
    """An answer that ends at a stop string, and the next request, in which the agent has put `back` behind it."""
    r.engine.replies.extend([Reply(said), Reply("The answer is 3.")])
    answer = (await r.chat(ASK, stop=[stop]))["choices"][0]
    assert answer["finish_reason"] == "stop"
    message = answer["message"] | {"content": answer["message"]["content"] + back}
    await r.chat([*ASK, message, RESULT], stop=[stop])


async def test_an_answer_that_ends_at_a_stop_string_is_no_truncated_one(r: Rig) -> None:
    """Its record names the stop; one that met the limit is told apart by its finish reason."""
    await two_turns(r, STOP)
    r.engine.replies.append(Reply("a long answer"))
    await r.chat(ASK, max_tokens=4)
    stopped, ended, cut = r.calls()
    assert (stopped.finish_reason, stopped.is_truncated, stopped.stop_text) == ("stop", False, STOP)
    assert (ended.finish_reason, ended.is_truncated, ended.stop_text) == ("stop", False, "")
    assert (cut.finish_reason, cut.is_truncated, cut.stop_text) == ("length", True, "")


@pytest.mark.parametrize("stop", [STOP, "\nObservation:", "</search>"])
async def test_an_agent_that_puts_the_stop_string_back_goes_on_from_what_was_sampled(r: Rig, stop: str) -> None:
    """The next prompt has the sampled ids, the template's end of message and what came then; all sampled ids train,
    those of the stop string included, and nothing else does."""
    await two_turns(r, stop, said=f"Look it up{stop} and more", stop=stop)
    first, second = r.calls()
    assert (second.splice.kind, second.parent_call_id) == ("extended", first.call_id)
    sampled = ids_from_bytes(first.sampled_ids).tolist()
    assert r.engine.tokenizer.decode(sampled) == f"Look it up{stop}"
    prompt = full_prompt(second, r.calls())
    assert prompt[: second.shared_tokens] == full_prompt(first, r.calls()) + sampled
    assert prompt[second.shared_tokens] == EOT
    assert_merged(await rows_of(r), r.calls())


@pytest.mark.parametrize(
    ("stop", "behind", "back", "kind"),
    [
        (STOP, "", "", "new_segment"),
        (STOP, "", STOP, "extended"),
        (STOP, "\n\n", STOP, "extended"),
        (STOP, " x", STOP, "new_segment"),
        (STOP, "", f"{STOP}!", "new_segment"),
        ("\n\n", "", "", "extended"),
        ("\n\n", "", "\n\n", "extended"),
        ("\n\n", "x", "", "new_segment"),
    ],
)
async def test_ids_are_gone_on_from_only_where_they_say_what_the_agent_repeats(
    stop: str, behind: str, back: str, kind: str
) -> None:
    """But for white space at the end; else a new segment, in the template's own words."""
    engine = CoarseTokens(label=label(0))
    engine.beyond = len(behind)
    async with begun(engine) as r:
        await two_turns(r, back, said=f"look{stop}{behind}and more", stop=stop)
        first, second = r.calls()
        assert first.stop_text == stop + behind
        assert second.splice.kind == kind, second.splice
        if kind == "new_segment":
            assert second.splice.reason in ("answer_cut", "answer_changed") and second.parent_call_id is None
            asked = [*ASK, {"role": "assistant", "content": f"look{back}"}, RESULT]
            assert full_prompt(second, r.calls()) == engine.render(asked, None, generation_prompt=True)


async def test_an_agent_that_strips_what_it_puts_back_goes_on_from_what_was_sampled(r: Rig) -> None:
    """White space around a text is the agent's and the template's matter."""
    r.engine.replies.extend([Reply(f"\n {THOUGHT}{STOP}"), Reply("3")])
    message = (await r.chat(ASK, stop=[STOP]))["choices"][0]["message"]
    message["content"] = [{"type": "text", "text": (message["content"] + STOP).strip()}]
    await r.chat([*ASK, message, RESULT], stop=[STOP])
    assert [call.splice.kind for call in r.calls()] == ["first", "extended"]


async def test_a_tool_call_that_ends_at_a_stop_string_is_gone_on_from(r: Rig) -> None:
    """Nothing of it is cut off: the agent has the whole call."""
    r.engine.replies.extend([Reply(tool_call_text("calc", expr="12+30") + " and"), Reply("42")])
    answer = (await r.chat(ASK, tools=CALC, stop=["</tool_call>"]))["choices"][0]
    assert answer["finish_reason"] == "tool_calls"
    message = answer["message"]
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "42"}
    await r.chat([*ASK, message, result], tools=CALC, stop=["</tool_call>"])
    first, second = r.calls()
    assert (first.is_truncated, first.stop_text, second.splice.kind) == (False, "</tool_call>", "extended")
    assert_merged(await rows_of(r), r.calls())


@pytest.mark.parametrize("back", ["", STOP], ids=["as sent", "with its stop string"])
async def test_a_group_of_agents_that_stop_at_strings_trains(r: Rig, back: str) -> None:
    """Both calls of a rollout, whether or not they are one segment."""
    await two_turns(r, back)
    await r.end()
    streams = Streams(config(run_hash=RUN_HASH))
    for record in r.records():
        streams.feed(record)
    group = GroupRef(id=RUN_HASH + "f" * 16, size=1, member=0, index=0)
    streams.feed(reward(ROLLOUT, attempt_id=ATTEMPT), event(ROLLOUT, attempt_id=ATTEMPT, group=group))
    summary, rows = decode_group(streams.values(Topic.TRANSITIONS)[0])
    assert not summary.members[0].excluded
    assert len(rows) == (1 if back else 2)
    assert sum(int(row.loss_mask.sum()) for row in rows) == sum(call.num_sampled for call in r.calls())
    assert [turn.masked for row in rows for turn in row.turns] == ["", ""]


@pytest.mark.parametrize("back", ["", STOP], ids=["as sent", "with its stop string"])
async def test_a_captured_conversation_is_known_by_either_form(r: Rig, back: str) -> None:
    """A request that names nothing belongs to the conversation that it repeats."""
    r.engine.replies.extend([Reply(f"{THOUGHT}{STOP}"), Reply("3")])
    body = {"model": "policy", "stop": [STOP]}
    status, answer = await r.post("/v1/chat/completions", body | {"messages": ASK})
    assert status == 200, answer
    message = answer["choices"][0]["message"]
    message["content"] += back
    await r.post("/v1/chat/completions", body | {"messages": [*ASK, message, RESULT]})
    second = r.calls()[1]
    assert second.splice.reason == ("" if back else "answer_cut")
    assert second.splice.kind == ("extended" if back else "new_segment") and second.conversation_key
