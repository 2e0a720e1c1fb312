"""examples/history/from_atif.py: trajectories of Harbor and NeMo Gym become calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.compose.history.export_examples import calls, run
from tracegrad.schemas.records.calls import ToolCall
from tracegrad.schemas.records.tokens import ids_to_bytes, logprobs_to_bytes
from tracegrad.schemas.records.told import ChatMessage, ToldIds, ToolDefinition


def trial(tmp_path: Path, told: dict[str, Any]) -> Path:
    """A trial's folder, as Harbor leaves it below a job's.

    Its layout and result.json: NVIDIA-NeMo/Gym, responses_api_agents/harbor_agent/tests/test_app.py.
    """
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "trajectory.json").write_text(json.dumps(told))
    result = {"task_name": "test_task_123", "verifier_result": {"rewards": {"reward": 1.0}}}
    (tmp_path / "result.json").write_text(json.dumps(result))
    return tmp_path


def step(number: int, source: str, message: object, **told: Any) -> dict[str, Any]:
    """A step, as harbor 0.26's `harbor/models/trajectories/step.py` writes it, without what is None."""
    return {
        "step_id": number,
        "timestamp": f"2025-10-11T10:30:0{number}Z",
        "source": source,
        "message": message,
        **told,
    }


def trajectory(*steps: dict[str, Any], name: str = "harbor-agent", **told: Any) -> dict[str, Any]:
    """As the RFC has it (harbor, docs/rfcs/0001-trajectory-format.md), whose example some tests go through."""
    agent = {"name": name, "version": "1.0.0", "model_name": "gemini-2.5-flash", **told}
    return {"schema_version": "ATIF-v1.7", "session_id": "025B810F", "agent": agent, "steps": list(steps)}


SEARCHED = [
    {"tool_call_id": "call_price_1", "function_name": "search", "arguments": {"ticker": "GOOGL", "metric": "price"}},
    {"tool_call_id": "call_volume_2", "function_name": "search", "arguments": {"ticker": "GOOGL", "metric": "volume"}},
]
FOUND = [
    {"source_call_id": "call_price_1", "content": "GOOGL is at $185.35"},
    {"source_call_id": "call_volume_2", "content": "GOOGL volume: 1.5M"},
]
SEARCH = [{"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}]
RFC = [
    step(1, "user", "What is the price of Alphabet (GOOGL)?"),
    step(
        2,
        "agent",
        "I will search.",
        reasoning_content="Two data points.",
        tool_calls=SEARCHED,
        observation={"results": FOUND},
        metrics={"prompt_tokens": 520, "completion_tokens": 80},
    ),
    step(
        3,
        "agent",
        "It is $185.35.",
        model_name="gemini-2.5-pro",
        metrics={"completion_token_ids": [1722, 310], "logprobs": [-0.1, -0.05, -0.02]},
    ),
]


def test_an_atif_step_is_a_call_with_the_steps_before_it(tmp_path: Path) -> None:
    """Messages, calls and results in order; the trial's reward lies with the last call."""
    lines, said = run("from_atif.py", trial(tmp_path, trajectory(*RFC, tool_definitions=SEARCH)))
    assert said == "2 written"
    first, second = calls(lines)
    prompt = ChatMessage(role="user", content="What is the price of Alphabet (GOOGL)?")
    price, volume = (
        ToolCall(id=str(one["tool_call_id"]), name="search", arguments=json.dumps(one["arguments"])) for one in SEARCHED
    )
    asked = ChatMessage(role="assistant", content="I will search.", tool_calls=(price, volume))
    assert first.call.messages == (prompt,)
    assert first.call.answer == ChatMessage(
        role="assistant", content="I will search.", tool_calls=(price, volume), reasoning="Two data points."
    )
    assert second.call.messages == (
        prompt,
        asked,
        ChatMessage(role="tool", tool_call_id="call_price_1", content="GOOGL is at $185.35"),
        ChatMessage(role="tool", tool_call_id="call_volume_2", content="GOOGL volume: 1.5M"),
    )
    assert second.call.answer == ChatMessage(role="assistant", content="It is $185.35.")
    assert (
        first.call.tools
        == second.call.tools
        == (ToolDefinition(name="search", parameters=json.dumps({"type": "object"})),)
    )
    assert [(one.call.model, one.call.ids, one.agent, one.conversation) for one in (first, second)] == [
        ("gemini-2.5-flash", None, "harbor-agent", tmp_path.name),
        ("gemini-2.5-pro", None, "harbor-agent", tmp_path.name),
    ]
    assert (first.rewards, second.rewards) == ({}, {"reward": 1.0})
    assert first.call.lacks == second.call.lacks == ()
    assert first.call.started_ns == 1_760_178_602_000_000_000


def test_terminus_steps_tell_exact_ids(tmp_path: Path) -> None:
    """As NeMo Gym's harbor_agent has it trained (tests/test_app.py, TRAJECTORY_RAW_CONTENT): results are the user's
    words, there are no tools, and logprobs of another number are none."""
    raw = json.dumps({"analysis": "I will look.", "commands": [{"keystrokes": "cat foo.py\n"}]})
    ids = {"prompt_token_ids": [100, 101, 102], "completion_token_ids": [200, 201, 202]}
    steps = [
        step(1, "user", "Fix the bug in foo.py."),
        step(
            2,
            "agent",
            raw,
            observation={"results": [{"content": "def foo()"}]},
            metrics=ids | {"logprobs": [-0.01, -0.02, -0.03]},
        ),
        step(3, "agent", raw, observation={"results": [{"content": ""}]}, metrics=ids | {"logprobs": [-0.04, -0.05]}),
    ]
    lines, said = run("from_atif.py", trial(tmp_path, trajectory(*steps, name="terminus-2")))
    assert said == "2 written"
    first, second = (one.call for one in calls(lines))
    prompt, sampled = ids_to_bytes([100, 101, 102]), ids_to_bytes([200, 201, 202])
    assert first.ids == ToldIds(prompt=prompt, sampled=sampled, logprobs=logprobs_to_bytes([-0.01, -0.02, -0.03]))
    assert second.ids == ToldIds(prompt=prompt, sampled=sampled)
    assert (first.tools, second.tools, first.lacks, second.lacks) == ((), (), (), ())
    assert second.messages is not None and second.messages[-1] == ChatMessage(role="user", content="def foo()")


def changed(number: int, **told: Any) -> list[dict[str, Any]]:
    """The RFC's steps, one of them otherwise."""
    return [{**one, **told} if one["step_id"] == number else one for one in RFC]


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (trajectory(*changed(2, is_copied_context=True)), "1 of another trajectory, 1 written"),
        (trajectory(*changed(2, llm_call_count=2)), "2 behind or at what is not one answer of a model"),
        (trajectory(*RFC, name="terminus-2"), "2 behind or at what is not one answer of a model"),
        (
            trajectory(RFC[0], step(2, "agent", "Analysis: Nothing yet.\nPlan: Wait."), name="terminus-2"),
            "1 behind or at what is not one answer of a model",
        ),
        (trajectory(*RFC[1:2]), "1 behind or at what is not one answer of a model"),
        (trajectory(*changed(1, source="agent")), "3 behind or at what is not one answer of a model"),
        (
            trajectory(*changed(2, observation={"results": [{"content": "both"}]})),
            "1 written, 1 behind results of which nobody knows how they were sent",
        ),
        (
            trajectory(*changed(2, observation={"results": [FOUND[0], {"source_call_id": "call_volume_2"}]})),
            "1 written, 1 behind results of which nobody knows how they were sent",
        ),
        (
            trajectory(*RFC[:2], step(3, "system", "Context was summarized."), step(4, "agent", "It is.")),
            "1 written, 1 behind a step of the system",
        ),
    ],
    ids=[
        "copied",
        "two_calls",
        "made_up_calls",
        "made_up_words",
        "no_prompt",
        "begins",
        "of_no_call",
        "delegated",
        "summarized",
    ],
)
def test_an_atif_step_whose_prompt_nobody_knows_is_counted(tmp_path: Path, told: dict[str, Any], said: str) -> None:
    """With all behind it."""
    lines, counted = run("from_atif.py", trial(tmp_path, told))
    assert counted == said
    assert len(calls(lines)) == sum(int(part.split()[0]) for part in said.split(", ") if part.endswith("written"))


