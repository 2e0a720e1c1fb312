"""Who may send which spans: a runner's rollout is its agent's alone, and what was proved is marked by the gateway."""

from __future__ import annotations

import os
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tests.producers.keys import HOST, KEY, RUN_HASH, bearer, by_host, by_runner
from tests.producers.otlp_gateway.bodies import request_of, span_ids
from tests.producers.otlp_gateway.over_http import Gateway
from tests.streams.make import otlp, span
from tracegrad.producers.otlp_gateway.proof import may_name
from tracegrad.schemas.attributes import PROVED_BY
from tracegrad.schemas.credentials import attempt_holder, credential
from tracegrad.schemas.metrics import REQUESTS_UNPROVED
from tracegrad.schemas.topics import Topic

NUM_TRIES = int(os.environ.get("TRACEGRAD_TEST_TRIES", "100"))
"""Of each form; the long form of this test is a larger one."""
ROLLOUT, ATTEMPT, OTHER = RUN_HASH + "0" * 20, "0a0b", "0bad"
EPISODE, TRACE = bytes.fromhex(ROLLOUT + ATTEMPT), bytes.fromhex("77" * 16)
PATH = f"/rollout/{ROLLOUT}/attempt/{ATTEMPT}/v1/traces"
OWN = bearer(attempt_holder(ROLLOUT, ATTEMPT))
OF_OTHER = bearer(attempt_holder(ROLLOUT, OTHER))
CLAIM: dict[str, Any] = {"rollout__id": ROLLOUT, "attempt__id": ATTEMPT}
LIGHTNING = {"agentlightning__rollout_id": ROLLOUT, "agentlightning__attempt_id": ATTEMPT}


def claiming(**attributes: Any) -> bytes:
    """One span of another trace with these attributes."""
    return otlp(span(TRACE.hex(), 1, **attributes))


def claiming_by_resource() -> bytes:
    """One span of another trace whose resource names the attempt."""
    request = request_of([(TRACE, 1)])
    for key, value in (("rollout.id", ROLLOUT), ("attempt.id", ATTEMPT)):
        request.resource_spans[0].resource.attributes.add(key=key).value.string_value = value
    body: bytes = request.SerializeToString()
    return body


BY_TRACE = request_of([(EPISODE, 1)]).SerializeToString()
PLAIN = request_of([(TRACE, 1)]).SerializeToString()
FORMS: dict[str, tuple[str, bytes, dict[str, str], str]] = {
    "path": (PATH, PLAIN, {}, "no_credential"),
    "trace id": ("/v1/traces", BY_TRACE, {}, "no_credential"),
    "span attribute": ("/v1/traces", claiming(**CLAIM), {}, "no_credential"),
    "attribute of Agent Lightning": ("/v1/traces", claiming(**LIGHTNING), {}, "no_credential"),
    "resource attribute": ("/v1/traces", claiming_by_resource(), {}, "no_credential"),
    "rollout alone": ("/v1/traces", claiming(rollout__id=ROLLOUT), {}, "no_credential"),
    "rt- without secret": (PATH, PLAIN, {"x-api-key": f"rt-{ROLLOUT}.{ATTEMPT}"}, "no_credential"),
    "another run's key": (PATH, PLAIN, bearer(attempt_holder(ROLLOUT, ATTEMPT), bytes(32)), "no_credential"),
    "another attempt, path": (PATH, PLAIN, OF_OTHER, "other_attempt"),
    "another attempt, trace id": ("/v1/traces", BY_TRACE, OF_OTHER, "other_attempt"),
    "another attempt, attribute": ("/v1/traces", claiming(**CLAIM), OF_OTHER, "other_attempt"),
    "another rollout, resource": (
        "/v1/traces",
        claiming_by_resource(),
        bearer(attempt_holder("f" * 28, ATTEMPT)),
        "other_attempt",
    ),
    "the runner's, path": (PATH, PLAIN, by_runner(), "other_attempt"),
}


@pytest.mark.parametrize("form", FORMS)
async def test_a_claim_without_proof_is_refused(form: str) -> None:
    """403 each time, counted with its reason; nothing is recorded or put aside."""
    path, body, headers, reason = FORMS[form]
    gateway = Gateway()
    for _ in range(NUM_TRIES):
        assert (await gateway.post(body, headers, path)).status_code == 403
    assert gateway.metrics.value(REQUESTS_UNPROVED, reason) == gateway.metrics.value(REQUESTS_UNPROVED) == NUM_TRIES
    assert not gateway.values() and not gateway.values(Topic.DEAD_LETTERS)


