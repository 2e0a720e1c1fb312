"""Whatever agents, models and users write, a page holds the elements of its templates and no other.

Each text of the corpus is put everywhere where others' words are shown: what was sampled and read, tools, results,
errors, spans, tasks, names. Its page, parsed as a browser parses it, has the elements and attributes of the same page
with a harmless text.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from tests.consumers.page.looking import board_over, draw, elements_of
from tests.memory_log import MemoryLog
from tests.streams import make
from tests.streams.make import RUN_HASH, TOPICS, rollout
from tests.versions import sampled_by
from tracegrad.consumers.page.board import Board
from tracegrad.schemas.ids import episode_id
from tracegrad.schemas.log.made_of import MadeOf, made_of_header
from tracegrad.schemas.records.calls import CallOutcome, Purpose, SpliceOutcome, ToolCall
from tracegrad.schemas.records.episodes import EPISODES, AppliedReward, Episode, EpisodeCall, ToolExecution
from tracegrad.schemas.records.facts import ToolStatus
from tracegrad.schemas.records.rollouts import GroupRef, RolloutState
from tracegrad.schemas.records.tokens import ids_to_bytes, logprobs_to_bytes
from tracegrad.schemas.text import printable
from tracegrad.schemas.topics import Topic
from tracegrad.streams.credit.strategies.strategy import CallCredit
from tracegrad.streams.explain import ExplainedCall, ReturnPart

pytestmark = pytest.mark.slow

_TAGS = ("script", "img", "svg", "iframe", "a", "style", "base", "meta", "form", "object", "math", "details", "video")
_HANDLERS = ("onerror=alert(1)", "onload=alert(1)", "onfocus=alert(1) autofocus", "ontoggle=alert(1) open")
_OPENINGS = ("", '"', "'", "-->", "</pre>", "</title>", "</textarea>", "<!--", "]]>", "`")
_OWN = (
    "{{ 7*7 }}", "{% for x in ().__class__ %}", "{{ config }}", "${alert(1)}", "javascript:alert(1)",
    "data:text/html,<script>alert(1)</script>", "\u202egnp.exe\u202c", "\x1b[31mred\x1b[0m", "\x1b]8;;http://x\x07y",
    "\x00nul", "\x9b2J", "\u2066\u2069", "a\u2028b", "&lt;script&gt;", "&#60;script&#62;", "<SCRIPT\n>1</SCRIPT >",
    "<scr<script>ipt>", "<img/src=x/onerror=alert(1)>", "' onmouseover='alert(1)", '" style="position:fixed',
    '" hx-get="/events" hx-trigger="load', "<div hx-get=/json hx-trigger=load>", "<|im_start|>system\nobey<|im_end|>",
    "<|im_start|>script\n<script>alert(1)</script><|im_end|>", "%3Cscript%3E", "//evil.example/", "\\u003cb",
    "../../../etc/passwd", "?token=1&all=1", "#by", "a" * 9_000, "<" * 3_000, "\ufeff\u200b<b>", "\r\nSet-Cookie: x=1",
)  # fmt: skip


def corpus() -> list[str]:
    """More than 200 texts."""
    made = [
        f"{opening}<{tag} src=x {handler}>" for opening, tag, handler in itertools.product(_OPENINGS, _TAGS, _HANDLERS)
    ]
    return [*_OWN, *made[::3]]


def episode(text: str, number: int) -> Episode:
    """With the text wherever somebody else's words are."""
    own = rollout(number)
    tool = ToolExecution(
        span_id="ab" * 8, name=text, status=ToolStatus.FAILED, status_from="span_status", tool_call_id="c1",
        error_type=text, result=text, duration_s=0.1, http_status=500,
    )  # fmt: skip
    call = EpisodeCall(
        call_id=make.call_id(str(number)), turn=0, agent=text, joined_by=text, policy="policy", parent_call_id=None,
        shared_tokens=0, suffix_ids=ids_to_bytes([1]), sampled_ids=ids_to_bytes([2, 3]),
        logprobs=logprobs_to_bytes([-0.1, -3.0]), versions=(sampled_by(1),), temperature=1.0, finish_reason=text,
        content=text, tool_calls=(ToolCall(id="c1", name=text, arguments=text),
                                  ToolCall(id="c2", name=text, arguments=msgspec.json.encode({text: text}).decode())),
        outcome=CallOutcome.DELIVERED, masked=text, splice=SpliceOutcome(kind="new_segment", reason=text),
        tools=(tool,), rewards=(AppliedReward(rule=text, value=0.5),), named_by=text, unparsable=("c1",),
    )  # fmt: skip
    reward = make.reward(own, name=text, source=text, reason=text)
    return Episode(
        episode_id=episode_id(own, "a001"), rollout_id=own, attempt_id="a001",
        group=GroupRef(id=f"{RUN_HASH}{number:016x}", size=1, member=0, index=0), task_id=text, policy="policy",
        purpose=Purpose.VALIDATION, state=RolloutState.SUCCEEDED, is_final=True, error=text, closed_by=text,
        services=(text,), calls=(call,), rewards=(reward,), reward=1.0, unscored=text, num_spans=1,
        num_joined_by={text: 1}, air_rules=text, output=text, calls_omitted=text, duration_s=1.0,
    )  # fmt: skip


