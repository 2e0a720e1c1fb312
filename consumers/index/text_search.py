"""What was said in a run's episodes, word by word, for the search of the page.

    episodes --> docs (row -> episode), said (row -> its words)          positions: how far the topic was read

In: the log, a file of its own beside the index, which is made when somebody first searches: the words of a run are
more than all else that the index knows, and most runs are never searched. Out: the episodes in which words occur, the
newest first. Invariants: rows and positions are one transaction, so that a builder that is killed goes on where it
stood; of an episode a bounded text is taken; the file is its owner's alone, since words and their places are the
texts, but for case, accents and punctuation. A topic that was made anew, or a tokenizer that was not there when it was
read, makes it begin from nothing. Failure: a record that cannot be read is passed over; a log that is away is waited
for, then UnavailableError; a file that is damaged is made anew.
"""

from __future__ import annotations

import re
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, suppress
from pathlib import Path

from tracegrad.schemas.errors import RecordError
from tracegrad.schemas.log.follow import follow
from tracegrad.schemas.log.protocol import Log, TopicPartition
from tracegrad.schemas.records.episodes import EPISODES, Episode
from tracegrad.schemas.records.tokens import ids_from_bytes

from .build import IndexProgress
from .file import FileSchema, empty, opened, transaction

Pieces = Callable[[Sequence[int]], list[str]]
"""Token ids to the text of each."""
_PATIENCE_S = 5.0
_CHUNK = 500
_PART, _WHOLE = 4_000, 32_000
"""Characters of one text of an episode, and of all of them."""
_WORD = re.compile(r"\w+")
_MAX_WORDS = 16
_FORM = FileSchema(
    2,
    (
        "CREATE TABLE topics(topic TEXT PRIMARY KEY, id TEXT, has_prompts INTEGER) WITHOUT ROWID",
        "CREATE TABLE positions(partition INTEGER PRIMARY KEY, next INTEGER)",
        "CREATE TABLE docs(n INTEGER PRIMARY KEY, episode TEXT)",
        "CREATE VIRTUAL TABLE said USING fts5(words, content = '', detail = 'full', tokenize = 'unicode61')",
    ),
)


def open_said(path: Path) -> AbstractContextManager[sqlite3.Connection]:
    """A connection to the file, which is made where there is none that can be used."""
    return opened(path, _FORM)


def positions_of(connection: sqlite3.Connection) -> dict[int, int]:
    """How far each partition was read."""
    return dict(connection.execute("SELECT partition, next FROM positions").fetchall())


def are_prompts_read(connection: sqlite3.Connection) -> bool | None:
    """Whether a tokenizer was there to read them; None: nothing was read yet."""
    row = connection.execute("SELECT has_prompts FROM topics").fetchone()
    return bool(row[0]) if row is not None else None


def catch_up_said(
    log: Log,
    topic: str,
    connection: sqlite3.Connection,
    pieces: Pieces | None,
    *,
    tell: Callable[[IndexProgress], None] = lambda progress: None,
    stop: threading.Event | None = None,
) -> None:
    """Reads what came since, or until `stop` is set. Blocks. Raises UnavailableError.

    Args:
        topic: the name of `episodes`.
        pieces: by the policy's tokenizer; None: of what was read there are no words, only of what was answered.
    """
    _check_same(log, topic, connection, has_prompts=pieces is not None)
    stood = {TopicPartition(topic, number): at for number, at in positions_of(connection).items()}
    chunks = follow(
        log, [topic], starts=stood, may_skip=True, poll_s=0.2, max_records=_CHUNK, stop=stop, patience_s=_PATIENCE_S
    )
    with closing(chunks):
        for chunk in chunks:
            texts = list[tuple[str, str]]()
            for record in chunk.records:
                with suppress(RecordError):
                    episode = EPISODES.decode(record.value)
                    texts.append((episode.episode_id, text_of(episode, pieces)))
            with transaction(connection):
                if positions_of(connection) != {where.partition: at for where, at in stood.items()}:
                    return  # another page does it too
                for id_, text in texts:
                    row = connection.execute("INSERT INTO docs(episode) VALUES(?)", (id_,)).lastrowid
                    connection.execute("INSERT INTO said(rowid, words) VALUES(?, ?)", (row, text))
                rows = [(where.partition, at) for where, at in chunk.positions.items()]
                connection.executemany("INSERT OR REPLACE INTO positions VALUES(?, ?)", rows)
            stood = dict(chunk.positions)
            tell(IndexProgress(sum(stood.values()), sum(chunk.ends.values())))
            if chunk.is_caught_up:
                return


def _check_same(log: Log, topic: str, connection: sqlite3.Connection, *, has_prompts: bool) -> None:
    """What was read of another topic, or with a tokenizer where none is now or the other way round, is let go."""
    now, kept = (log.topic_id(topic), has_prompts), log.offsets(topic)
    known = connection.execute("SELECT id, has_prompts FROM topics WHERE topic = ?", (topic,)).fetchone()
    is_same = known is None or known == now
    if not is_same or any(at > kept[number].end for number, at in positions_of(connection).items() if number in kept):
        empty(connection, _FORM)
    connection.execute("INSERT OR REPLACE INTO topics VALUES(?, ?, ?)", (topic, *now))


def text_of(episode: Episode, pieces: Pieces | None) -> str:
    """What was said in it, cut."""
    found, left = list[str](), _WHOLE
    for text in _texts(episode, pieces):
        text = text[: min(_PART, left)]
        found.append(text)
        left -= len(text)
        if left <= 0:
            break
    return "\n".join(found)


def _texts(episode: Episode, pieces: Pieces | None) -> Iterator[str]:
    """What came out first, then as it was said."""
    yield episode.task_id or ""
    yield episode.output or ""
    yield episode.error or ""
    yield from (one.reason for one in episode.rewards)
    for call in episode.calls:
        if pieces is not None:
            with suppress(RecordError):
                yield "".join(pieces(ids_from_bytes(call.suffix_ids)[:_PART].tolist()))
        yield call.content or ""
        for asked in call.tool_calls:
            yield f"{asked.name} {asked.arguments}"
        for run in call.tools:
            yield f"{run.name} {run.result or ''} {run.error_type or ''}"


def episodes_that_said(connection: sqlite3.Connection, text: str, limit: int) -> list[str]:
    """In which all its words occur, the last one perhaps as a beginning: the newest, and first."""
    words = _WORD.findall(text)[:_MAX_WORDS]
    if not words:
        return []
    # Each in quotes, where nothing is an operator.
    asked = " ".join(f'"{word}"' for word in words) + ("*" if text[-1:].isalnum() else "")
    rows = connection.execute(
        "SELECT episode FROM docs WHERE n IN (SELECT rowid FROM said WHERE said MATCH ? ORDER BY rowid DESC LIMIT ?) "
        "ORDER BY n DESC",
        (asked, limit),
    )
    return list(dict.fromkeys(id_ for (id_,) in rows))
