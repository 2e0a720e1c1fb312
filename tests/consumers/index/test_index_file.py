"""The index's file: its owner's alone, one writer at a time, made anew when it is damaged."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.consumers.audit.small_run import memory_log, small_run
from tests.consumers.index.indexing import damage, index_of
from tests.streams.make import TOPICS
from tracegrad.consumers.index import file
from tracegrad.consumers.index.build import catch_up
from tracegrad.consumers.index.file import open_index, transaction
from tracegrad.consumers.index.query import Question, find
from tracegrad.schemas.errors import UnavailableError


def test_nobody_else_reads_the_file(tmp_path: Path) -> None:
    """Nor what SQLite keeps beside it; one that others could read is closed to them."""
    old = os.umask(0)
    try:
        (tmp_path / "old.sqlite").touch(0o666)
        for name in ("old.sqlite", "new.sqlite"):
            with open_index(tmp_path / name) as connection:
                catch_up(memory_log(small_run()), TOPICS, "policy", connection)
                modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.glob(f"{name}*")}
            assert modes == {f"{name}{beside}": 0o600 for beside in ("", "-wal", "-shm")}
    finally:
        os.umask(old)


def test_who_may_not_write_is_told_which_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And that another process writes it."""
    monkeypatch.setattr(file, "_BUSY_S", 0.0)
    with open_index(tmp_path / "index.sqlite") as other, open_index(tmp_path / "index.sqlite") as connection:
        other.execute("BEGIN IMMEDIATE")
        with (
            pytest.raises(UnavailableError, match=r"expected to write .*index\.sqlite, got database is locked"),
            transaction(connection),
        ):
            pass
        other.execute("ROLLBACK")


@pytest.mark.parametrize("table", ["positions", "episodes", "words"])
def test_damage_behind_the_first_page_is_told_and_mended(tmp_path: Path, table: str) -> None:
    """It opens; who comes upon the rows, to read on or to ask, is told, and who asks then has all."""
    path, log = tmp_path / "index.sqlite", memory_log(small_run())
    index_of(log, tmp_path).close()
    damage(path, table)
    with (
        pytest.raises(UnavailableError, match=r"index\.sqlite was damaged .* ask again"),
        open_index(path) as connection,
    ):
        catch_up(log, TOPICS, "policy", connection)
        list(find(connection, Question()))
    assert not path.exists()
    with open_index(path) as connection:
        catch_up(log, TOPICS, "policy", connection)
        assert len(list(find(connection, Question()))) > 0