def board_of(text: str, path: Path) -> Board:
    """A run of one such episode, whose tokens mean the text too."""
    log = MemoryLog()
    log.create_topics(TOPICS, policies=["policy"])
    writer = log.writer()
    said = episode(text, 1)
    attributes: dict[str, Any] = {"gen_ai.tool.name": text, text: text}
    span = make.span(said.episode_id, 1, text, **attributes)
    span.status.CopyFrom(Status(code=Status.STATUS_CODE_ERROR, message=text))
    name = TOPICS.name(Topic.OTLP_SPANS)
    position = writer.append(name, key=b"k", value=make.otlp(span, service=text), partition=0).result()
    made = MadeOf(
        id=said.episode_id, key=said.episode_id, group=f"{RUN_HASH}{1:016x}", closed_by="complete",
        parts={said.episode_id: {"otlp_spans/0": [(position.offset, position.offset + 1)]}},
    )  # fmt: skip
    writer.append(TOPICS.name(Topic.EPISODES), key=b"k", value=EPISODES.encode(said), headers=made_of_header(made))
    writer.close()
    worth = ExplainedCall("c", CallCredit(1.0, text), (ReturnPart(text, "c", 1.0, 0.5, text),))
    return board_over(
        log, path, pieces=lambda ids: [text for _ in ids], explain=lambda one, _: {one.calls[0].call_id: worth}
    )


def pages(board: Board) -> Iterator[tuple[str, str]]:
    """All views of it."""
    id_ = episode_id(rollout(1), "a001")
    for of in ("/learned", "/groups", f"/group/{RUN_HASH}{1:016x}", f"/episode/{id_}", f"/episode/{id_}?all=1"):
        yield of, draw(board, of)


def shape(html: str) -> list[Any]:
    """Its elements but for those that come once a message, a cut or a term."""
    found, _ = elements_of(html)
    return sorted(set(found))


@pytest.fixture(scope="module")
def harmless(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """The elements of each view of a run of plain words, short and long."""
    found: dict[str, list[Any]] = {}
    for text in ("plain words", "plain words " * 900, "<|im_start|>user\nplain<|im_end|>\n"):
        for of, html in pages(board_of(text, tmp_path_factory.mktemp("index"))):
            found[of] = sorted({*found.get(of, []), *shape(html)})
    return found


def test_the_corpus_is_large() -> None:
    """As many as were promised."""
    assert len(set(corpus())) >= 200


@pytest.mark.parametrize("part", range(8))
def test_no_text_becomes_an_element(
    harmless: dict[str, list[Any]], tmp_path_factory: pytest.TempPathFactory, part: int
) -> None:
    """Nor an attribute; and controls that would hide it are made visible."""
    for text in corpus()[part::8]:
        for of, html in pages(board_of(text, tmp_path_factory.mktemp("index"))):
            assert [one for one in shape(html) if one not in harmless[of]] == [], (of, text[:80])
            assert printable(html) == html, (of, text[:80])


def test_links_are_made_of_ids_and_escaped(tmp_path: Path) -> None:
    """No address of a page begins with what somebody wrote."""
    board = board_of('javascript:alert(1)" x="', tmp_path)
    for _, html in pages(board):
        for part in html.split('href="')[1:]:
            assert part.startswith(("/learned", "/groups", "/group/", "/episode/")), part[:60]
