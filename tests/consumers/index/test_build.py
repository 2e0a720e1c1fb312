"""An index is what its topics say, however it came to be."""

from __future__ import annotations

import sqlite3
import threading
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from tests.consumers.audit.small_run import long_run, memory_log, small_run
from tests.consumers.index.indexing import Busy, index_of, known
from tests.memory_log import MemoryLog
from tests.streams.make import RUN_HASH, TOPICS, rollout
from tracegrad.consumers.index import build, settle
from tracegrad.consumers.index.build import catch_up
from tracegrad.consumers.index.file import connect, is_current, open_index
from tracegrad.consumers.index.fill import TableWriter
from tracegrad.consumers.index.query import Question, find, unread
from tracegrad.schemas.log.made_of import MADE_OF_HEADER, MadeOf, made_of
from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.records.episodes import EPISODES
from tracegrad.schemas.records.training import TRAINING_STEPS, TrainingStep
from tracegrad.schemas.topics import Topic

EPISODE_TOPIC = TOPICS.name(Topic.EPISODES)


class _Killed(BaseException):
    """A process that is gone."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    """All records of a run with a retry, a rollback, a deadline, a second epoch."""
    log = memory_log(long_run(tmp_path_factory.mktemp("weights")))
    return [record for topic in build.INDEXED for record in log.records(TOPICS.name(topic))]


def log_of(records: list[Record]) -> MemoryLog:
    """These, in the order given."""
    log = MemoryLog(clock=lambda: 1e6)
    log.create_topics(TOPICS, policies=["policy"], partitions=1)
    append(log, records)
    return log


def append(log: MemoryLog, records: list[Record]) -> None:
    """In one partition each."""
    for record in records:
        log.append(record.topic, record.key, record.value, record.headers, 0)


def test_an_episode_is_known_by_its_facts(tmp_path: Path) -> None:
    """Those of its record, and the step that trained it."""
    connection = index_of(memory_log(small_run()), tmp_path)
    facts = {one["episode"]: one for one in find(connection, Question())}
    one = facts[f"{rollout(1)}a001"]
    assert (one["group"], one["task"], one["state"], one["purpose"]) == (
        f"{RUN_HASH}{0:016x}", "task-1", "succeeded", "train",
    )  # fmt: skip
    assert (one["reward"], one["calls"], one["tokens"], one["spans"], one["tools"]) == (1.0, 2, 3, 2, 1)
    assert (one["agent"], one["agents"], one["tool"]) == ("calculator", ["calculator"], [])
    assert (one["service"], one["turns"], one["conversation"]) == (["agent"], 2, None)
    assert (one["version"], one["first_version"], one["attempt"], one["final"]) == (0, 0, 1, True)
    assert (one["step"], one["excluded"], one["captured"]) == (1, None, False)
    assert facts[f"{rollout(1)}b002"]["excluded"] == "superseded"
    waiting, held_out = facts[f"{rollout(4)}a001"], facts[f"{rollout(6)}a001"]
    assert (waiting["step"], waiting["excluded"]) == (None, None)
    assert (held_out["purpose"], held_out["step"]) == ("validation", None)


def test_what_credit_or_the_trainer_left_out_has_its_reason(tmp_path: Path) -> None:
    """The member's own, and the group's by the trainer; a step that a later epoch voided counts no more."""
    streams = small_run()
    log = memory_log(streams)
    first = TRAINING_STEPS.decode(streams.values(Topic.TRAINING_STEPS)[0])
    assert isinstance(first, TrainingStep)
    (group,) = first.group_ids
    redone = msgspec.structs.replace(first, epoch=2, version=3, group_ids=(), excluded_ids={group: "stale"})
    connection = index_of(log, tmp_path)
    log.append(TOPICS.name(Topic.TRAINING_STEPS), b"policy", TRAINING_STEPS.encode(redone), (), 0)
    catch_up(log, TOPICS, "policy", connection)
    told = {one["episode"]: (one["step"], one["excluded"]) for one in find(connection, Question())}
    assert told[f"{rollout(0)}a001"] == told[f"{rollout(1)}a001"] == (None, "stale")
    assert told[f"{rollout(2)}a001"] == (None, None), "step 2 was of the epoch that is void"


def kill_sometimes(random: Random, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anywhere: within a record, behind a transaction, while it settles."""
    monkeypatch.setattr(build, "_CHUNK", 3)
    monkeypatch.setattr(build, "_RECORDS", random.choice([1, 5, 100]))
    monkeypatch.setattr(settle, "_GROUPS", 1)

    def dying(told: Any) -> Any:
        def fold(*args: Any, **kwargs: Any) -> Any:
            done = told(*args, **kwargs)
            if random.random() < 0.15:
                raise _Killed
            return done

        return fold

    for name in ("_group", "_word", "end"):
        monkeypatch.setattr(TableWriter, name, dying(getattr(TableWriter, name)))
    monkeypatch.setattr(settle, "_mark_standing", dying(settle._mark_standing))


