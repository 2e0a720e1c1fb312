"""What the whole log tells of an episode: ratings behind its close, and that its group trained without it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tests.consumers.audit.small_run import memory_log, small_run
from tests.consumers.index.indexing import index_of
from tests.streams.assemble.test_feedback import KEY, said
from tests.streams.credit.strategies.test_conversations import TURNS, conversation
from tests.streams.credit.test_feedback_window import Run
from tests.streams.make import rollout
from tracegrad.consumers.episode_facts import KINDS
from tracegrad.consumers.index.group_facts import groups_where
from tracegrad.consumers.index.lineage import of_episodes
from tracegrad.consumers.index.query import Question, find
from tracegrad.consumers.index.show import episode_lines
from tracegrad.consumers.index.subject import Kind
from tracegrad.schemas.log.where import parse
from tracegrad.schemas.records.training import TRAINING_STEPS, TrainingStep
from tracegrad.schemas.topics import Topic


def test_an_episode_below_the_bound_of_a_filter_trained_nothing(tmp_path: Path) -> None:
    """Though its group did: no version holds it."""
    streams = small_run()
    first = TRAINING_STEPS.decode(streams.values(Topic.TRAINING_STEPS)[0])
    assert isinstance(first, TrainingStep)
    left_out = f"{rollout(1)}a001"
    filtered = msgspec.structs.replace(first, below_bound=(left_out,))
    streams.log[Topic.TRAINING_STEPS][0] = msgspec.structs.replace(
        streams.log[Topic.TRAINING_STEPS][0], value=TRAINING_STEPS.encode(filtered)
    )
    connection = index_of(memory_log(streams), tmp_path)
    told = {one["episode"]: (one["step"], one["excluded"]) for one in find(connection, Question())}
    assert told[left_out] == (None, "below_bound") and told[f"{rollout(0)}a001"] == (1, None)
    assert of_episodes(connection, [left_out], left_out, Kind.EPISODE).versions == ()


def test_how_often_it_was_rated_behind_its_close_is_known_once_it_counted(tmp_path: Path) -> None:
    """Of two conversations the one that people rated; its reward stays that of its record, and lists tell the rest."""
    run = Run()
    run.feed(*conversation(*TURNS), *conversation(("x", True), key="7a" * 16))
    run.wait(20)
    run.feed(said(1.0, "anna"), said(0.0, "ben"))
    connection = index_of(memory_log(run.streams), tmp_path)
    assert [one["rated"] for one in find(connection, Question())] == [None, None], "nobody knows yet what more is said"
    run.wait(100)
    connection = index_of(memory_log(run.streams), tmp_path / "later")
    told = {one["conversation"]: (one["rated"], one["reward"]) for one in find(connection, Question())}
    assert told == {KEY: (2, None), "7a" * 16: (None, None)}
    (rated,) = find(connection, Question(terms=parse("rated>0", KINDS)))
    assert (rated["conversation"], rated["excluded"]) == (KEY, None)
    (line,) = (line for line in episode_lines(find(connection, Question())) if line.startswith(KEY))
    assert " rated " in line and "no_reward" not in line
    assert sorted(one.rated for one in groups_where(connection, Question())) == [0, 2]