@pytest.mark.parametrize("form", FORMS)
def test_what_names_a_rollout_is_seen_in_its_bytes(form: str) -> None:
    """So that requests of others are not looked through, attribute by attribute."""
    path, body, _, _ = FORMS[form]
    assert may_name(body, RUN_HASH) is ("rollout" not in path)
    assert not may_name(claiming(rollout__id="77" * 14), RUN_HASH)


async def test_what_is_proved_is_marked_and_nobody_else_marks() -> None:
    """By its credential; a mark of the sender's own is taken out, also from one who needs no proof."""
    for headers, holder in ((OWN, attempt_holder(ROLLOUT, ATTEMPT)), (by_host(), HOST), ({}, None)):
        gateway = Gateway()
        body = claiming() if holder is None else BY_TRACE
        request = ExportTraceServiceRequest.FromString(body)
        for _ in range(2):
            request.resource_spans[0].resource.attributes.add(key=PROVED_BY).value.string_value = "rh-forged"
        assert (await gateway.post(request.SerializeToString(), headers)).status_code == 200
        [value] = gateway.values()
        [resource] = ExportTraceServiceRequest.FromString(value).resource_spans
        marks = [pair.value.string_value for pair in resource.resource.attributes if pair.key == PROVED_BY]
        assert marks == ([holder] if holder else [])


async def test_neighbours_of_what_is_not_proved_are_kept() -> None:
    """One exporter may serve many: what names a runner's rollout is refused, in words, the rest is taken."""
    gateway = Gateway()
    request = request_of([(TRACE, 1), (EPISODE, 2), (TRACE, 3)])
    answer = await gateway.post(request.SerializeToString(), {})
    told = ExportTraceServiceResponse.FromString(answer.content).partial_success
    assert (answer.status_code, told.rejected_spans) == (200, 1)
    assert "OTEL_EXPORTER_OTLP_HEADERS" in told.error_message
    assert span_ids(gateway.values()) == [(TRACE.hex(), 1), (TRACE.hex(), 3)]
    assert gateway.metrics.value(REQUESTS_UNPROVED, "no_credential") == 1


async def test_rollouts_of_no_runner_need_no_proof() -> None:
    """As ever: by path, attribute and trace id."""
    gateway = Gateway()
    other = "77" * 14
    for path, body in (
        (f"/rollout/{other}/attempt/{ATTEMPT}/v1/traces", PLAIN),
        ("/v1/traces", claiming(rollout__id=other, attempt__id=ATTEMPT)),
        ("/v1/traces", PLAIN),
    ):
        assert (await gateway.post(body, {}, path)).status_code == 200
    assert len(gateway.values()) == 3 and gateway.metrics.value(REQUESTS_UNPROVED) == 0


async def test_a_credential_that_a_span_quotes_is_not_recorded() -> None:
    """Instrumentation may be told to write request headers into spans; the body is protobuf all the same."""
    gateway = Gateway()
    shown = credential(KEY, HOST)
    body = otlp(span(EPISODE.hex(), 1, http__request__header__x_api_key=shown))
    assert (await gateway.post(body, by_host())).status_code == 200
    [value] = gateway.values()
    assert span_ids([value]) == [(EPISODE.hex(), 1)]
    assert shown.rpartition(".")[2].encode() not in value and HOST.encode() in value


async def test_a_credential_lets_in_where_a_token_is_asked_for() -> None:
    """Agents that a runner starts are given no token."""
    gateway = Gateway(token="s3cret")
    statuses = [(await gateway.post(PLAIN, headers)).status_code for headers in ({}, by_host(), OWN)]
    assert statuses == [401, 200, 200]
    assert (await gateway.post(PLAIN, {"authorization": "Bearer s3cret"})).status_code == 200


@pytest.mark.parametrize(("rollout_id", "attempt_id"), [("", ""), ("ro-1a2b3c4d5e6f", "at-1a2b3c4d")])
async def test_names_of_agent_lightning_are_no_claims(rollout_id: str, attempt_id: str) -> None:
    """Its tracers write their own ids, or none, beside ours: the attempt's credential still lets the span in, a
    neighbour's does not."""
    gateway = Gateway()
    theirs: dict[str, Any] = {"agentlightning__rollout_id": rollout_id, "agentlightning__attempt_id": attempt_id}
    body = otlp(span(TRACE.hex(), 1), **theirs, **CLAIM)
    assert (await gateway.post(body, OF_OTHER)).status_code == 403
    answer = await gateway.post(body, OWN)
    assert answer.status_code == 200 and not ExportTraceServiceResponse.FromString(answer.content).HasField(
        "partial_success"
    )
    assert len(gateway.values()) == 1
