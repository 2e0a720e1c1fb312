"""Histories of spans alone, of every framework that is recorded, become the calls that were made."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.compose.history.telling import folder_of, real
from tests.fake_engine.model_folder import write_model_folder
from tests.frameworks.fixture import FIXTURES, Recording, load
from tests.frameworks.told_history import captured, shares, told_episodes, true_words, words
from tests.frameworks.true_requests import Ids, true_calls, true_ids, true_tools
from tracegrad.schemas.reasons import Reason
from tracegrad.schemas.records.episodes import EpisodeCall
from tracegrad.schemas.records.tokens import ids_from_bytes

EVENTS = FIXTURES / "openai-events-captured.msgpack.xz"
TEMPLATES = {"qwen2_5": ("<|im_end|>",), "qwen3": ("<|im_end|>",)}
"""How a model ends its answer."""
WITHOUT_MODEL_SPANS = {"autogen-builtin", "autogen-varied-builtin", "crewai-traceloop", "agent_lightning-otel"}
"""Their spans tell agents and tools; no span is a model's."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Recording, list[EpisodeCall]]]:
    """Of each recording its calls."""
    model = write_model_folder(tmp_path_factory.mktemp("model"))
    recordings = map(load, captured())
    return [(one, [call for made in told_episodes(one, model) for call in made.calls]) for one in recordings]


def test_each_call_that_was_made_is_told_once(made: list[tuple[Recording, list[EpisodeCall]]]) -> None:
    """Be it by one span, by spans within each other, or by events; with a reason where it cannot train."""
    counts = {one.name: (len(calls), len(true_calls(one))) for one, calls in made}
    assert {name for name, (num, _) in counts.items() if not num} == WITHOUT_MODEL_SPANS
    assert {name: pair for name, pair in counts.items() if pair[0] and pair[0] != pair[1]} == {}


def test_what_trains_are_the_words_that_were_said(made: list[tuple[Recording, list[EpisodeCall]]]) -> None:
    """Prompt, tools and answer, as the template of the engine that served them writes them."""
    for one, calls in made:
        true, trained = true_words(one), [call for call in calls if call.masked == Reason.TEXT]
        assert [words(call) for call in trained if words(call) not in true] == [], one.name
    assert sum(call.masked == Reason.TEXT for _, calls in made for call in calls) >= 390


@pytest.mark.parametrize("name", TEMPLATES)
def test_what_trains_are_the_requests_that_were_sent(name: str, tmp_path: Path) -> None:
    """By published templates, which write tools in full: the ids of the body that the agent sent, and of its answer;
    with a file of tools and without."""
    template, model = real(name), folder_of(tmp_path, name, TEMPLATES[name])
    for recording in (one for one in map(load, captured()) if one.calls[0].path):
        true = true_ids(recording, template, TEMPLATES[name])
        for tools in (None, true_tools(recording)):
            calls = [call for episode in told_episodes(recording, model, tools=tools) for call in episode.calls]
            trained = [ids(call) for call in calls if call.masked == Reason.TEXT]
            assert [recording.name for one in trained if one not in true] == []


def test_nine_calls_in_ten_that_tell_content_train_with_a_file_of_tools(tmp_path: Path) -> None:
    """docs/results/history.md has these figures."""
    expected = {"calls": 1068, "told": 1022, "content": 744, "without": 466, "with_file": 670}
    assert dict(shares(write_model_folder(tmp_path))) == expected


def ids(call: EpisodeCall) -> Ids:
    """Of a told call, whose prompt is whole."""
    return tuple(ids_from_bytes(call.suffix_ids).tolist()), tuple(ids_from_bytes(call.sampled_ids).tolist())


def test_a_file_of_tools_makes_calls_whole_that_lack_these_alone(tmp_path: Path) -> None:
    """As OpenAI Agents' are, whose spans tell no definitions."""
    path = next(path for path in captured() if path.name.startswith("openai_agents-openinference-captured"))
    recording, model = load(path), write_model_folder(tmp_path)
    without = [call for episode in told_episodes(recording, model) for call in episode.calls]
    assert {call.masked for call in without} == {Reason.NO_TOOLS_TOLD}
    tools = true_tools(recording)
    whole = [call for episode in told_episodes(recording, model, tools=tools) for call in episode.calls]
    assert {call.masked for call in whole} == {Reason.TEXT}
    assert {words(call) for call in whole} == true_words(recording)


def test_events_before_their_spans_tell_what_they_tell_behind_them(tmp_path: Path) -> None:
    """Exporters of log records and of spans wait for nobody: the same episodes come of either order."""
    recording, model = load(EVENTS), write_model_folder(tmp_path)
    turned = sorted(recording.records, key=lambda raw: raw.topic)
    assert next(raw.topic for raw in turned if raw.topic.startswith("otlp")) == "otlp_logs"
    first = told_episodes(msgspec.structs.replace(recording, records=tuple(turned)), model)
    assert first == told_episodes(recording, model)
