"""Scores of spans, whose answers are asked for one by one: how many, and those that cannot be had."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount
from starlette.types import Receive, Scope, Send

from tests.producers.rewards.sources.replay import ANSWER
from tests.producers.rewards.sources.test_polls import Written, source
from tests.serving import serve
from tracegrad.producers.rewards.sources import asking
from tracegrad.schemas.errors import SourceError
from tracegrad.schemas.metrics import SCORES


class MLflow:
    """A server with a trace for each of the statuses by which it tells of the trace's spans, and a thumb on its one."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.app = Starlette(routes=[Mount("/", self)])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """All of them on one page."""
        request = Request(scope, receive)
        answer = Response("no", 500)
        if request.method == "POST":
            answer = JSONResponse({"traces": [{"assessments": [self._thumb(n)]} for n in range(len(self.statuses))]})
        elif (status := self.statuses[int(request.query_params["trace_id"].removeprefix("tr-"), 16)]) != 200:
            answer = Response("no", status)
        else:
            span = {
                "span_id": base64.b64encode(b"5" * 8).decode(),
                "attributes": [{"key": "gen_ai.response.id", "value": ANSWER}],
            }
            answer = JSONResponse({"trace": {"spans": [span]}})
        await answer(scope, receive, send)

    def _thumb(self, number: int) -> dict[str, Any]:
        about = {"trace_id": f"tr-{number:032x}", "span_id": (b"5" * 8).hex(), "feedback": {"value": 1}}
        named = {"assessment_id": f"a-{number}", "assessment_name": "thumb"}
        return {**about, **named, "last_update_time": "2026-11-24T09:00:00Z"}


async def test_more_new_scores_of_spans_than_a_reading_may_ask_for_are_taken_by_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One page may have them all, as after a restart."""
    monkeypatch.setattr(asking, "MAX_REQUESTS", 4)
    async with serve(MLflow(*[200] * 7).app) as url:
        written = Written(source("mlflow", url))
        for expected in (3, 6):
            with pytest.raises(SourceError, match="more than 4 pages"):
                await written.read()
            assert len(written.rewards) == expected
        assert [one.idempotency_key for one in await written.read()] == ["mlflow/a-6"]
    assert written.metrics.value(SCORES, "mlflow", "taken") == 7


async def test_a_span_that_cannot_be_asked_for_holds_up_no_other_score() -> None:
    """One that is gone tells of no answer; what another fault hides is told, and asked for again."""
    vendor = MLflow(404, 500, 200)
    async with serve(vendor.app) as url:
        written = Written(source("mlflow", url))
        with pytest.raises(SourceError, match="500"):
            await written.read()
        said = [(one.idempotency_key, one.target) for one in written.rewards]
        assert said == [("mlflow/a-0", None), ("mlflow/a-2", ANSWER)]
        vendor.statuses[1] = 200
        assert [one.idempotency_key for one in await written.read()] == ["mlflow/a-1"]
