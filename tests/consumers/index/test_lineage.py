"""What came of what, both ways."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from random import Random
from typing import NamedTuple

import msgspec
import pytest

from tests.consumers.audit.small_run import long_run, memory_log, small_run, step
from tests.consumers.history.source_run import SourceRun
from tests.consumers.history.test_replay import RULES
from tests.consumers.index.indexing import index_of
from tests.consumers.index.test_build import log_of
from tests.memory_log import MemoryLog
from tests.streams.assemble.test_feedback import said
from tests.streams.credit.strategies.test_conversations import conversation
from tests.streams.make import RUN_HASH, TOPICS, rollout
from tests.versions import claim, manifest
from tracegrad.consumers.index.lineage import Lineage, of_episodes, of_group, of_version
from tracegrad.consumers.index.origins import episodes_of_call, with_feedback, with_origins
from tracegrad.consumers.index.query import Question, find
from tracegrad.consumers.index.show import episode_lines, lineage_lines
from tracegrad.consumers.index.subject import Kind, Subject, taken_for
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.ids import new_call
from tracegrad.schemas.log.made_of import GroupMadeOf, made_of, made_of_header
from tracegrad.schemas.otlp.read import decode_spans, spans_of
from tracegrad.schemas.records.training import TRAINING_STEPS
from tracegrad.schemas.records.transitions import group_id_of
from tracegrad.schemas.records.weights import WEIGHTS
from tracegrad.schemas.topics import INPUTS, Stage, Topic


class Run(NamedTuple):
    """A run and its index."""

    log: MemoryLog
    connection: sqlite3.Connection


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two steps, a rollback to version 1 as version 3, a third step in a second epoch."""
    log = memory_log(long_run(tmp_path_factory.mktemp("weights")))
    return Run(log, index_of(log, tmp_path_factory.mktemp("index")))


def steps_of(found: Lineage) -> list[tuple[int, int, int]]:
    """(step, begin, next) of each."""
    return [(one.step, one.begin, one.next) for one in found.steps]


@pytest.mark.parametrize(
    ("version", "made_by", "steps", "contained_in", "numbers"),
    [
        (0, ["start"], [], ((0, 4),), []),
        (1, ["step"], [(1, 0, 1)], ((1, 4),), [0, 1]),
        (2, ["step"], [(2, 1, 2)], ((2, 2),), [2, 3]),
        (3, ["rollback", "step"], [(1, 0, 1)], ((3, 4),), [0, 1]),
        (4, ["step"], [(3, 2, 3)], ((4, 4),), [4, 5]),
    ],
)
def test_a_version_goes_back_to_raw_records(
    run: Run,
    version: int,
    made_by: list[str],
    steps: list[tuple[int, int, int]],
    contained_in: tuple[tuple[int, int], ...],
    numbers: list[int],
) -> None:
    """By its step, of a rollback by the step of the version whose content it has."""
    found = of_version(run.connection, version, str(version))
    assert [one.made_by for one in found.versions] == made_by
    assert (steps_of(found), found.contained_in) == (steps, contained_in)
    assert [one.episode for one in found.episodes] == [f"{rollout(number)}a001" for number in numbers]
    assert {one.group for one in found.episodes} == {one.group for one in found.groups}
    for one in with_origins(run.log, TOPICS, found.episodes):
        assert len(one.calls) == 2
        spans = [at for place, ranges in one.made_of.items() if place == "otlp_spans/0" for at in ranges]
        for begin, end in spans:
            for record in run.log.records(TOPICS.name(Topic.OTLP_SPANS))[begin:end]:
                traces = {span.trace_id.hex() for _, _, span in spans_of(decode_spans(record.value))}
                assert traces == {one.episode}
        assert spans


def test_an_episode_goes_on_to_the_versions_that_hold_it(run: Run) -> None:
    """Of one that was rolled back that is its own alone."""
    found = of_episodes(run.connection, [f"{rollout(3)}a001"], "", Kind.EPISODE)
    assert (steps_of(found), [one.version for one in found.versions], found.contained_in) == (
        [(2, 1, 2)],
        [2],
        ((2, 2),),
    )
    assert [(one.group, one.offset, one.excluded) for one in found.groups] == [(f"{RUN_HASH}{1:016x}", 1, None)]


