"""A call told in words becomes the ids that the gateway would have had for it, or none, with a reason."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.compose.history.telling import (
    ASK,
    CALC,
    CALLS,
    DAY_NS,
    FINAL,
    SAYS,
    UNTOLD,
    folder_of,
    real,
    renderer_of,
    source,
    told,
)
from tests.fake_engine.model_folder import write_model_folder
from tests.fake_engine.scripted import ScriptedEngine
from tests.producers.llm_gateway.real_templates import NOW
from tracegrad.compose.history.history_model import load_history_renderer
from tracegrad.compose.history.rendering import ExactIdRules
from tracegrad.producers.llm_gateway.api.openai_chat import OPENAI_CHAT
from tracegrad.producers.llm_gateway.render.answer_end import EndOfMessage
from tracegrad.producers.llm_gateway.render.normalise import TemplateRefusals, normalised
from tracegrad.producers.llm_gateway.render.splice import SpliceHistory, build_prompt
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.reasons import Reason
from tracegrad.schemas.records.calls import ToolCall
from tracegrad.schemas.records.tokens import CallTokens
from tracegrad.schemas.records.told import ChatMessage, ToldCall, ToolDefinition

pytestmark = pytest.mark.slow


def form(message: ChatMessage) -> dict[str, Any]:
    """A message as an agent sends it to the gateway."""
    sent: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        sent["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    optional = {"tool_call_id": message.tool_call_id, "reasoning_content": message.reasoning, "name": message.name}
    return sent | {name: value for name, value in optional.items() if value is not None}


def request_of(call: ToldCall, *more: ChatMessage) -> Any:
    """The request that the gateway would have read."""
    schemas = [None if tool.parameters is None else json.loads(tool.parameters) for tool in call.tools or ()]
    functions = (
        {**msgspec.to_builtins(tool), **({} if schema is None else {"parameters": schema})}
        for tool, schema in zip(call.tools or (), schemas, strict=True)
    )
    tools = [{"type": "function", "function": function} for function in functions]
    messages = [form(message) for message in (*(call.messages or ()), *more)]
    return OPENAI_CHAT.read({"messages": messages, **({"tools": tools} if tools else {})})


async def check_ids(template: Any, call: ToldCall, got: CallTokens) -> None:
    """The prompt is the gateway's, and the conversation in full begins with prompt and answer; what is left of it holds
    nothing that was said."""
    prompt, _ = await build_prompt(template, EndOfMessage(), SpliceHistory(), request_of(call), NOW)
    assert got.prompt.tolist() == prompt.ids.tolist()
    assert call.answer is not None
    request = request_of(call, call.answer)
    messages, _ = await normalised(request, TemplateRefusals(), template, NOW)
    request = msgspec.structs.replace(request, messages=messages)
    in_full = (await template.ids(request, NOW, to_generate=False)).ids
    both = [*got.prompt.tolist(), *got.answer.tolist()]
    assert in_full[: len(both)] == both
    assert template.decode(in_full[len(both) :]).strip() in ("", "<|stop|>", "<|endoftext|>")


def conversation(seed: int, *, thinks: bool = False, has_tools: bool = True) -> Iterator[ToldCall]:
    """The calls of an agent that calls tools, one or two at a time, and then answers, for several users' messages."""
    draw = random.Random(seed)
    messages: list[ChatMessage] = []
    if draw.random() < 0.5:
        messages.append(ChatMessage(role="system", content="Be brief. "))
    for turn in range(draw.randint(2, 4)):
        messages.append(ChatMessage(role="user", content=draw.choice(["1+2?", " \u00e9\n\n", "<tool_call>", "and?"])))
        for step in range(draw.randint(0, 3) + 1):
            thought = "I add.\nSlowly." if thinks else None
            calls = tuple(
                ToolCall(id=f"call_{turn}_{step}_{n}", name="calc", arguments=draw.choice(['{"expr":"1+2"}', "{}", ""]))
                for n in range(draw.randint(1, 2) if has_tools and step < 3 and draw.random() < 0.6 else 0)
            )
            answer = ChatMessage(
                role="assistant",
                content=draw.choice([None, "", "Let me see."]) if calls else draw.choice(["3", "It is\n\n 3. "]),
                tool_calls=calls,
                reasoning=thought,
            )
            yield told(*messages, answer=answer, tools=(CALC,) if has_tools else ())
            messages.append(answer)
            messages += (ChatMessage(role="tool", tool_call_id=call.id, content="3\n") for call in calls)
            if not calls:
                break