def test_agents_without_definitions_and_subagents_are_told(tmp_path: Path) -> None:
    """Nobody knows their tools; a subagent's calls are of the same conversation under its own name."""
    told = trajectory(*RFC)
    inner = trajectory(step(1, "system", "Be short."), step(2, "agent", "Yes."), name="critic")
    told["subagent_trajectories"] = [inner | {"session_id": None, "trajectory_id": "t1"}]
    lines, said = run("from_atif.py", trial(tmp_path, told))
    assert said == "3 written"
    assert [(one.agent, one.conversation, one.call.tools) for one in calls(lines)] == [
        ("harbor-agent", tmp_path.name, None),
        ("harbor-agent", tmp_path.name, None),
        ("critic", tmp_path.name, None),
    ]


def test_a_trial_of_several_files_is_one_conversation(tmp_path: Path) -> None:
    """Terminus begins another file where it summarizes; what is copied there is no call again, and a reward is one."""
    copied = [step(1, "user", "Fix it.", is_copied_context=True), step(2, "agent", "{}", is_copied_context=True)]
    more = trajectory(*copied, step(3, "user", "Go on."), step(4, "agent", '{"x": 1}'), name="terminus-2")
    first = trajectory(step(1, "user", "Fix it."), step(2, "agent", "{}"), name="terminus-2")
    (trial(tmp_path, first) / "agent" / "trajectory.cont-1.json").write_text(json.dumps(more))
    lines, said = run("from_atif.py", tmp_path)
    assert said == "1 of another trajectory, 2 written"
    told = calls(lines)
    assert [len(one.call.messages or ()) for one in told] == [3, 1]
    assert [(one.conversation, one.rewards) for one in told] == [(tmp_path.name, {}), (tmp_path.name, {"reward": 1.0})]
