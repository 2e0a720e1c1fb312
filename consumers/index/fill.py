"""Puts records into the index's tables, within a transaction of the caller's.

In: records of the indexed topics. Out: rows. Invariants: of records of one episode that of the greatest revision
counts, then the one that lies first; of a group, a step or a claim the first; so a copy changes nothing. What a group's
episodes depend on marks the group `is_dirty`, for settle.py. Failure: RecordError for a record that says nothing.
"""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

from tracegrad.schemas.errors import UndecodableError
from tracegrad.schemas.log.made_of import GroupMadeOf, made_of
from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.policies import partition_of
from tracegrad.schemas.reasons import Reason
from tracegrad.schemas.records.training import ADVANTAGES, TRAINING_STEPS, TrainingStep
from tracegrad.schemas.records.transitions import summary_of
from tracegrad.schemas.records.weights import WEIGHTS, EpochClaim, Lineage, VersionManifest
from tracegrad.schemas.topics import Topic

from ..episode_facts import MAX_WORD, NAMES, NUMBERS, WORDS, cut, read_facts, unique_names

_KNOWN = 100_000
"""Words and groups whose numbers are kept in memory."""
_COLUMNS = ("id", "group", "partition", "offset", "at_ms", *WORDS, *NAMES, *NUMBERS, "own_excluded")
_CHANGED = ", ".join(f'"{name}" = excluded."{name}"' for name in _COLUMNS[1:])
_EPISODE = f"""
INSERT INTO episodes({", ".join(f'"{name}"' for name in _COLUMNS)}) VALUES({", ".join("?" * len(_COLUMNS))})
ON CONFLICT(id) DO UPDATE SET {_CHANGED}
WHERE (-excluded.revision, excluded.partition, excluded."offset") < (-revision, partition, "offset")
RETURNING n
"""
_OF_STEP = attrgetter(
    *("step", "epoch", "version", "is_updated", "skipped", "begin_offset", "next_offset", "ended_at_ms", "reward"),
    "num_unpublished",
)
"""What `steps` holds of a step, in the order of its columns."""
_CLAIM = "claim"
_EXCLUDED, _NOT_EXCLUDED = b'"excluded":"', b'"excluded":""'
"""In the JSON of a group's summary: of the group, and of each member."""