KEEPS = ("qwen2_5", "trimming", "nine_character_ids")
"""Templates that write a conversation's beginning alike, whatever follows."""


@pytest.mark.parametrize("name", KEEPS)
@pytest.mark.parametrize("seed", range(5))
async def test_a_conversation_grows_by_its_answers(tmp_path: Path, name: str, seed: int) -> None:
    """Each prompt begins with the prompt and the answer before it: one row of what is trained."""
    template, renderer = real(name), renderer_of(tmp_path, name)
    before: list[int] = []
    for call in conversation(seed):
        got = renderer.tokens(call)
        assert (got.reason, got.masked, got.logprobs) == ("", Reason.TEXT, None)
        await check_ids(template, call, got)
        assert got.prompt.tolist()[: len(before)] == before
        before = [*got.prompt.tolist(), *got.answer.tolist()]
        assert template.decode(before).endswith(FINAL[name])


@pytest.mark.parametrize("seed", range(5))
async def test_a_template_that_drops_thoughts_drops_them_from_later_prompts_alone(tmp_path: Path, seed: int) -> None:
    """Qwen3 writes thoughts until a user speaks again: each answer has its own, and the next prompt goes on from it or
    does not, as the engine's would."""
    template, renderer = real("qwen3"), renderer_of(tmp_path, "qwen3")
    earlier, before = told(), list[int]()
    for call in conversation(seed, thinks=True):
        got = renderer.tokens(call)
        assert got.reason == ""
        await check_ids(template, call, got)
        assert "<think>\nI add.\nSlowly.\n</think>" in template.decode(got.answer)
        assert call.messages is not None
        grows = call.messages[-1].role == "tool" or not before
        assert (got.prompt.tolist()[: len(before)] == before) == grows
        earlier, before = call, [*got.prompt.tolist(), *got.answer.tolist()]
    assert earlier is not None


@pytest.mark.parametrize("name", ["phi3_5", "gptoss", "qwen3_5_think", "alternating"])
@pytest.mark.parametrize("has_tools", [False, True])
async def test_what_other_templates_write_is_the_engines_or_nothing(tmp_path: Path, name: str, has_tools: bool) -> None:
    """Also where turns do not merge, tools are ignored or refused."""
    template, renderer = real(name), renderer_of(tmp_path, name)
    reasons = set()
    for call in conversation(1, has_tools=has_tools):
        got = renderer.tokens(call)
        reasons.add(got.reason)
        if got.reason:
            assert not len(got.prompt) and not len(got.answer)
        else:
            await check_ids(template, call, got)
    refuses = {"phi3_5": Reason.ANSWER_DROPPED, "alternating": Reason.TEMPLATE_REFUSES}
    assert has_tools or reasons == {""}
    assert not has_tools or refuses.get(name, "") in reasons


LIMIT: dict[str, Any] = {"finish_reason": "length"}
RESULT = ChatMessage(role="tool", tool_call_id="call_1", content="3")
IMAGE = ChatMessage(role="user", content="look", num_other_parts=1)
BROKEN = ChatMessage(role="assistant", tool_calls=(ToolCall(id="c", name="calc", arguments='{"expr'),))


