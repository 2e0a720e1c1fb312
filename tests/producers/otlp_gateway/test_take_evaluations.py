"""Evaluations at the OTLP gateway's two doors: whose become rewards, and that none is lost or counted twice."""

from __future__ import annotations

import asyncio
import base64
import math
from typing import Any

import httpx
import pytest
from google.protobuf import json_format  # type: ignore[import-untyped]
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tests.memory_log import MemoryLog
from tests.producers.keys import HOST, RUN_HASH, TOPICS, bearer, by_host, by_runner
from tests.producers.mutants import mutants
from tests.producers.otlp_gateway.evaluating import ANSWER, BY_ID, EVENT, GOOD, NAMES, log, scored, span
from tests.producers.otlp_gateway.over_http import Gateway
from tests.producers.otlp_gateway.test_grpc import LOGS as GRPC_LOGS
from tests.producers.otlp_gateway.test_grpc import TRACES as GRPC_TRACES
from tests.producers.otlp_gateway.test_grpc import Door as GrpcServer
from tests.producers.otlp_gateway.test_grpc import call
from tracegrad.schemas.attributes import PROVED_BY
from tracegrad.schemas.credentials import credential, feedback_holder
from tracegrad.schemas.errors import UnavailableError
from tracegrad.schemas.ids import RunHash
from tracegrad.schemas.metrics import EVALUATIONS_IGNORED, FEEDBACK, FEEDBACK_REFUSED, SPANS
from tracegrad.schemas.records.rollouts import REWARDS, Reward
from tracegrad.schemas.topics import Topic

TOKEN = bearer(feedback_holder(RUN_HASH))


def spans(*made: Any) -> ExportTraceServiceRequest:
    """A request."""
    request = ExportTraceServiceRequest()
    request.resource_spans.add().scope_spans.add().spans.extend(made)
    return request


def logs(*made: Any) -> ExportLogsServiceRequest:
    """A request."""
    request = ExportLogsServiceRequest()
    request.resource_logs.add().scope_logs.add().log_records.extend(made)
    return request


def as_json(request: Any) -> Any:
    """As OTLP writes it: ids in hex."""
    return _with_hex(json_format.MessageToDict(request))


def _with_hex(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: base64.b64decode(inner).hex() if key in ("traceId", "spanId") else _with_hex(inner)
            for key, inner in value.items()
        }
    return list(map(_with_hex, value)) if isinstance(value, list) else value


class Door(Gateway):
    """A gateway that knows names of feedback."""

    def __init__(self, log: MemoryLog, *, names: Any = NAMES, **settings: Any) -> None:
        super().__init__(log, told={"feedback_names": names}, **settings)

    async def export(self, request: Any, headers: dict[str, str] = TOKEN, *, is_json: bool = False) -> httpx.Response:
        """The answer to it."""
        path = "/v1/traces" if isinstance(request, ExportTraceServiceRequest) else "/v1/logs"
        if not is_json:
            return await self.post(request.SerializeToString(), headers, path)
        return await self.client.post(path, json=as_json(request), headers=headers)

    def rewards(self) -> list[Reward]:
        """What is on `rewards`."""
        return [REWARDS.decode(record.value) for record in self.log.records(TOPICS.name(Topic.REWARDS))]


@pytest.fixture
def door(memory_log: MemoryLog) -> Door:
    """With the topics of a run."""
    return Door(memory_log)


@pytest.mark.parametrize("is_json", [False, True], ids=["protobuf", "json"])
@pytest.mark.parametrize(
    ("request_", "topic"),
    [(spans(span({"a": 1}), span({}, events=[(EVENT, GOOD)])), Topic.OTLP_SPANS), (logs(log(BY_ID)), Topic.OTLP_LOGS)],
    ids=["spans", "logs"],
)
async def test_with_the_reward_token_an_evaluation_is_a_reward(
    door: Door, request_: Any, topic: Topic, is_json: bool
) -> None:
    """Under the key of what it judges; the items themselves are recorded as any, and marked as their sender's."""
    answer = await door.export(request_, is_json=is_json)
    assert (answer.status_code, answer.content) == (200, b"{}" if is_json else b"")
    (reward,) = door.rewards()
    assert (reward.name, reward.value, reward.source) == ("good", 0.5, "feedback")
    (record,) = door.log.records(TOPICS.name(Topic.REWARDS))
    assert record.key == (reward.conversation_key or "").encode() != b""
    assert door.metrics.value(FEEDBACK, "good") == 1
    (kept,) = door.log.records(TOPICS.name(topic))
    assert f"{PROVED_BY}".encode() in (kept.value or b"")
    assert feedback_holder(RUN_HASH).encode() in (kept.value or b"")