@pytest.mark.parametrize(
    ("attempt", "reason", "told"),
    [
        (f"{rollout(1)}b002", "superseded", "superseded: The client asked again"),
        (f"{rollout(21)}0000", "given_up", "given_up: No attempt of it came to an end"),
    ],
)
def test_what_was_left_out_is_in_no_version(run: Run, attempt: str, reason: str, told: str) -> None:
    """Though its group trained, with the reason and what it means."""
    found = of_episodes(run.connection, [attempt], attempt, Kind.EPISODE)
    assert (found.versions, found.contained_in, found.episodes[0].excluded) == ((), (), reason)
    assert [*lineage_lines(found)][-1].startswith(f"in no version: left out, {told}")


def test_a_group_has_all_that_were_tried(run: Run) -> None:
    """Also the attempt that a later one followed."""
    group = f"{RUN_HASH}{0:016x}"
    found = of_group(run.connection, group, group)
    assert [one.episode for one in found.episodes] == [f"{rollout(0)}a001", f"{rollout(1)}a001", f"{rollout(1)}b002"]
    assert found.contained_in == ((1, 4),)


def test_a_version_of_several_steps_has_the_groups_of_each(tmp_path: Path) -> None:
    """`[publish] every`: the first step's update waits for the second's version."""
    streams = small_run()
    log = log_of([one for topic in (Topic.EPISODES, Topic.TRANSITIONS) for one in streams.log[topic]])
    groups = [group_id_of(value) or "" for value in streams.values(Topic.TRANSITIONS)]
    waits = msgspec.structs.replace(step(1, (groups[0],)), version=0, num_unpublished=1)
    led = msgspec.structs.replace(step(2, (groups[1],)), version=1)
    for one in (waits, led):
        log.append(TOPICS.name(Topic.TRAINING_STEPS), b"policy", TRAINING_STEPS.encode(one), (), 0)
    for told in (claim(), manifest(0, step=0), manifest(1, step=2, base_version=0)):
        log.append(TOPICS.name(Topic.WEIGHTS), b"policy", WEIGHTS.encode(told), (), 0)
    connection = index_of(log, tmp_path)
    found = of_version(connection, 1, "1")
    assert ([one.step for one in found.steps], [one.version for one in found.steps]) == ([1, 2], [None, 1])
    assert [one.group for one in found.groups] == groups[:2]
    assert len(found.episodes) == 4
    for number in (0, 2):
        on = of_episodes(connection, [f"{rollout(number)}a001"], "", Kind.EPISODE)
        assert ([one.version for one in on.versions], on.contained_in) == ([1], ((1, 1),))


def test_a_call_and_a_trace_lead_to_their_episode(run: Run) -> None:
    """By the key in a call's id; of a span by its trace, which the refusal of one names."""
    log, connection = run
    for record in log.records(TOPICS.name(Topic.OTLP_SPANS)):
        for _, _, span in spans_of(decode_spans(record.value)):
            trace = span.trace_id.hex()
            assert taken_for(connection, trace) == Subject(Kind.EPISODE, trace)
            with pytest.raises(ConfigurationError, match="of a span name its trace"):
                taken_for(connection, span.span_id.hex())
    call = new_call(rollout(2))
    with pytest.raises(ConfigurationError, match=f"{call} is in none of the 1 episodes of its key {rollout(2)}"):
        episodes_of_call(log, TOPICS, connection, taken_for(connection, call).id)