@pytest.mark.parametrize(
    ("name", "call", "reason"),
    [
        ("qwen2_5", told(lacks=(Reason.NO_TOOLS_TOLD, "of_a_later_release")), "of_a_later_release"),
        ("qwen2_5", told(**UNTOLD), Reason.NO_TOOLS_TOLD),
        ("qwen2_5", msgspec.structs.replace(told(), messages=None), Reason.NO_PROMPT_TOLD),
        ("qwen2_5", told(ASK, SAYS, RESULT), Reason.NO_PROMPT_TOLD),
        ("qwen2_5", told(ASK, CALLS, ASK, RESULT), Reason.NO_PROMPT_TOLD),
        ("qwen2_5", told(ASK, ChatMessage(role="assistant"), ASK), Reason.NO_PROMPT_TOLD),
        ("qwen2_5", told(answer=None), Reason.NO_ANSWER_TOLD),
        ("qwen2_5", told(answer=ChatMessage(role="assistant", reasoning="hm")), Reason.NO_ANSWER_TOLD),
        ("qwen2_5", told(finish_reason="content_filter"), Reason.UNFINISHED),
        ("qwen2_5", told(IMAGE), Reason.CONTENT_NOT_TEXT),
        ("qwen2_5", told(ChatMessage(role="observer", content="x")), Reason.OTHER_ROLE),
        ("qwen2_5", told(ASK, ChatMessage(role="developer", content="x")), Reason.OTHER_ROLE),
        ("qwen2_5", told(answer=BROKEN), Reason.ODD_ARGUMENTS),
        ("qwen2_5", told(answer=CALLS, **LIMIT), Reason.TRUNCATED),
        ("qwen2_5", told(answer=ChatMessage(role="assistant", content="say <|im_end|>")), Reason.SPELLS_END),
        ("qwen2_5", told(answer=CALLS), Reason.NO_TOOLS_TOLD),
        ("phi3_5", told(answer=CALLS, tools=(CALC,)), Reason.ANSWER_DROPPED),
        ("glm4moe", told(), Reason.NO_END_OF_MESSAGE),
        ("alternating", told(ASK, ASK), Reason.TEMPLATE_REFUSES),
        ("gptoss", told(started_ns=0), Reason.TEMPLATE_REFUSES),
    ],
)
def test_what_cannot_be_written_has_a_reason_and_no_ids(tmp_path: Path, name: str, call: ToldCall, reason: str) -> None:
    """The first that holds, in the order in which somebody could mend them."""
    got = renderer_of(tmp_path, name).tokens(call)
    assert (got.reason, len(got.prompt), len(got.answer)) == (reason, 0, 0)


def test_a_template_that_writes_the_prompt_otherwise_before_an_answer_gives_none(tmp_path: Path) -> None:
    """Ids of a prompt that the engine never gets would be trained on."""
    folder = folder_of(tmp_path, "qwen2_5")
    file = folder / "chat_template.jinja"
    file.write_text("{{ messages | length }}" + file.read_text())
    assert load_history_renderer(folder, ExactIdRules()).tokens(told()).reason == Reason.TEMPLATE_REWRITES


def test_the_model_says_what_ends_its_messages(tmp_path: Path) -> None:
    """A base model's template may write an end at which the engine does not stop: trained on, it would never end."""
    template, folder = real("qwen2_5"), folder_of(tmp_path, "qwen2_5", ends=())
    assert load_history_renderer(folder, ExactIdRules()).tokens(told()).reason == Reason.NO_END_OF_MESSAGE
    end = template.special("<|im_end|>")
    (folder / "generation_config.json").unlink()
    (folder / "config.json").write_text(json.dumps({"eos_token_id": end}))
    assert load_history_renderer(folder, ExactIdRules()).tokens(told()).answer[-1] == end
    (folder / "config.json").unlink()
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<|im_end|>"}}))
    assert load_history_renderer(folder, ExactIdRules()).tokens(told()).answer[-1] == end


@pytest.mark.parametrize("finish", ["length", "max_tokens", "FinishReason.LENGTH"])
def test_an_answer_that_met_the_limit_has_no_end(tmp_path: Path, finish: str) -> None:
    """The policy did not end it, and is not to learn to."""
    renderer = renderer_of(tmp_path, "qwen2_5")
    whole, cut = renderer.tokens(told()), renderer.tokens(told(finish_reason=finish))
    assert cut.answer.tolist() == whole.answer.tolist()[:-1]
    assert cut.prompt.tolist() == whole.prompt.tolist()


def test_a_developer_who_speaks_first_is_the_system(tmp_path: Path) -> None:
    """As vLLM writes it for a template without that role; Qwen's would leave the message out."""
    renderer = renderer_of(tmp_path, "qwen2_5")
    one, other = (renderer.tokens(told(ChatMessage(role=role, content="Be."), ASK)) for role in ("developer", "system"))
    assert one.prompt.tolist() == other.prompt.tolist() and "Be." in real("qwen2_5").decode(one.prompt)


