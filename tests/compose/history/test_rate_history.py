"""Episodes of a history are rated by a file of rewards and by a grader, who gets the task that their spans tell."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.streams.assemble.test_told_calls import TRACE, chat, request, streams
from tests.streams.make import agent_span, pairs
from tracegrad.compose.history.rate_history import HistoryJudge, RewardFile, rating
from tracegrad.compose.run.load import load
from tracegrad.compose.run.show import Show
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.ids import conversation_key
from tracegrad.schemas.metrics import TOLD_CALLS, Metrics
from tracegrad.schemas.reasons import Reason
from tracegrad.schemas.records.episodes import Episode
from tracegrad.streams.assemble.write.again import Judge
from tracegrad.streams.config import HistoryConfig

GRADER = """
def grade(task, output, attempt):
    assert task["input"].strip() == "What is 1+2?" and len(attempt["calls"]) == 2
    return float(output == task["expected"])
"""


def rated(judge: Judge, *, conversation: str | None = None) -> Episode:
    """Two calls of an agent, and one of another that it asks."""
    made = streams(HistoryConfig(models=("*",)), judge=judge)
    said = {} if conversation is None else {"gen_ai__conversation__id": conversation}
    helper = agent_span(TRACE, 7, "helper", parent=1, at=25)
    spans = (
        agent_span(TRACE, 1, "clerk", **said),
        helper,
        chat(2, "3", response="r-1"),
        chat(8, "4", ask="b", parent=7),
    )
    made.feed(request(*spans))
    made.tick(0.0, 1e6, 2e6)
    return made.episode


def file(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def rewards(episode: Episode) -> list[tuple[str, float | None, str | None]]:
    """(name, value, target) of each."""
    return [(one.name, one.value, one.target) for one in episode.rewards]


def test_a_row_is_about_what_its_id_names(tmp_path: Path) -> None:
    """A call by its response's id or its span's, else the episode by its trace or its conversation."""
    span = f"{8:016x}"
    path = file(
        tmp_path / "rewards.jsonl",
        {"response_id": "r-1", "name": "useful", "value": 1},
        {"span_id": span, "name": "useful", "value": 0.5},
        {"trace_id": TRACE, "value": 0.25},
        {"conversation": "talk 1", "name": "thumb", "value": 2},
        {"trace_id": "f" * 32, "value": 1},
    )
    judge = HistoryJudge(None, path, None, Metrics())
    episode = rated(judge, conversation="talk 1")
    assert episode.conversation == conversation_key("talk 1")
    other = f"span-{TRACE}-{span}"
    assert rewards(episode) == [
        ("reward", 0.25, None),
        ("thumb", 2, None),
        ("useful", 1, "r-1"),
        ("useful", 0.5, other),
    ]
    assert episode.reward == 2.25 and [one.value for call in episode.calls for one in call.rewards] == [1, 0.5]
    assert judge._rewards is not None and judge._rewards.num_unmatched == 1


def test_evaluations_in_the_spans_of_calls_count() -> None:
    """Of the answer whose id is told, else of the trace; what is no number, or of no sane size, is none."""
    spans = [chat(2, "3", response="r-1"), chat(3, "4", ask="b")]
    given: list[list[Any]] = [[1, "good"], [0.5, math.nan]]
    for span, values in zip(spans, given, strict=True):
        for value in values:
            event = span.events.add(name="gen_ai.evaluation.result")
            event.attributes.extend(pairs({"gen_ai.evaluation.name": "useful", "gen_ai.evaluation.score.value": value}))
    made = streams(HistoryConfig(models=("*",)), judge=HistoryJudge(None, None, None, Metrics()))
    made.feed(request(agent_span(TRACE, 1, "clerk"), *spans))
    made.tick(0.0, 1e6, 2e6)
    assert rewards(made.episode) == [("useful", 0.5, None), ("useful", 1, "r-1")]
    assert {one.source for one in made.episode.rewards} == {"span"} and made.episode.reward == 0.5


def test_of_rows_of_one_name_for_one_thing_the_last_counts(tmp_path: Path) -> None:
    """And is told as said again; CSV says the same as JSON lines."""
    path = tmp_path / "rewards.csv"
    path.write_text(f"trace_id,name,value\n{TRACE},,0\n{TRACE},,1\n")
    assert rewards(rated(HistoryJudge(None, path, None, Metrics()))) == [("reward", 1, None)]
    assert RewardFile(path).num_doubled == 1


@pytest.mark.parametrize(
    "rows",
    [
        [{"value": 1}],
        [{"trace_id": TRACE, "span_id": "a", "value": 1}],
        [{"trace_id": TRACE}],
        [{"trace_id": TRACE, "value": 1e300}],
        [{"trace_id": TRACE, "value": 1, "when": "now"}],
        ["no row"],
    ],
)
def test_a_row_that_says_nothing_is_refused_with_its_file(rows: Sequence[Any], tmp_path: Path) -> None:
    """Before anything is made of the history."""
    with pytest.raises(ConfigurationError, match=r"\[history\] rewards: .*expected"):
        HistoryJudge(None, file(tmp_path / "rewards.jsonl", *rows), None, Metrics())


def test_what_nobody_rates_stays_without_a_reward_and_has_its_task() -> None:
    """The first message of the user; equal inputs are one task. The output is that of the agent that was asked."""
    one, other = (rated(HistoryJudge(None, None, None, Metrics())) for _ in range(2))
    assert one.reward is None and one.task_id == other.task_id and one.output == '"3"'


def test_a_grader_gets_the_task_of_the_file_and_what_the_agent_answered(tmp_path: Path) -> None:
    """In its own process, and once for an episode."""
    (tmp_path / "grade.py").write_text(GRADER)
    tasks = file(tmp_path / "tasks.jsonl", {"id": "7", "input": " What is 1+2?\n", "expected": "3"})
    history = {"history.models": '["*"]', "history.tasks": str(tasks)}
    settings = load(None, environ={}, flags={"run": "x", **history, "reward.grader": f"{tmp_path}/grade.py:grade"})
    with rating(settings, None, Metrics()) as judge:
        episode = rated(judge)
    assert (episode.task_id, episode.reward) == ("7", 1.0)
    assert [one.source for one in episode.rewards] == ["grader:grade"]


def test_an_agent_that_gave_no_answer_is_graded_for_it(tmp_path: Path) -> None:
    """As in a live run; left out, a failure would teach nothing."""
    (tmp_path / "grade.py").write_text(
        "def grade(task, output, attempt):\n    return -1.0 if output is None else 1.0\n"
    )
    settings = load(
        None,
        environ={},
        flags={"run": "x", "history.models": '["*"]', "reward.grader": f"{tmp_path}/grade.py:grade"},
    )
    with rating(settings, None, Metrics()) as judge:
        made = streams(HistoryConfig(models=("*",)), judge=judge)
        made.feed(request(agent_span(TRACE, 1, "clerk"), chat(2, "")))
        made.tick(0.0, 1e6, 2e6)
    assert made.episode.reward == -1.0


def test_a_grader_that_raises_on_each_is_an_error_that_says_why(tmp_path: Path) -> None:
    """Else a history would be trained on as if nobody had been asked."""
    (tmp_path / "grade.py").write_text("def grade(task, output, attempt):\n    raise KeyError('x')\n")
    flags = {"run": "x", "history.models": '["*"]', "reward.grader": f"{tmp_path}/grade.py:grade"}
    (metrics := Metrics()).add(TOLD_CALLS, Reason.TEXT)
    with rating(load(None, environ={}, flags=flags), None, metrics) as judge:
        assert rated(judge).reward is None
        with pytest.raises(ConfigurationError, match=r"got none: 1 .*raised"):
            judge.show_result(Show())


def test_a_history_without_a_call_of_its_models_is_an_error(tmp_path: Path) -> None:
    """With a mode or without: a glob that matches nothing is a slip."""
    judge = HistoryJudge(None, None, None, Metrics())
    with pytest.raises(ConfigurationError, match="expected calls of its models, agents and services, got none"):
        judge.show_result(Show())


def test_inputs_that_are_no_task_are_shown_beside_one_that_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By it a user sees that they are in another form."""
    tasks = file(tmp_path / "tasks.jsonl", {"id": "7", "input": {"question": "What is 1+2?"}, "expected": "3"})
    (metrics := Metrics()).add(TOLD_CALLS, Reason.TEXT)
    judge = HistoryJudge(tasks, None, None, metrics)
    rated(judge)
    judge.show_result(Show())
    assert """expected an input such as '{"question": "What is 1+2?"}', got 'What is 1+2?'""" in capsys.readouterr().out


QUESTION = """
def question(messages):
    return messages[-1]["content"].upper()

def nothing(messages):
    return None

def broken(messages):
    return messages[99]
"""


def test_a_function_of_the_users_says_what_a_tasks_input_is(tmp_path: Path) -> None:
    """For prompts with more than the question in the first message; what is no text ends the replay."""
    (tmp_path / "ask.py").write_text(QUESTION)
    tasks = file(tmp_path / "tasks.jsonl", {"id": "sum", "input": "WHAT IS 1+2?", "expected": "3"})

    def task_of(name: str) -> str | None:
        flags = {"run": "again", "history.models": '["*"]', "history.task": f"{tmp_path}/ask.py:{name}"}
        settings = load(None, environ={}, flags=flags | {"history.tasks": str(tasks)})
        with rating(settings, None, Metrics()) as judge:
            return rated(judge).task_id

    assert task_of("question") == "sum"
    with pytest.raises(ConfigurationError, match=r"expected a text from .*ask\.py:nothing, got None"):
        task_of("nothing")
    with pytest.raises(ConfigurationError, match=r"expected a text from .*ask\.py:broken, got IndexError"):
        task_of("broken")
