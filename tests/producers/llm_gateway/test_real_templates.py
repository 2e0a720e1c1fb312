"""The splice over published chat templates: what was sampled, and the template's own continuation of it, or a whole
rendering."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.producers.llm_gateway.families import ENDS, SCENES, Talk, Turn, segments
from tests.producers.llm_gateway.real_templates import FOLDER

DOCS = Path(__file__).parents[3] / "docs" / "templates.md"
WORDS_OF = {
    "qwen3": "Qwen3 (hybrid)", "qwen3_5_think": "Qwen3.5", "glm4moe": "GLM-4.5", "phi3_5": "Phi-3", "gptoss": "gpt-oss",
}  # fmt: skip
"""A fixture -> its family in the docs."""


WORDS = st.text(alphabet="ab3 \n", max_size=6)
TURNS = st.lists(
    st.builds(
        Turn,
        says=WORDS,
        answer=WORDS,
        calls_tool=st.booleans(),
        thought=st.sampled_from(["", "", "hm", "a b"]),
        tells_thought=st.booleans(),
        ends=st.sampled_from([True, True, True, False]),
    ),
    min_size=2,
    max_size=6,
)


@pytest.mark.parametrize("name", ENDS)
@given(turns=TURNS, tag=st.sampled_from(["", "x"]))
async def test_a_prompt_is_what_was_sampled_and_the_templates_continuation_or_a_whole_rendering(
    name: str, turns: list[Turn], tag: str
) -> None:
    """Every message that followed the answer is there, once and in its order; nothing is said twice."""
    talk, before = Talk(name), np.zeros(0, np.int32)
    for number, turn in enumerate(turns):
        said = turn._replace(says=f"[{number}]{tag}{turn.says}")
        prompt, full = await talk.ask(said)
        ids = prompt.ids.tolist()
        if prompt.parent is None:
            assert ids == full and prompt.outcome.kind != "extended"
        else:
            assert prompt.outcome.kind == "extended" and ids[: prompt.shared_tokens] == before.tolist()
            # Behind the last letter: the end, sampled or the template's, and all that follows.
            at = prompt.shared_tokens - bool(turns[number - 1].ends)
            assert ids[at:] == full[len(full) - len(ids[at:]) :]
            told, rendered = talk.template.decode(ids), talk.template.decode(full)
            marks = [f"[{i}]" for i in range(number + 1)]
            assert [told.count(mark) for mark in marks] == [rendered.count(mark) for mark in marks]
            assert marks[-1] not in talk.template.decode(before)
        talk.answer(said)
        before = np.concatenate([prompt.ids, np.asarray(talk.sampled, np.int32)])


TOOL_TURNS = [Turn("1+2?", "", calls_tool=True), *(Turn("3", "", calls_tool=True) for _ in range(10)), Turn("3", "3")]
THOUGHT = [turn._replace(thought="I add.") for turn in TOOL_TURNS]
TOLD = [turn._replace(tells_thought=True) for turn in THOUGHT]


@pytest.mark.parametrize("turns", [TOOL_TURNS, THOUGHT, TOLD], ids=["no thoughts", "thoughts dropped", "thoughts told"])
@pytest.mark.parametrize("name", ENDS)
async def test_twelve_turns_with_tools_are_one_segment(name: str, turns: list[Turn]) -> None:
    """Whether or not the agent repeats the thoughts, which some templates leave out of earlier answers."""
    assert await Talk(name).play(turns) == ["extended"] * 11


async def test_the_table_of_the_docs_is_what_is_measured() -> None:
    """The rows of the fixtures' families, by docs/templates.md's words for them."""
    rows = {row.split("|")[1]: row for row in DOCS.read_text().splitlines() if row.startswith("| ")}
    for name, words in WORDS_OF.items():
        (row,) = [row for names, row in rows.items() if words in names]
        cells = [await segments((FOLDER / f"{name}.jinja").read_text(), name, turns) for turns in SCENES.values()]
        assert [cell.strip() for cell in row.split("|")[2:-1]] == cells, name


@pytest.mark.parametrize("thinks", [True, False])
async def test_qwen3_answers_without_thoughts_extend(thinks: bool) -> None:
    """As last message its template writes an empty think block, which is in no prompt, or in the generation prompt."""
    talk = Talk("qwen3", chat_template_kwargs={"enable_thinking": thinks})
    turns = [Turn("hi", "hello"), Turn("and?", "yes"), Turn("so?", "3")]
    assert await talk.play(turns) == ["extended", "extended"]
    told = talk.template.decode(talk.prompts[-1].ids)
    assert told.count("<think>") == (0 if thinks else 3)


async def test_glm_ends_an_answer_by_the_next_role_which_is_not_doubled() -> None:
    """The token is the sampled answer's end and the next message's role; cut answers have it from the template."""
    talk = Talk("glm4moe")
    turns = [Turn("1+2?", "", calls_tool=True), Turn("3", "It is 3"), Turn("thanks", "you", ends=False), Turn("so", "")]
    assert await talk.play(turns) == ["extended"] * 3
    told = talk.template.decode(talk.prompts[-1].ids)
    assert [told.count(role) for role in ("<|user|>", "<|observation|>")] == [3, 1]


async def test_an_answer_that_ends_by_another_role_than_the_next_starts_a_segment() -> None:
    """GLM sampled the role of a tool's result, and a user's message came: its end stands nowhere in the template."""
    talk = Talk("glm4moe", ends=("<|observation|>", "<|observation|>"))
    await talk.ask(Turn("1+2?", ""))
    talk.answer(Turn("", "It is 3"))
    prompt, full = await talk.ask(Turn("thanks", ""))
    assert (prompt.outcome.reason, prompt.ids.tolist()) == ("no_end_of_message", full)


async def test_an_earlier_answer_whose_thoughts_a_template_drops_starts_a_segment() -> None:
    """The next user's message takes the thoughts of the tools' turns out of what precedes the answer."""
    talk = Talk("qwen3")
    turns = [*TOLD[:2], Turn("3", "3", thought="done", tells_thought=True), Turn("thanks", "")]
    assert await talk.play(turns) == ["extended", "extended", "history_dropped"]


async def test_a_templates_other_end_for_earlier_answers_starts_a_segment() -> None:
    """gpt-oss ends its last answer by another token than earlier ones."""
    assert await Talk("gptoss").play([Turn("hi", "hello"), Turn("and?", "")]) == ["answer_dropped"]
