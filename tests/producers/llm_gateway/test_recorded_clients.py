"""Codex and Claude Code as they were recorded: three turns of tools each, sent again word for word.

Each file of `recorded_clients/` holds what one client sent to a gateway in front of the scripted engine (`client`: its
package and version), in the order in which it came, and what the policy said. Long texts, most tools and what tells of
a person or a machine were cut out of them; ids of tool calls are those of the answers then, and are replaced by those
of the answers now.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.fake_engine.scripted import Reply, ScriptedEngine
from tests.producers.llm_gateway.harness import Rig, rig
from tests.versions import label
from tracegrad.schemas.metrics import TOOLS_LEFT_OUT
from tracegrad.schemas.records.calls import CallRecord

FOLDER = Path(__file__).parent / "recorded_clients"
CALL_ID = re.compile(r"call_[0-9A-Za-z]{35}")


async def sent_again(r: Rig, name: str) -> list[CallRecord]:
    """The calls of a recording, all of which are answered."""
    recording: dict[str, Any] = json.loads((FOLDER / name).read_text())
    first = recording["requests"][0]["fields"]
    for said, request in zip(recording["said"], recording["requests"], strict=True):
        r.engine.replies.append(Reply(said))
        text = json.dumps({**first, **request, **request["fields"], "model": "policy"})
        now = [tool.id for call in r.calls() for tool in call.tool_calls]
        then = sorted(dict.fromkeys(CALL_ID.findall(text)), key=text.find)
        for old, new in zip(then, now, strict=True):
            text = text.replace(old, new)
        body = {field: value for field, value in json.loads(text).items() if field != "fields"}
        async with r.http.post(r.url + recording["path"], json=body, headers={"authorization": "Bearer c"}) as response:
            answer = await response.text()
            assert response.status == 200 and "event: error" not in answer and "failed" not in answer, answer
    return r.calls()


PATCHES = "exec_command apply_patch exec_command tool_search"
NAMESPACE = "exec_command exec_command exec_command multi_agent_v1__close_agent"


@pytest.mark.parametrize(
    ("name", "kinds", "tools", "left_out"),
    [
        ("codex_apply_patch.json", "feee", PATCHES, "web_search"),
        ("codex_namespace.json", "feee", NAMESPACE, "web_search"),
        # It adds `replace_all` to the arguments of Edit, which nobody sampled: the turn after it begins a segment.
        ("claude_code.json", "fene", "Read Edit Bash ToolSearch", None),
    ],
    ids=["codex-apply-patch", "codex-namespace", "claude-code"],
)
async def test_each_request_of_a_recorded_client_is_answered_and_goes_on(
    name: str, kinds: str, tools: str, left_out: str | None
) -> None:
    """All four are one conversation; what the API would run itself is in no prompt."""
    async with rig(ScriptedEngine(label=label(0), max_model_len=100_000)) as r:
        calls = await sent_again(r, name)
        assert "".join(call.splice.kind[0] for call in calls) == kinds, [call.splice for call in calls]
        assert " ".join(tool.name for call in calls for tool in call.tool_calls) == tools
        assert len({call.conversation_key or call.trace_id for call in calls}) == 1
        assert not any(call.is_constrained for call in calls)
        assert "web_search" not in json.dumps(r.asked("/v1/chat/completions/render"))
        if left_out is not None:
            assert r.gateway.parts.metrics.value(TOOLS_LEFT_OUT, left_out) == 4


async def test_what_a_search_of_claude_code_found_stands_in_its_result() -> None:
    """Tools that wait for a search are not at the prompt's head, which stays as it was; the result declares them."""
    async with rig(ScriptedEngine(label=label(0), max_model_len=100_000)) as r:
        await sent_again(r, "claude_code.json")
        asked = max(r.asked("/v1/chat/completions/render"), key=lambda body: len(body["messages"]))
        assert "WebFetch" not in [tool["function"]["name"] for tool in asked["tools"]]
        (found,) = [message for message in asked["messages"] if "input_schema" in str(message["content"])]
        assert found["role"] == "tool" and json.loads(found["content"])["name"] == "WebFetch"