STRANGERS = {
    "none": {},
    "runner": by_runner(),
    "agent": by_host(HOST),
    "other run": bearer(feedback_holder(RunHash("0" * 8))),
    "other key": {"authorization": "Bearer " + credential(bytes(32), feedback_holder(RUN_HASH))},
}


@pytest.mark.parametrize("headers", STRANGERS.values(), ids=STRANGERS.keys())
async def test_without_the_reward_token_none_counts(door: Door, headers: dict[str, str]) -> None:
    """Whatever an agent exports is no reward; it is counted, and recorded as any span."""
    marked = span({"tracegrad.proved_by": str(feedback_holder(RUN_HASH))}, events=[(EVENT, GOOD), (EVENT, BY_ID)])
    answer = await door.export(spans(marked), headers)
    assert (answer.status_code, answer.content, door.rewards()) == (200, b"", [])
    assert door.metrics.value(EVALUATIONS_IGNORED) == 2
    assert door.metrics.value(SPANS) == 1
    assert (await door.export(spans(span({"a": 1})), headers)).status_code == 200
    assert door.metrics.value(EVALUATIONS_IGNORED) == 2


async def test_where_the_gateway_has_a_token_the_reward_token_is_one(memory_log: MemoryLog) -> None:
    """As an agent's credential is; no token at all is refused."""
    door = Door(memory_log, token="s3cret")
    assert (await door.export(logs(log(BY_ID)), {})).status_code == 401
    assert (await door.export(logs(log(BY_ID)))).status_code == 200
    assert len(door.rewards()) == 1


async def test_a_run_without_feedback_reads_none(memory_log: MemoryLog) -> None:
    """And counts none."""
    door = Door(memory_log, names=None)
    assert (await door.export(logs(log(BY_ID)))).status_code == 200
    assert (await door.export(logs(log(BY_ID)), {})).status_code == 200
    assert (door.rewards(), door.metrics.value(EVALUATIONS_IGNORED)) == ([], 0)


async def test_a_bad_evaluation_harms_neither_neighbours_nor_spans(door: Door) -> None:
    """NaN among good ones: these count, all is recorded, and the exporter is told how many were refused, and why."""
    good = [log(BY_ID, span=number) for number in (1, 2)]
    answer = await door.export(logs(good[0], scored(math.nan), scored(9.0), log({**GOOD, "error.type": "x"}), good[1]))
    told = ExportLogsServiceResponse.FromString(answer.content).partial_success
    assert (answer.status_code, told.rejected_log_records) == (200, 0)
    assert told.error_message == "2 evaluations refused (2 by value)"
    assert [reward.value for reward in door.rewards()] == [0.5, 0.5, 0.5]
    assert door.metrics.value(FEEDBACK_REFUSED, "value") == 2
    assert door.values(Topic.DEAD_LETTERS) == []
    answer = await door.export(spans(span({}, events=[(EVENT, {})])))
    assert ExportTraceServiceResponse.FromString(answer.content).partial_success.rejected_spans == 0


async def test_what_names_a_runners_attempt_is_not_let_in(door: Door) -> None:
    """Its rewards are its grader's; who judges has no credential of its agent."""
    of_attempt = span({}, events=[(EVENT, GOOD)])
    of_attempt.trace_id = bytes.fromhex(RUN_HASH + "0" * 19 + "7" + "9a3c")
    assert (await door.export(spans(of_attempt))).status_code == 403
    assert (await door.export(spans(of_attempt, span({}, events=[(EVENT, BY_ID)])))).status_code == 200
    assert [reward.target for reward in door.rewards()] == [ANSWER]


async def test_what_is_about_a_runners_attempt_from_elsewhere_bears_its_names(door: Door) -> None:
    """By which no stage counts it."""
    rollout, attempt = RUN_HASH + "0" * 19 + "7", "9a3c"
    linked = span({}, events=[(EVENT, GOOD)], links=[(rollout + attempt, {})])
    assert (await door.export(spans(linked))).status_code == 200
    assert [(one.rollout_id, one.attempt_id) for one in door.rewards()] == [(rollout, attempt)]


