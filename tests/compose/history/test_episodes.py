"""A run's episodes, read by themselves: of one that was written several times the record that counts."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tests.compose.history.replaying import runs as runs
from tests.consumers.history.source_run import SourceRun
from tests.memory_log import MemoryLog
from tracegrad.compose.history.episodes import episodes_of
from tracegrad.compose.run.run_dir import RunDir
from tracegrad.compose.run.wiring import Wiring
from tracegrad.schemas.log.made_of import MADE_OF_HEADER, MadeOf, made_of
from tracegrad.schemas.records.episodes import EPISODES
from tracegrad.schemas.topics import Topic


def test_of_an_episode_the_first_record_of_the_greatest_revision_counts(
    runs: tuple[SourceRun, dict[str, MemoryLog]], tmp_path: Path
) -> None:
    """As for every other reader: not a copy of an earlier one, nor one behind it."""
    log = runs[1]["test"] = runs[0].past(has_bodies=True)
    source = Wiring(RunDir.open(tmp_path / "test"))
    name = source.topics.name(Topic.EPISODES)
    first, *others = log.records(name)
    for revision, reward in ((1, 0.25), (0, 0.5), (1, 0.75)):
        made = made_of(first.headers, MadeOf)
        assert made is not None
        header = msgspec.json.encode(msgspec.structs.replace(made, revision=revision))
        value = EPISODES.encode(msgspec.structs.replace(EPISODES.decode(first.value), reward=reward))
        headers = tuple((key, header if key == MADE_OF_HEADER else said) for key, said in first.headers)
        log.writer().append(name, key=first.key, value=value, headers=headers, partition=first.partition)
    found = list(episodes_of(source))
    revised = EPISODES.decode(first.value).episode_id
    assert [one.reward for one in found if one.episode_id == revised] == [0.25]
    assert len(found) == 1 + len(others)
