"""Clients as people have them, each in an environment of its own packages: every call recorded, every turn merged.

What they are is listed in `requirements.txt` and `package.json`, exactly; the environments are made anew from the
package managers' caches.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.clients.catalogue import CLIENTS
from tests.clients.started import Programs, run
from tests.fake_engine.scripted import Reply, ScriptedEngine, tool_call_text
from tests.producers.llm_gateway.harness import rig
from tests.producers.llm_gateway.merging import assert_merged, rows_of
from tests.versions import label
from tracegrad.schemas.records.tokens import ids_from_bytes

pytestmark = [pytest.mark.e2e, pytest.mark.network, pytest.mark.timeout(300)]
SAID = (
    "I shall add. " + tool_call_text("add", a=12, b=30) + "\n" + tool_call_text("multiply", a=6, b=7),
    tool_call_text("multiply", a=42, b=2),
    "It is 84.",
    "vierundachtzig \u4f60\u597d \U0001f642 \ufffd",
    "\u00e9 \U0001f44b",
)
"""Two calls at once, then one, then the answer, then two more."""
TITLE = "A sum"
"""What a request without tools gets: some clients have their sessions named."""


def say(prompt: str, draw: int) -> Reply:
    """What is sampled: the next of SAID; a client may give the tools longer names."""
    tools = re.search(r"^tools: (.*)", prompt, re.MULTILINE)
    if tools is None:
        return Reply(TITLE)
    text = SAID[prompt.count("<|im_start|>assistant\n") - 1]
    offered = [name.removesuffix("<|im_end|>") for name in tools[1].split(", ")]
    for short in ("add", "multiply"):
        text = text.replace(f'"{short}"', f'"{next(name for name in offered if name.endswith(short))}"')
    return Reply(text)


@pytest.mark.parametrize(("program", "way"), CLIENTS, ids=["-".join(client) for client in CLIENTS])
async def test_a_client_is_answered_and_its_turns_merge(
    programs: Programs, program: str, way: str, tmp_path: Path
) -> None:
    """Its agent has the answers; the records hold the sampled ids exactly, and the five calls are one row."""
    engine = ScriptedEngine(label=label(0), policy=say, max_model_len=100_000)
    async with rig(engine) as r:
        await r.begin()
        texts = await run(r, programs, program, way, tmp_path)
        assert texts == list(SAID[2:]), json.dumps(engine.requests)[-2000:]
        titles = [call for call in r.calls() if call.content == TITLE]
        calls = [call for call in r.calls() if call.content != TITLE]
        assert [call.splice.kind for call in calls[1:]] == ["extended"] * 4, [it.splice for it in calls]
        said = [engine.tokenizer.decode(ids_from_bytes(call.sampled_ids).tolist()[:-1]) for call in calls]
        assert [re.sub(r"mcp__\w+?__", "", text) for text in said] == list(SAID)
        rows = await rows_of(r)
        assert len(rows) == 1 + len(titles)
        assert_merged([max(rows, key=lambda row: int(row.loss_mask.sum()))], calls)