@pytest.mark.parametrize("num_before", range(3))
async def test_a_log_that_is_away_loses_and_doubles_nothing(door: Door, num_before: int) -> None:
    """503 when any record fails, of the spans or of the rewards; sent again, each evaluation counts once."""
    request = spans(span({}, events=[(EVENT, BY_ID)]), span(GOOD, number=9))
    writer, appended = door.log.writer(), 0
    original = type(writer).append

    def failing(self: Any, *args: Any, **options: Any) -> Any:
        nonlocal appended
        if appended == num_before:
            door.log.fail_next(UnavailableError("away"))
        appended += 1
        return original(self, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(writer), "append", failing)
        answer = await door.export(request)
    assert (answer.status_code, answer.headers["retry-after"] in "1234") == (503, True)
    assert door.metrics.value(FEEDBACK, "good") == 0
    assert (await door.export(request)).status_code == 200
    assert len({(reward.idempotency_key, reward.target) for reward in door.rewards()}) == 2
    assert door.metrics.value(FEEDBACK, "good") == 2


async def test_it_answers_only_when_the_log_has_the_rewards(memory_log: MemoryLog) -> None:
    """Spans that are acknowledged are not enough."""
    door = Door(memory_log)
    memory_log.hold()
    asking = asyncio.create_task(door.export(logs(log(BY_ID))))
    while memory_log.num_unacknowledged() < 2:
        await asyncio.sleep(0.01)
    memory_log.release(1)
    await asyncio.sleep(0.05)
    assert not asking.done()
    memory_log.release()
    assert (await asking).status_code == 200


async def test_many_evaluations_are_accounted_for(memory_log: MemoryLog) -> None:
    """What they become is taken from the request's share: a request that could never fit gets 413 and leaves
    nothing."""
    door = Door(memory_log, max_inflight_bytes=250_000, max_body_bytes=100_000)
    request = logs(*(log(BY_ID, span=number) for number in range(1, 400)))
    answer = await door.export(request)
    assert (answer.status_code, door.rewards(), door.values(Topic.OTLP_LOGS)) == (413, [], [])


@pytest.mark.slow
async def test_over_grpc_as_over_http() -> None:
    """Spans and log records, with the token in the metadata, and without it."""
    server = GrpcServer(run_hash=RUN_HASH, feedback_names=NAMES)
    async with server.open() as channel:
        for headers, num in ((by_host(), 0), (TOKEN, 2)):
            for method, request in (
                (GRPC_TRACES, spans(span({}, events=[(EVENT, GOOD)]))),
                (GRPC_LOGS, logs(log(BY_ID), scored(math.nan, **{"log.record.uid": "u"}))),
            ):
                code, answer, _ = await call(channel, request.SerializeToString(), headers, method=method)
                assert code.name == "OK"
            assert len(server.values(Topic.REWARDS)) == num
    assert isinstance(answer, bytes)
    told = ExportLogsServiceResponse.FromString(answer).partial_success
    assert told.error_message == "1 evaluations refused (1 by value)"


BODY = as_json(logs(log(BY_ID), log({**GOOD, "log.record.uid": "u1", "user.id": "ann"}, span=9)))
SPAN_BODY = as_json(
    spans(span({**GOOD, "annotations.0.annotation.name": "stars"}, events=[(EVENT, BY_ID)], links=[("cd" * 16, GOOD)]))
)


@pytest.mark.slow
@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(of_logs=mutants(BODY), of_spans=mutants(SPAN_BODY))
async def test_no_body_is_our_fault(memory_log: MemoryLog, of_logs: bytes, of_spans: bytes) -> None:
    """Never a 5xx, and what is on the log is a usable value of a declared name."""
    door = Door(memory_log)
    headers = {"content-type": "application/json", **TOKEN}
    for path, body in (("/v1/logs", of_logs), ("/v1/traces", of_spans)):
        answer = await door.client.post(path, content=body, headers=headers)
        assert answer.status_code in (200, 400)
    for reward in door.rewards():
        assert reward.name in NAMES and isinstance(reward.value, float) and math.isfinite(reward.value)
