"""The search in what was said: found by words, bounded, made when asked, and made anew when the topic is another."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from tests.consumers.audit.small_run import memory_log, small_run
from tests.consumers.index.indexing import damage
from tests.memory_log import MemoryLog
from tests.streams.make import TOPICS
from tracegrad.consumers.index import file
from tracegrad.consumers.index.build import IndexProgress
from tracegrad.consumers.index.file import transaction
from tracegrad.consumers.index.text_search import (
    are_prompts_read,
    catch_up_said,
    episodes_that_said,
    open_said,
    positions_of,
    text_of,
)
from tracegrad.schemas.errors import UnavailableError
from tracegrad.schemas.records.episodes import EPISODES, Episode
from tracegrad.schemas.topics import Topic

NAME = TOPICS.name(Topic.EPISODES)


def words(ids: Sequence[int]) -> list[str]:
    """A tokenizer of few words."""
    return [f"word{id_} " for id_ in ids]


def first_episode() -> Episode:
    """Of the small run."""
    return EPISODES.decode(small_run().log[Topic.EPISODES][0].value)


def log_of(*episodes: Episode) -> MemoryLog:
    """With nothing but these."""
    log = MemoryLog()
    log.create_topics(TOPICS, policies=["policy"], partitions=1)
    for one in episodes:
        MemoryLog.append(log, NAME, b"k", EPISODES.encode(one), (), None)
    return log


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """To a file that is not there yet."""
    with open_said(tmp_path / "said.sqlite") as opened:
        yield opened


@pytest.fixture(scope="module")
def episode() -> Episode:
    """With words in each of its parts."""
    one = first_episode()
    call = msgspec.structs.replace(one.calls[0], content="The Answer, is: forty-two")
    return msgspec.structs.replace(one, task_id="task-7", output='"returned"', calls=(call, *one.calls[1:]))


def found(connection: sqlite3.Connection, episode: Episode, text: str) -> bool:
    """Whether the only one is found."""
    return episodes_that_said(connection, text, 99) == [episode.episode_id]


def test_words_are_found_wherever_they_were_said(connection: sqlite3.Connection, episode: Episode) -> None:
    """In task, output, answers and prompts, in any case; all must occur, the last one may be a beginning."""
    catch_up_said(log_of(episode), NAME, connection, words)
    for text in ("answer forty", "task-7", "RETURNED", "forty-two", "word1", "the answ", 'forty-two "answer"'):
        assert found(connection, episode, text), text
    for text in ("answer fifty", "nswer", "answ the ", "answ "):
        assert not found(connection, episode, text), text


@pytest.mark.parametrize(
    "text",
    ['"', "'", "*", "", " ", "NEAR(", "a AND", "-x", "words:answer", "^", "\x00", '" OR "a', "a" * 9_000, "(" * 99],
)
def test_nothing_that_is_searched_is_an_operator(connection: sqlite3.Connection, episode: Episode, text: str) -> None:
    """It is found or not."""
    catch_up_said(log_of(episode), NAME, connection, words)
    assert episodes_that_said(connection, text, 99) == []


def test_prompts_are_read_once_there_is_a_tokenizer(connection: sqlite3.Connection, episode: Episode) -> None:
    """What was read without it is read again; and without it again, so that what is said of prompts is true."""
    log = log_of(episode)
    for pieces in (None, words, None, words):
        catch_up_said(log, NAME, connection, pieces)
        assert are_prompts_read(connection) is (pieces is not None)
        assert found(connection, episode, "forty") and found(connection, episode, "word1") is (pieces is not None)


def test_nobody_else_reads_the_file(tmp_path: Path, episode: Episode) -> None:
    """Nor what SQLite keeps beside it; one that others could read is closed to them."""
    old = os.umask(0)
    try:
        (tmp_path / "said.sqlite").touch(0o666)
        for name in ("said.sqlite", "new.sqlite"):
            with open_said(tmp_path / name) as connection:
                catch_up_said(log_of(episode), NAME, connection, words)
                modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.glob(f"{name}*")}
            assert modes == {f"{name}{beside}": 0o600 for beside in ("", "-wal", "-shm")}
    finally:
        os.umask(old)


def test_who_may_not_write_is_told_which_file(
    tmp_path: Path, episode: Episode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Since a run has several."""
    monkeypatch.setattr(file, "_BUSY_S", 0.0)
    with open_said(tmp_path / "said.sqlite") as other, open_said(tmp_path / "said.sqlite") as connection:
        other.execute("BEGIN IMMEDIATE")
        with (
            pytest.raises(UnavailableError, match=r"expected to write .*said\.sqlite, got database is locked"),
            transaction(connection),
        ):
            pass
        other.execute("ROLLBACK")


