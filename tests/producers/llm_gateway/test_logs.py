"""What agents and models say, and what proves who they are, reaches no log line, in whatever goes wrong."""

from __future__ import annotations

import logging

import pytest

from tests.fake_engine.scripted import Reply
from tests.producers.llm_gateway.harness import begun
from tests.serving import ENGINE_TOKEN
from tests.versions import label

PROMPT, ANSWER = "marker-of-a-prompt-5151", "marker-of-an-answer-6262"


async def test_no_line_holds_a_prompt_an_answer_or_a_secret(caplog: pytest.LogCaptureFixture) -> None:
    """Of calls that are answered, refused, unreadable, of an engine that answers under a wrong label."""
    caplog.set_level(logging.DEBUG, logger="tracegrad")
    ask = [{"role": "user", "content": PROMPT}]
    async with begun(engine_wait_s=0.3) as r:
        r.engine.replies.append(Reply(ANSWER))
        assert (await r.chat(ask))["choices"][0]["message"]["content"] == ANSWER
        statuses = [
            (await r.chat_raw(ask, model=PROMPT))[0],
            (await r.chat_raw([{"role": "tool", "content": PROMPT}]))[0],
        ]
        r.engine.label = "default"
        r.engine.replies.append(Reply(ANSWER))
        statuses.append((await r.chat_raw(ask))[0])
        r.engine.label = label(0)
        await r.end()
    assert statuses[0] == 404 and statuses[-1] == 503
    assert any("is refused" in record.getMessage() for record in caplog.records)
    told = "\n".join(logging.Formatter("%(name)s %(message)s").format(record) for record in caplog.records)
    assert not any(marker in told for marker in (PROMPT, ANSWER, ENGINE_TOKEN))
