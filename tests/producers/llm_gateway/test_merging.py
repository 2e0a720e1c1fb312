"""Two turns of a conversation become one row of the trainer's input, because the gateway splices."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fake_engine.scripted import Reply, tool_call_text
from tests.producers.llm_gateway.harness import CALC, Rig, rig
from tests.producers.llm_gateway.merging import assert_merged, disable_splice, rows_of

pytestmark = pytest.mark.slow


async def converse(r: Rig) -> None:
    """A tool call, its result, an answer; rendered again, its digits would be merged in pairs."""
    await r.begin()
    r.engine.replies.extend([Reply(tool_call_text("calc", expr="12+34")), Reply("the answer is 46")])
    messages: list[Any] = [{"role": "user", "content": "use the tool"}]
    first = (await r.chat(messages, tools=CALC))["choices"][0]["message"]
    messages += [first, {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": "46"}]
    await r.chat(messages, tools=CALC)


async def test_turns_merge_with_mask_1_on_the_sampled_ids_alone(r: Rig) -> None:
    """One row for both calls."""
    await converse(r)
    assert_merged(await rows_of(r), r.calls())


async def test_without_the_splice_they_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """The template's own ids differ from those sampled, so each call is a row of its own."""
    disable_splice(monkeypatch)
    async with rig() as r:
        await converse(r)
        rows = await rows_of(r)
        with pytest.raises((AssertionError, ValueError)):
            assert_merged(rows, r.calls())
        assert len(rows) == 2
        before = [*rows[0].token_ids]
        assert [*rows[1].token_ids][: len(before)] != before