def test_what_came_since_is_read_on(connection: sqlite3.Connection, episode: Episode) -> None:
    """Each record once, and progress is told; a record that says nothing is passed over."""
    log, told = log_of(episode), list[IndexProgress]()
    catch_up_said(log, NAME, connection, words, tell=told.append)
    MemoryLog.append(log, NAME, b"k", b"no episode", (), None)
    other = msgspec.structs.replace(episode, episode_id="f" * 32)
    MemoryLog.append(log, NAME, b"k", EPISODES.encode(other), (), None)
    catch_up_said(log, NAME, connection, words, tell=told.append)
    assert episodes_that_said(connection, "forty", 99) == [other.episode_id, episode.episode_id]
    assert told == [(1, 1), (3, 3)] and positions_of(connection) == {0: 3}


def test_another_topic_of_the_name_is_read_from_its_beginning(connection: sqlite3.Connection, episode: Episode) -> None:
    """As of a run that was made anew."""
    catch_up_said(log_of(episode, episode), NAME, connection, words)
    other = msgspec.structs.replace(episode, episode_id="f" * 32)
    catch_up_said(log_of(other), NAME, connection, words)
    assert episodes_that_said(connection, "forty", 99) == [other.episode_id]


@pytest.mark.parametrize("table", ["positions", "docs", "said_data", "said_idx"])
def test_damage_behind_the_first_page_is_told_and_mended(tmp_path: Path, episode: Episode, table: str) -> None:
    """It opens; who comes upon the rows, to read on or to search, is told, and who asks then has all."""
    path, log = tmp_path / "said.sqlite", log_of(episode)
    with open_said(path) as connection:
        catch_up_said(log, NAME, connection, words)
    damage(path, table)
    with pytest.raises(UnavailableError, match=r"said\.sqlite was damaged .* ask again"), open_said(path) as connection:
        catch_up_said(log, NAME, connection, words)
        episodes_that_said(connection, "forty", 99)
    assert not path.exists()
    with open_said(path) as connection:
        catch_up_said(log, NAME, connection, words)
        assert found(connection, episode, "forty")


def test_what_is_taken_of_an_episode_and_what_is_answered_is_bounded(
    connection: sqlite3.Connection, episode: Episode
) -> None:
    """However long it is, and however often the word occurs: the newest are told."""
    call = msgspec.structs.replace(episode.calls[0], content="x " * 100_000)
    assert len(text_of(msgspec.structs.replace(episode, calls=(call,) * 50), words)) < 33_000
    many = [msgspec.structs.replace(episode, episode_id=f"{number:032x}") for number in range(5)]
    catch_up_said(log_of(*many), NAME, connection, words)
    assert episodes_that_said(connection, "forty", 2) == [f"{4:032x}", f"{3:032x}"]


def test_a_real_run_is_searched(connection: sqlite3.Connection) -> None:
    """By what its policy read."""
    log = memory_log(small_run())
    catch_up_said(log, NAME, connection, words)
    assert len(episodes_that_said(connection, "word1 word2", 99)) > 3