def test_the_day_in_a_prompt_is_the_calls(tmp_path: Path) -> None:
    """A replay on another day gives the same ids."""
    template, renderer = real("gptoss"), renderer_of(tmp_path, "gptoss")
    assert "Current date: 2026-11-28" in template.decode(renderer.tokens(told()).prompt)
    day_before = renderer.tokens(told(started_ns=DAY_NS - 86_400_000_000_000))
    assert "Current date: 2026-11-27" in template.decode(day_before.prompt)


def test_results_stand_in_the_order_of_their_calls(tmp_path: Path) -> None:
    """As the gateway puts them, whatever order the agent sent them in: as the tools ended."""
    renderer = renderer_of(tmp_path / "model", "qwen2_5")
    calls = tuple(ToolCall(id=f"call_{n}", name="calc", arguments="{}") for n in range(2))
    asked = ChatMessage(role="assistant", tool_calls=calls)
    results = [ChatMessage(role="tool", tool_call_id=call.id, content=call.id) for call in calls]
    prompts = [
        renderer.tokens(told(ASK, asked, *order, tools=(CALC,))).prompt.tolist() for order in (results, results[::-1])
    ]
    assert prompts[0] == prompts[1] != []


def test_digests_are_of_all_that_makes_ids(tmp_path: Path) -> None:
    """Equal for a copy of the folder; another where the template, an end or the tokenizer is."""
    one, copy, ends, other = (
        renderer_of(tmp_path / f"{number}", name, ends=end).digests
        for number, (name, end) in enumerate(
            [("qwen2_5", None), ("qwen2_5", None), ("qwen2_5", ("<|im_start|>",)), ("trimming", ("<|im_end|>",))]
        )
    )
    assert one == copy and len(one.template) == len(one.tokenizer) == 64
    assert ends.template != one.template != other.template and ends.tokenizer == one.tokenizer
    assert renderer_of(tmp_path / "5", "phi3_5").digests.tokenizer != one.tokenizer


def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """With what to do."""
    with pytest.raises(ConfigurationError, match="cannot read"):
        load_history_renderer(tmp_path, ExactIdRules())
    folder = folder_of(tmp_path, "qwen2_5")
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(ConfigurationError, match="expected a chat template and a tokenizer"):
        load_history_renderer(folder, ExactIdRules())
    template = tmp_path / "own.jinja"
    template.write_text(source("qwen2_5"))
    named = load_history_renderer(folder, ExactIdRules(), chat_template=template)
    assert named.tokens(told()).reason == ""


@pytest.mark.parametrize("seed", range(5))
def test_the_scripted_engine_would_render_the_same(tmp_path: Path, seed: int) -> None:
    """By its template and tokenizer as files; recordings of agents are made with it."""
    engine, renderer = ScriptedEngine(), load_history_renderer(write_model_folder(tmp_path), ExactIdRules())
    for call in conversation(seed):
        got = renderer.tokens(call)
        assert call.messages is not None and call.answer is not None and got.reason == ""
        tools = [{"function": {"name": tool.name}} for tool in call.tools or ()]
        messages = [form(message) for message in call.messages]
        assert got.prompt.tolist() == engine.render(messages, tools, generation_prompt=True)
        in_full = engine.render([*messages, form(call.answer)], tools, generation_prompt=False)
        assert [*got.prompt.tolist(), *got.answer.tolist()] == in_full[:-1]


def test_a_schema_is_written_with_its_keys_in_their_order(tmp_path: Path) -> None:
    """As the engine writes what it is sent."""
    schema = '{"type": "object", "properties": {"z": {}, "a": {}}}'
    tool = ToolDefinition(name="calc", parameters=schema)
    prompt = real("qwen2_5").tokenizer.decode(
        renderer_of(tmp_path, "qwen2_5").tokens(told(tools=(tool,))).prompt.tolist(), skip_special_tokens=False
    )
    assert schema in prompt