@pytest.mark.parametrize("seed", range(8))
def test_pieces_and_kills_give_what_one_go_gives(
    run: list[Record], seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records come while it is built, topics in any order; of each the builder may die."""
    random = Random(seed)
    expected = known(index_of(log_of(run), tmp_path / "whole"))
    queues = {topic: [one for one in run if one.topic == topic] for topic in {one.topic for one in run}}
    log = log_of([])
    kill_sometimes(random, monkeypatch)
    num_killed = 0
    while any(queues.values()):
        topic = random.choice([topic for topic, left in queues.items() if left])
        num = random.randint(1, 6)
        append(log, queues[topic][:num])
        del queues[topic][:num]
        num_killed += _killed_while_built(log, tmp_path)
    monkeypatch.undo()
    found = known(index_of(log, tmp_path))
    assert num_killed > 0
    assert found == expected


def _killed_while_built(log: MemoryLog, path: Path) -> bool:
    with open_index(path / "index.sqlite") as connection:
        try:
            catch_up(log, TOPICS, "policy", connection, patience_s=1.0)
        except _Killed:
            return True
    return False


@pytest.mark.parametrize("seed", range(4))
def test_copies_and_revisions_change_nothing_or_what_they_say(run: list[Record], seed: int, tmp_path: Path) -> None:
    """A killed worker's copies are no news; of an episode that was written again the last revision counts."""
    random = Random(seed)
    again = [_revised(record, 1) if record.topic == EPISODE_TOPIC else record for record in run]
    copies = [random.choice(run) for _ in range(20) if run]
    copies = [one for one in copies if one.topic != TOPICS.name(Topic.WEIGHTS)]  # whose order is its meaning
    expected = known(index_of(log_of(again), tmp_path / "plain"))
    found = known(index_of(log_of([*run, *copies, *again, *copies]), tmp_path / "mixed"))
    for one in (*expected["episodes"], *found["episodes"]):
        del one["offset"], one["at_ms"]
    assert [one["revision"] for one in found["episodes"]] == [1] * len(found["episodes"])
    for name in ("groups", "step_groups", "versions", "unread"):  # a copy lies elsewhere, and the first counts
        del found[name], expected[name]
    assert found == expected


def _revised(record: Record, revision: int) -> Record:
    """The record as it would be written again, with another reward."""
    made, episode = made_of(record.headers, MadeOf), EPISODES.decode(record.value)
    assert made is not None
    header = msgspec.json.encode(msgspec.structs.replace(made, revision=revision))
    value = EPISODES.encode(msgspec.structs.replace(episode, reward=0.25 * revision))
    return msgspec.structs.replace(record, value=value, headers=((MADE_OF_HEADER, header),))


def test_two_builders_at_once_make_one_index(
    run: list[Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes what the other has not."""
    monkeypatch.setattr(build, "_CHUNK", 2)
    monkeypatch.setattr(build, "_RECORDS", 2)
    expected, log = known(index_of(log_of(run), tmp_path / "whole")), log_of(run)
    failures = list[BaseException]()

    def work() -> None:
        try:
            index_of(log, tmp_path).close()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert known(index_of(log, tmp_path)) == expected


@pytest.mark.parametrize("what", ["made anew", "made anew, and longer", "retention", "form", "damage"])
def test_what_does_not_fit_any_more_is_made_from_nothing(run: list[Record], what: str, tmp_path: Path) -> None:
    """Another topic under the name, records that went unread, a file of another release, one that is damaged."""
    log = log_of(run)
    with_old = index_of(log, tmp_path)
    log.append(EPISODE_TOPIC, None, b"{}", (), 0)
    if what == "made anew":
        log.recreate_topic(EPISODE_TOPIC)
        append(log, [one for one in run if one.topic == EPISODE_TOPIC][1:])
    elif what == "made anew, and longer":
        log.recreate_topic(EPISODE_TOPIC)
        others = [one for one in run if one.topic == EPISODE_TOPIC][1:]
        for _ in range(3):
            append(log, others)
    elif what == "retention":
        log.append(EPISODE_TOPIC, None, b"{}", (), 0)
        log.truncate(EPISODE_TOPIC, 0, begin=log.offsets(EPISODE_TOPIC)[0].end - 1)
    elif what == "form":
        with_old.execute("PRAGMA user_version = 9999")
    with_old.close()
    if what == "damage":
        (tmp_path / "index.sqlite").write_bytes(b"no database at all" * 1000)
    assert known(index_of(log, tmp_path)) == known(index_of(log, tmp_path / "fresh"))


GARBAGE = (None, b"", b"\xff" * 20, b"[]", b'{"schema":"episode/9"}', b"{" * 100_000, b'"\\ud800"')


@pytest.mark.parametrize("topic", build.INDEXED)
def test_a_record_that_cannot_be_read_is_counted_and_its_neighbours_are_not_harmed(
    run: list[Record], topic: Topic, tmp_path: Path
) -> None:
    """Whatever it is."""
    expected = known(index_of(log_of(run), tmp_path / "plain"))
    log = log_of([])
    for value in GARBAGE:
        log.append(TOPICS.name(topic), None, value, (), 0)
    append(log, run)
    connection = index_of(log, tmp_path)
    assert sum(unread(connection).values()) == len(GARBAGE)
    found = known(connection)
    assert [one["episode"] for one in found["episodes"]] == [one["episode"] for one in expected["episodes"]]
    assert (found["step_groups"], found["versions"]) == (expected["step_groups"], expected["versions"])


HOSTILE: tuple[dict[str, Any], ...] = (
    {"num_spans": 10**30},
    {"attempt_number": -1},
    {"episode_id": "\ud800"},
    {"task_id": "x" * 100_000, "services": [f"{n}" * 1_000 for n in range(1_000)]},
    {"reward": 1e308, "state": "of a later release"},
    {"episode_id": "0' OR 1 --", "group": None},
    {"closed_by": "nul\0nul"},
)


@pytest.mark.parametrize("changes", HOSTILE, ids=lambda changes: "+".join(changes))
def test_what_others_may_write_is_read_or_counted(run: list[Record], changes: dict[str, Any], tmp_path: Path) -> None:
    """Numbers that no column holds, halves of characters, names of megabytes."""
    record = next(one for one in run if one.topic == EPISODE_TOPIC)
    fields = {**msgspec.json.decode(record.value or b""), **changes}
    if "\ud800" in fields["episode_id"]:
        value = msgspec.json.encode({**fields, "episode_id": "X"}).replace(b'"X"', b'"\\ud800"')
    else:
        value = msgspec.json.encode({**fields, "num_spans": 0}).replace(
            b'"num_spans":0', b'"num_spans":%d' % fields["num_spans"]
        )
    connection = index_of(log_of([msgspec.structs.replace(record, value=value), *run[-3:]]), tmp_path)
    told = list(find(connection, Question()))
    assert len(told) + sum(unread(connection).values()) == 1
    assert all(len(str(one)) < 10_000 for one in told)
    assert connection.execute("SELECT MAX(LENGTH(word)) FROM words").fetchone()[0] or 0 <= 200


def test_who_opens_an_index_that_another_makes_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite itself waits for nobody there."""
    monkeypatch.setattr("sqlite3.connect", partial(sqlite3.connect, factory=Busy))
    with open_index(tmp_path / "index.sqlite") as connection:
        assert is_current(connection)


def test_an_index_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    """With its path."""
    with pytest.raises(Exception, match=r"expected to open or make .*nowhere"):
        connect(tmp_path / "nowhere" / "index.sqlite")


def test_readers_are_not_held_up_by_a_builder(run: list[Record], tmp_path: Path) -> None:
    """Who asks while another builds sees the last transaction."""
    index_of(log_of(run), tmp_path).close()
    builder, reader = (connect(tmp_path / "index.sqlite") for _ in range(2))
    builder.execute("BEGIN IMMEDIATE")
    builder.execute("DELETE FROM episodes")
    assert sum(1 for _ in find(reader, Question())) > 0
    builder.execute("ROLLBACK")
