"""smolagents on a real vLLM engine: it demands a tool call of each answer, which the policy makes of its own accord."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine_fixture import RunningEngine, started
from tests.fake_engine.scripted import tool_call_text
from tests.frameworks.entry import Entry
from tests.frameworks.record import command_of
from tests.producers.keys import KEY, RUN_HASH
from tests.producers.llm_gateway.harness import ASK, ATTEMPT, CALC, ROLLOUT, rig
from tests.producers.llm_gateway.merging import rows_of
from tests.producers.llm_gateway.taught_model import Row, make_taught_model, spelt
from tests.versions import label
from tracegrad.producers.llm_gateway.config import PolicyConfig
from tracegrad.producers.runner.agent_environment import command_environment
from tracegrad.producers.runner.config import AgentConfig, RunnerHandles
from tracegrad.schemas.records.tokens import ids_from_bytes

pytestmark = [
    *(pytest.mark.engine, pytest.mark.torch, pytest.mark.e2e, pytest.mark.network),
    pytest.mark.timeout(300),
]
_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Who spoke, and nothing else: the policy knows two prompts."""
_SAID = (
    (("system", "user"), tool_call_text("add", a=12, b=30)),
    (("system", "user", "assistant", "user"), tool_call_text("final_answer", answer="It is 42.")),
)


def _rows(tokenizer: Any) -> list[Row]:
    rows: list[Row] = []
    for roles, answer in _SAID:
        messages = [{"role": role, "content": ""} for role in roles]
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        rows.append([(tokenizer.encode(text, add_special_tokens=False), False), (spelt(tokenizer, answer), True)])
    return rows


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEngine]:
    """It serves version 0."""
    folder = tmp_path_factory.mktemp("forced")
    engine = RunningEngine(folder, make_taught_model(folder / "model", _TEMPLATE, rows_of=_rows))
    with started(engine):
        engine.client.post("/update_weight_version", json={"new_version": label(0)}).raise_for_status()
        yield engine


def _policy(engine: RunningEngine) -> dict[str, Any]:
    policy = PolicyConfig(model=str(engine.model), temperature=0.01)
    return {"engine_url": engine.url, "engine_wait_s": 60, "folder": str(engine.model), "policy": policy}


async def test_no_call_of_smolagents_is_constrained_and_all_that_was_sampled_trains(
    engine: RunningEngine, tmp_path: Path
) -> None:
    """It asks `required` with each call; the policy calls both tools freely, and each sampled id has mask 1."""
    entry = Entry(name="smolagents", title="smolagents", agent="smolagents_forced", environment="smolagents")
    command = await asyncio.to_thread(command_of, entry, tmp_path)
    async with rig(**_policy(engine)) as r:
        await r.begin()
        handles = RunnerHandles(run_hash=RUN_HASH, key=KEY, llm_url=r.url, otlp_endpoint="http://no:1", log_dir="/")
        agent, home = AgentConfig(command=("agent",)), {"HOME": str(tmp_path)}
        given = command_environment(agent, handles, home, rollout=ROLLOUT, attempt=ATTEMPT, span="1" * 16) | home
        process = await asyncio.create_subprocess_exec(
            *command, env=given | {"OTEL_SDK_DISABLED": "true"}, stdout=asyncio.subprocess.PIPE
        )
        out, _ = await asyncio.wait_for(process.communicate(), 120)
        assert (process.returncode, out.decode().splitlines()[-1]) == (0, '"It is 42."')
        calls = r.calls()
        assert [call.sampling_asked["tool_choice"] for call in calls] == ["required"] * 2
        assert not any(call.is_constrained or call.is_truncated for call in calls)
        rows = await rows_of(r)
        sampled = sum(len(ids_from_bytes(call.sampled_ids)) for call in calls)
        assert sum(int(row.loss_mask.sum()) for row in rows) == sampled > 0


async def test_where_it_is_allowed_the_engine_forces_the_call(engine: RunningEngine) -> None:
    """The other side: this engine does derive a grammar from `required` and from a name."""
    async with rig(**_policy(engine), allow_forced=True) as r:
        await r.begin()
        for choice in ("auto", "required", {"type": "function", "function": {"name": "calc"}}):
            await r.chat(ASK, tools=CALC, tool_choice=choice, max_tokens=8)
        assert [call.is_constrained for call in r.calls()] == [False, True, True]