class TableWriter:
    """Takes records; made anew by whoever rolled a transaction back, for it remembers numbers of rows."""

    def __init__(self, connection: sqlite3.Connection, policy: str) -> None:
        self._sql = connection
        self._policy = policy
        self._words: dict[str, dict[str | tuple[str, ...], int]] = defaultdict(dict)
        self._groups: dict[str, int] = {}
        self._dirty: set[int] = set()
        self._keys: list[tuple[str, int]] = []
        self._lineage: Lineage | None = None
        self.folds: Mapping[Topic, Callable[[Record], None]] = {
            Topic.EPISODES: self._episode,
            Topic.TRANSITIONS: self._group_record,
            Topic.TRAINING_STEPS: self._step,
            Topic.ADVANTAGES: self._advantages,
            Topic.WEIGHTS: self._weight,
        }

    def end(self) -> None:
        """Before the transaction ends."""
        self._sql.executemany(
            "UPDATE groups SET is_dirty = 1 WHERE n = ? AND NOT is_dirty", ((n,) for n in self._dirty)
        )
        self._dirty.clear()
        self._sql.executemany("INSERT OR IGNORE INTO keys VALUES(?, ?)", self._keys)
        self._keys = []
        for known in self._words.values():
            if len(known) > _KNOWN:
                known.clear()
        if len(self._groups) > _KNOWN:
            self._groups.clear()

    def _word(self, field: str, word: str | None) -> int | None:
        if word is None:
            return None
        known = self._words[field].get(word)
        return known if known is not None else self._new_word(field, word, cut(word))

    def _names(self, field: str, names: tuple[str, ...]) -> int:
        return self._new_word(field, names, json.dumps(unique_names(names)))

    def _new_word(self, field: str, told: str | tuple[str, ...], kept: str) -> int:
        self._sql.execute("INSERT OR IGNORE INTO words(field, word) VALUES(?, ?)", (field, kept))
        number: int
        (number,) = self._sql.execute("SELECT n FROM words WHERE field = ? AND word = ?", (field, kept)).fetchone()
        if sum(map(len, told)) <= MAX_WORD:  # what others make long is not held
            self._words[field][told] = number
        return number

    def _group(self, group: str) -> int:
        group = cut(group)
        known = self._groups.get(group)
        if known is None:
            self._sql.execute("INSERT OR IGNORE INTO groups(id) VALUES(?)", (group,))
            (known,) = self._sql.execute("SELECT n FROM groups WHERE id = ?", (group,)).fetchone()
            self._groups[group] = known
        self._dirty.add(known)
        return known

    def _episode(self, record: Record) -> None:
        facts = read_facts(record, self._policy)
        row: list[Any] = [
            cut(facts.episode),
            self._group(facts.group),
            record.partition,
            record.offset,
            record.timestamp_ms,
        ]
        # Most of a build's time is spent here and in SQLite: words that are known cost no call.
        for field, word in zip(WORDS, facts.words, strict=True):
            row.append(None if word is None else self._words[field].get(word) or self._word(field, word))
        for field, names in zip(NAMES, facts.names, strict=True):
            row.append(self._words[field].get(names) or self._names(field, names) if names else None)
        row += facts.numbers
        row.append(self._word("excluded", facts.excluded))
        taken = self._sql.execute(_EPISODE, row).fetchone()
        if taken is not None:  # else another record of it counts
            self._keys += [(key, *taken) for key in facts.keys]

    def _group_record(self, record: Record) -> None:
        if record.partition != partition_of(self._policy):
            return
        made, body = made_of(record.headers, GroupMadeOf), record.value or b""
        if made is not None and body.count(_EXCLUDED) == body.count(_NOT_EXCLUDED) > 0:
            # Nothing is left out, as of most groups: to parse the schema takes as long as all else of its episodes.
            self._place_group(made.group, record, made, None)
            return
        summary = summary_of(body)
        if summary is None:
            raise UndecodableError("expected a transitions/1 Arrow stream, got another")
        if self._place_group(summary.group_id, record, made, summary.excluded or None):
            left_out = [one for one in summary.members if one.excluded]
            words = (self._word("excluded", one.excluded) for one in left_out)
            rows = zip(map(attrgetter("episode_id"), left_out), words, strict=True)
            self._sql.executemany("INSERT OR REPLACE INTO members VALUES(?, ?)", rows)

    def _place_group(self, group: str, record: Record, made: GroupMadeOf | None, excluded: str | None) -> bool:
        """False: a record of it lies before this one."""
        rated = sum(end - begin for ranges in made.feedback.values() for begin, end in ranges) if made else 0
        done = self._sql.execute(
            'UPDATE groups SET "offset" = ?, excluded = ?, rated = ? WHERE n = ? AND "offset" IS NULL',
            (record.offset, self._word("excluded", excluded), rated or None, self._group(group)),
        )
        return done.rowcount > 0

    def _step(self, record: Record) -> None:
        step = TRAINING_STEPS.decode(record.value)
        if not isinstance(step, TrainingStep) or step.policy != self._policy:
            return
        done = self._sql.execute("INSERT OR IGNORE INTO steps VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0)", _OF_STEP(step))
        if done.rowcount:
            told: dict[str, str | None] = {**dict.fromkeys(step.group_ids), **step.excluded_ids}
            for group, reason in told.items():
                row = (self._group(group), step.step, step.epoch, self._word("excluded", reason))
                self._sql.execute("INSERT OR REPLACE INTO step_groups VALUES(?, ?, ?, ?)", row)
            why = self._word("excluded", Reason.BELOW_BOUND) if step.below_bound else None
            self._sql.executemany(
                "INSERT OR IGNORE INTO members VALUES(?, ?)", ((id_, why) for id_ in step.below_bound)
            )

    def _advantages(self, record: Record) -> None:
        told = ADVANTAGES.decode(record.value)
        if told.policy == self._policy:
            row = (self._group(told.group_id), told.step, told.epoch, record.offset)
            self._sql.execute("INSERT OR IGNORE INTO advantages VALUES(?, ?, ?, ?)", row)

    def _weight(self, record: Record) -> None:
        told = WEIGHTS.decode(record.value)
        if self._lineage is None:
            self._lineage = Lineage(self._policy)
            for (claim,) in self._sql.execute("SELECT value FROM meta WHERE name = ?", (_CLAIM,)):
                self._lineage.fold(WEIGHTS.decode(claim))
        if not self._lineage.fold(told):
            return
        if isinstance(told, EpochClaim):
            self._sql.execute("INSERT OR REPLACE INTO meta VALUES(?, ?)", (_CLAIM, record.value))
        elif isinstance(told, VersionManifest):
            row: tuple[Any, ...] = (told.run, told.epoch, told.base_version, told.step, told.next_offset)
            self._sql.execute(
                "INSERT OR REPLACE INTO versions VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (told.version, *row, told.kind, told.uri, told.at_ms),
            )