def test_a_captured_call_and_its_conversation_are_found(tmp_path: Path) -> None:
    """Its id carries the conversation's key; feedback that came behind the close is named with the group."""
    key, source = "3e" * 16, SourceRun(RULES)
    calls = conversation(("a0", True), key=key)
    source.live([*calls, said(1.0, "k", conversation_key=key, at_ms=1)], Random(0), pause_s=1.0)
    log = source.history(*INPUTS[Stage.NORMALIZE])
    for topic in (Topic.EPISODES, Topic.TRANSITIONS):
        for record in source.log[topic]:
            headers = record.headers
            if (made := made_of(headers, GroupMadeOf)) is not None and topic is Topic.TRANSITIONS:
                headers = made_of_header(msgspec.structs.replace(made, feedback={"rewards/0": [(0, 1)]}))
            log.append(TOPICS.name(topic), record.key, record.value, headers, 0)
    connection = index_of(log, tmp_path)
    (subject,) = {taken_for(connection, key), taken_for(connection, key[:10])}
    found = of_episodes(connection, [subject.id], key, subject.kind)
    (episode,) = with_origins(log, TOPICS, found.episodes)
    assert (episode.group, found.groups[0].offset) == (episode.episode, 0)
    assert "llm_calls/0" in episode.made_of
    (group,) = with_feedback(log, TOPICS, found.groups)
    assert group.feedback == {"rewards/0": [(0, 1)]}
    assert "  said behind its close rewards/0 [0]" in lineage_lines(msgspec.structs.replace(found, groups=(group,)))
    assert [*lineage_lines(found)][-1] == "in no version: it waits for a step, or its group is open"
    held_out = msgspec.structs.replace(episode, purpose="validation")
    assert [*lineage_lines(msgspec.structs.replace(found, episodes=(held_out,)))][-1] == "in no version: it is held out"


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ("3", None, Subject(Kind.VERSION, "3")),
        ("v3", None, Subject(Kind.VERSION, "3")),
        ("7c1f3e9a-v3-e1", None, Subject(Kind.VERSION, "3")),
        (f"{rollout(3)}a001", None, Subject(Kind.EPISODE, f"{rollout(3)}a001")),
        (rollout(3), None, Subject(Kind.EPISODE, f"{rollout(3)}a001")),
        (f"{RUN_HASH}{0:016x}", None, Subject(Kind.GROUP, f"{RUN_HASH}{0:016x}")),
        (f"{rollout(3)}a001"[:31], None, Subject(Kind.EPISODE, f"{rollout(3)}a001")),
        (new_call(rollout(1), lambda n: 1), None, Subject(Kind.CALL, new_call(rollout(1), lambda n: 1))),
        ("msg_" + new_call(rollout(1), lambda n: 1)[9:], None, Subject(Kind.CALL, new_call(rollout(1), lambda n: 1))),
    ],
)
def test_an_id_is_taken_for_what_it_looks_like(run: Run, text: str, kind: Kind | None, expected: Subject) -> None:
    """A version's number, label; an episode by its beginning; a call as any API spells it."""
    assert taken_for(run.connection, text, kind) == expected


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("99", None, r"expected an id of this run \(version, episode, group or call\), got '99'"),
        ("deadbeef-v3-e1", None, "expected an id of this run"),
        ("3", Kind.EPISODE, r"expected an id of this run \(episode\)"),
        (rollout(1), None, "expected one episode, got .* with which several begin: .*a001, .*b002$"),
        (RUN_HASH, None, r"with which several begin: .*, \.\.\."),
        ("' OR 1", None, "expected an id of this run"),
        ("", None, "expected an id of this run"),
        (new_call(rollout(1)), Kind.VERSION, r"expected an id of this run \(version\)"),
    ],
)
def test_an_id_that_means_nothing_or_too_much_is_refused(run: Run, text: str, kind: Kind | None, said: str) -> None:
    """With the forms that there are, or with what begins so."""
    with pytest.raises(ConfigurationError, match=said):
        taken_for(run.connection, text, kind)


def test_records_that_are_gone_leave_their_links(run: Run, tmp_path: Path) -> None:
    """What the index knows is shown; calls and positions lie on the log."""
    found = of_version(run.connection, 1, "1")
    log = MemoryLog()
    log.create_topics(TOPICS, policies=["policy"], partitions=1)
    assert with_origins(log, TOPICS, found.episodes) == found.episodes
    assert with_feedback(log, TOPICS, found.groups) == found.groups


def test_a_table_tells_what_trained_and_why_not(run: Run) -> None:
    """A head, and a line each; nothing found is no line."""
    head, *lines = episode_lines(find(run.connection, Question(order_by="episode")))
    assert head.split() == [
        "episode",
        "written",
        "(UTC)",
        *["task", "agent", "state", "reward", "calls", "tokens", "tools", "version", "trained"],
    ]
    told = {line.split()[0]: line for line in lines}
    assert told[f"{rollout(1)}a001"].endswith("step 1")
    assert told[f"{rollout(1)}b002"].endswith("superseded") and " aborted " in told[f"{rollout(1)}b002"]
    assert list(episode_lines([])) == []


def test_a_name_begins_no_line_of_its_own(run: Run) -> None:
    """What others wrote, line feeds too, stays in its cell, whose width it has."""
    facts = next(find(run.connection, Question()))
    head, line = episode_lines([{**facts, "task": "a\nforged  1\x1b[2J", "agents": ["b\tc"]}])
    assert r"a\nforged  1\u001b[2J" in line and r"b\tc" in line
    assert line.index(facts["state"]) == head.index("state")
    assert all("\n" not in one for one in lineage_lines(Lineage(asked="a\nb", kind=Kind.CALL)))
