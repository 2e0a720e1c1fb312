"""Text of agents, models and users on every topic that a view shows: whatever it is, the page has no element and no
attribute that its templates do not have."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import msgspec
import pytest

from tests.consumers.page.boards import RUN, TOPICS, browser, fold_topics, new_board, step
from tests.consumers.page.looking import Markup
from tests.memory_log import MemoryLog
from tests.versions import manifest
from tracegrad.schemas.log.protocol import Headers
from tracegrad.schemas.records.process_status import PROCESS_STATUS, ProcessReport, ProcessState, SupervisedProcess
from tracegrad.schemas.records.rollouts import REWARDS, Reward
from tracegrad.schemas.records.training import TRAINING_STEPS, Accounting, TrainingStep
from tracegrad.schemas.records.weights import WEIGHT_ACKS, WEIGHTS, EpochClaim, WeightAck
from tracegrad.schemas.topics import Topic

TEXTS = (
    "plain words",
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "' onmouseover='alert(1)",
    '" autofocus onfocus="alert(1)',
    "javascript:alert(1)",
    "<a href='javascript:alert(1)'>x</a>",
    "<style>*{background:url(//evil.example)}</style>",
    "<iframe srcdoc='<script>1</script>'></iframe>",
    "<div hx-get='/evil' hx-trigger='load'>",
    "<p data-json='//evil.example'>",
    "</main></body></html><script>1</script>",
    "<!--", "-->", "<![CDATA[", "]]>", "<?php", "&lt;script&gt;", "&#60;script&#62;", "&quot;&gt;<b>",
    "{{ 7*7 }}", "{% raw %}", "${7*7}", "`", "\\", "\x00<b>", "\u2028<b>", "\u202e<b>", "\ud7ff<b>", "\U0001f600",
    "<b" + "a" * 3_000 + ">", "<" * 2_000, "\r\n\r\ndata: <b>\nevent: view\n\n", "id: 1\ndata: <b>x</b>",
    "<textarea></textarea><title>", "<base href=//evil.example>", "<meta http-equiv=refresh content=0>",
    "<form action=//evil.example><button>", "<math><mtext><table><mglyph><style><img src=x onerror=1>",
)  # fmt: skip


def write(log: MemoryLog, text: str) -> None:
    """Every topic with records that hold the text wherever one may."""
    raw = text.encode("utf-8", "replace")

    def put(topic: Topic, value: bytes, headers: Headers = ()) -> None:
        log.append(TOPICS.name(topic), raw, value, headers, 0)

    for topic in Topic:
        fields = {"reason": text, "stage": text, "detail": text, "topic": text}
        headers = tuple((f"tracegrad.{name}", value.encode("utf-8", "replace")) for name, value in fields.items())
        put(topic, raw, (*headers, ("tracegrad.origin", raw), ("tracegrad.made_of", raw)))
    put(Topic.TRAINING_STEPS, TRAINING_STEPS.encode(told_step(text)))
    for status in (
        ProcessReport(process=text, pid=1, since_ms=0, at_ms=0, counters={text: 1.0}),
        SupervisedProcess(process=text, state=ProcessState.FATAL, num_restarts=1, why=text),
    ):
        put(Topic.PROCESS_STATUS, PROCESS_STATUS.encode(status))
    claim = EpochClaim(policy="policy", run=RUN, epoch=1, trainer_id=text)
    version = manifest(1, run=RUN, kind=text, uri=text)
    for weight in (claim, version):
        put(Topic.WEIGHTS, WEIGHTS.encode(weight))
    ack = WeightAck(run=RUN, version=1, epoch=1, engine_id=text, policy="policy", load_s=0.1)
    put(Topic.WEIGHT_ACKS, WEIGHT_ACKS.encode(ack))
    reward = Reward(rollout_id="", attempt_id="", name=text, value=None, reason=text, source=text, idempotency_key=text)
    put(Topic.REWARDS, REWARDS.encode(reward))


def told_step(text: str) -> TrainingStep:
    """One whose every text is the given one."""
    accounting = Accounting(consumed=2, trained=1, excluded={text: 1})
    return msgspec.structs.replace(
        step(1, alarms=(text,)),
        run=RUN,
        skipped=text,
        accounting=accounting,
        reward_parts={text: 1.0},
        seconds={text: 1.0},
        excluded_ids={text: text},
        depends_on={text: text},
    )


PATHS = ["/", "/system"]


async def pages(folder: Path, text: str) -> dict[str, str]:
    """Every view of a run that says nothing but the text."""
    log = MemoryLog()
    board = new_board(folder, log)
    write(log, text)
    fold_topics(board, log)
    board.set_trouble(text)
    async with browser(board) as client:
        return {path: (await client.get(path)).text for path in PATHS}


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
async def test_no_text_becomes_markup(tmp_path: Path, text: str) -> None:
    """Against the same run that says a plain word everywhere: the same elements, attributes and links."""
    plain = await pages(tmp_path, "word")
    for path, page in (await pages(tmp_path, text)).items():
        expected, found = Markup(plain[path]), Markup(page)
        assert set(found.found) <= set(expected.found), path
        assert found.links <= expected.links, path


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
async def test_what_is_asked_for_does_not_become_markup_either(tmp_path: Path, text: str) -> None:
    """Path and query, in views and in their errors."""
    board = new_board(tmp_path, MemoryLog())
    async with browser(board) as client:
        asked = quote(text.encode("utf-8", "replace"), safe="")
        plain = {one for of in ("/?q=word", "/episode/word") for one in Markup((await client.get(of)).text).found}
        for path in (f"/?q={asked}", f"/episode/{asked}", f"/{asked}"):
            assert set(Markup((await client.get(path)).text).found) <= plain | {("a", ("href",))}, path
