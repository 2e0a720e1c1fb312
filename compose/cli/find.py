"""Find things: `episodes`, `lineage`. They read the run's topics, and write beside them nothing but the run's index."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from tracegrad.consumers.episode_facts import KINDS
from tracegrad.consumers.index.query import Question, count, find, unread
from tracegrad.consumers.index.show import episode_lines, lineage_lines
from tracegrad.consumers.index.subject import Kind, taken_for
from tracegrad.schemas.log.where import parse

from .common import RUNS, JsonFlag, RunOption, RunsDirOption, echo, find_run, tell_wait
from .replay_command import check_window, moment_ms

if TYPE_CHECKING:
    from tracegrad.consumers.index.build import IndexProgress
    from tracegrad.consumers.index.lineage import Lineage

    from ..history.index import OpenIndex

_TELL_S = 2.0

Where = Annotated[
    str, typer.Option("--where", help="Conditions, with blanks between: 'agent=plan* reward>0.5 excluded!=none'.")
]
Order = Annotated[
    str, typer.Option(help="The fact to sort by, or at (the time); with - before it the greatest come first.")
]
Limit = Annotated[int, typer.Option("--limit", "-n", min=0, help="Number of rows; 0: all.")]
Since = Annotated[
    str | None, typer.Option("--from", help="Only those written since: an ISO 8601 time, or PT2H (two hours ago).")
]
Until = Annotated[str | None, typer.Option("--to", help="Only those written before, in the same form.")]
KindOption = Annotated[Kind | None, typer.Option("--kind", help="What ID is; without it that is guessed, and told.")]


def episodes(
    where: Where = "",
    from_: Since = None,
    to: Until = None,
    order_by: Order = "-at",
    limit: Limit = 20,
    only_count: Annotated[bool, typer.Option("--count", help="Print how many there are, not which.")] = False,
    as_json: JsonFlag = False,
    run: RunOption = None,
    runs_dir: RunsDirOption = RUNS,
) -> None:
    """Find episodes by their facts, which docs/finding.md lists.

    Example: tracegrad episodes --where 'reward<0.5 tools_failed>0' --order-by -tokens
    """
    from ..history.index import indexed

    now = datetime.now(UTC)
    question = Question(
        terms=parse(where, KINDS),
        begin_ms=moment_ms(from_, "--from", now) if from_ else None,
        end_ms=moment_ms(to, "--to", now) if to else None,
        order_by=order_by,
        limit=limit or None,
    )
    check_window(question.begin_ms, question.end_ms)
    with indexed(find_run(run, runs_dir).run_dir, needs_log=False, tell=index_teller(), say=tell_wait) as index:
        _tell_unread(index)
        if only_count:
            found = count(index.connection, question)
            echo(json.dumps({"count": found}) if as_json else str(found))
        elif as_json:
            for facts in find(index.connection, question):
                echo(json.dumps(facts))
        else:
            for line in episode_lines(find(index.connection, question)):
                echo(line)


def lineage(
    asked: Annotated[str, typer.Argument(metavar="ID", help="A version, an episode, a group or a call.")],
    kind: KindOption = None,
    as_json: JsonFlag = False,
    run: RunOption = None,
    runs_dir: RunsDirOption = RUNS,
) -> None:
    """Show what a version was trained on, down to spans, or what became of an episode or a call.

    Example: tracegrad lineage 18
    """
    from ..history.index import indexed

    with indexed(find_run(run, runs_dir).run_dir, needs_log=True, tell=index_teller(), say=tell_wait) as index:
        _tell_unread(index)
        found = _trace(index, asked, kind)
    echo(msgspec.json.encode(found).decode() if as_json else "\n".join(lineage_lines(found)))


def _trace(index: OpenIndex, asked: str, kind: Kind | None) -> Lineage:
    from tracegrad.consumers.index import lineage as links
    from tracegrad.consumers.index.origins import episodes_of_call, with_feedback, with_origins

    log, topics, connection = index.log, index.wiring.topics, index.connection
    assert log is not None
    subject = taken_for(connection, asked, kind)
    if subject.kind is Kind.VERSION:
        found = links.of_version(connection, int(subject.id), asked)
    elif subject.kind is Kind.GROUP:
        found = links.of_group(connection, subject.id, asked)
    else:
        ids = [subject.id]
        if subject.kind is Kind.CALL:
            ids = episodes_of_call(log, topics, connection, subject.id)
        found = links.of_episodes(connection, ids, asked, subject.kind)
    return msgspec.structs.replace(
        found,
        groups=with_feedback(log, topics, found.groups),
        episodes=with_origins(log, topics, found.episodes),
    )


def _tell_unread(index: OpenIndex) -> None:
    if told := unread(index.connection):
        words = ", ".join(f"{num} of {what}" for what, num in told.items())
        echo(f"tracegrad: records that cannot be read are left out: {words}", is_error=True)


def index_teller() -> Callable[[IndexProgress], None]:
    """Says on stderr how far the index is, where that takes long."""
    told_at: float | None = None

    def tell(progress: IndexProgress) -> None:
        nonlocal told_at
        now = time.monotonic()
        told_at = told_at or now
        if now - told_at > _TELL_S:
            told_at = now
            echo(f"tracegrad: indexed {progress.num_read:,} of {progress.num_records:,} records", is_error=True)

    return tell
