"""Who may ask the LLM gateway for what: claims without proof are refused, whatever their form, and harm nobody."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.fake_engine.scripted import Reply
from tests.producers.keys import HOST, KEY, RUN_HASH, bearer, by_host, by_runner
from tests.producers.llm_gateway.harness import ASK, ATTEMPT, EPISODE, ROLLOUT, TOPICS, Rig, begun, rig
from tracegrad.schemas.credentials import attempt_holder, credential, new_host, runner_holder
from tracegrad.schemas.ids import RunHash
from tracegrad.schemas.metrics import REQUESTS_UNPROVED, SESSIONS_FORGOTTEN
from tracegrad.schemas.topics import Topic

NUM_TRIES = int(os.environ.get("TRACEGRAD_TEST_TRIES", "100"))
"""Of each form; the long form of this test is a larger one."""
CHAT = "/v1/chat/completions"
ATTEMPT_PATH = f"/rollout/{ROLLOUT}/attempt/{ATTEMPT}"
NOTHING = {"x-api-key": "tracegrad"}
TRACEPARENT = {"traceparent": f"00-{EPISODE}-00f067aa0ba902b7-01"}
HEADERS = {"x-rollout-id": ROLLOUT, "x-attempt-id": ATTEMPT}
BAGGAGE = {"baggage": f"rollout.id={ROLLOUT},attempt.id={ATTEMPT}"}
SECRET = credential(KEY, attempt_holder(ROLLOUT, ATTEMPT)).rpartition(".")[2]
OTHER_ATTEMPT = {"x-api-key": credential(KEY, attempt_holder(ROLLOUT, "0bad"))}
OTHER_HOST = by_host(new_host())
BEGIN = {"policy": "policy", "purpose": "train"}

FORMS: dict[str, tuple[str, str, dict[str, str]]] = {
    "path": ("no_credential", ATTEMPT_PATH + CHAT, NOTHING),
    "x-rollout-id": ("no_credential", CHAT, NOTHING | HEADERS),
    "x-rollout-id alone": ("no_credential", CHAT, NOTHING | {"x-rollout-id": ROLLOUT}),
    "baggage": ("no_credential", CHAT, NOTHING | BAGGAGE),
    "traceparent": ("no_credential", CHAT, NOTHING | TRACEPARENT),
    "rt- without secret": ("no_credential", CHAT, {"x-api-key": f"rt-{ROLLOUT}.{ATTEMPT}"}),
    "rt- of a wrong secret": ("no_credential", CHAT, {"x-api-key": f"rt-{ROLLOUT}.{ATTEMPT}.{'0' * 32}"}),
    "rt- of another run's key": ("no_credential", CHAT, bearer(attempt_holder(ROLLOUT, ATTEMPT), bytes(32)) | NOTHING),
    "rh- with an attempt's secret": ("no_credential", ATTEMPT_PATH + CHAT, {"x-api-key": f"{HOST}.{SECRET}"}),
    "runner of another run": ("not_the_runner", f"{ATTEMPT_PATH}/end", NOTHING | by_runner(RunHash("0" * 8))),
    "another attempt, by path": ("other_attempt", ATTEMPT_PATH + CHAT, OTHER_ATTEMPT),
    "another attempt, by headers": ("other_attempt", CHAT, OTHER_ATTEMPT | HEADERS),
    "another attempt, by trace": ("other_attempt", CHAT, OTHER_ATTEMPT | TRACEPARENT),
    "another host, by path": ("other_host", ATTEMPT_PATH + CHAT, OTHER_HOST),
    "another host, by rollout": ("other_host", CHAT, OTHER_HOST | {"x-rollout-id": ROLLOUT}),
    "another host, by trace": ("other_host", CHAT, OTHER_HOST | TRACEPARENT),
    "foreign begin": ("not_the_runner", f"{ATTEMPT_PATH}/begin", NOTHING | {"authorization": "Bearer x"}),
    "begin by a host": ("not_the_runner", f"{ATTEMPT_PATH}/begin", by_host() | {"authorization": "x"}),
    "begin of a new attempt": (
        "not_the_runner",
        f"/rollout/{ROLLOUT}/attempt/0bad/begin",
        by_host() | {"authorization": "x"},
    ),
    "a peer's end": ("not_the_runner", f"{ATTEMPT_PATH}/end", OTHER_HOST | {"authorization": "x"}),
    "its own end": ("not_the_runner", f"{ATTEMPT_PATH}/end", by_host() | {"authorization": "x"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
async def test_a_claim_without_proof_is_refused(form: str) -> None:
    """403 each time, counted with its reason; nothing is sampled, recorded or put aside, and nobody is evicted."""
    reason, path, headers = FORMS[form]
    async with begun(max_attempts=3) as r:
        r.engine.replies.extend([Reply("42"), Reply("43")])
        await r.begin(attempt="0bad", host=None)
        for _ in range(NUM_TRIES):
            status, answer = await r.post(path, _body_of(path), **headers)
            assert (status, answer["error"]["code"]) == (403, reason), answer
        metrics = r.gateway.parts.metrics
        assert metrics.value(REQUESTS_UNPROVED, reason) == metrics.value(REQUESTS_UNPROVED) == NUM_TRIES
        assert metrics.value(SESSIONS_FORGOTTEN) == 0 and not r.records()
        assert not r.log.records(TOPICS.name(Topic.DEAD_LETTERS))
        await _work_on_both(r)


def _body_of(path: str) -> dict[str, Any]:
    return BEGIN | {"host": new_host()} if path.endswith("/begin") else {"messages": ASK}


async def _work_on_both(r: Rig) -> None:
    """The two attempts go on: that of the host, and that of the command."""
    assert (await r.chat(ASK))["choices"][0]["message"]["content"] == "42"
    status, answer = await r.post(CHAT, {"messages": ASK}, **OTHER_ATTEMPT)
    assert (status, answer["choices"][0]["message"]["content"]) == (200, "43")
    assert [len(await r.end(attempt=attempt)) for attempt in (ATTEMPT, "0bad")] == [1, 1]


async def test_a_rollout_of_no_runner_needs_no_proof(r: Rig) -> None:
    """An agent that nobody started may name one: it is captured, as ever; so is one with a credential and no claim."""
    r.engine.replies.extend(Reply("ok") for _ in range(3))
    for headers in (NOTHING | {"x-rollout-id": "77" * 14}, NOTHING, by_host()):
        assert (await r.post(CHAT, {"messages": ASK}, **headers))[0] == 200
    assert [call.rollout_id for call in r.calls()] == ["77" * 14, None, None]
    assert r.gateway.parts.metrics.value(REQUESTS_UNPROVED) == 0


async def test_an_attempt_moves_with_its_runner_to_another_host(r: Rig) -> None:
    """A host that ended before it was given the attempt leaves it to another: the last `/begin` says which."""
    r.engine.replies.append(Reply("ok"))
    other = new_host()
    await r.begin(host=other)
    path = ATTEMPT_PATH + CHAT
    assert (await r.post(path, {"messages": ASK}, **by_host(other)))[0] == 200
    assert (await r.post(path, {"messages": ASK}, **by_host()))[1]["error"]["code"] == "other_host"


async def test_an_attempt_that_has_ended_enters_no_later_one() -> None:
    """What its command left behind shows its credential in one header, and in the other names the rollout alone."""
    async with rig() as r:
        r.engine.replies.append(Reply("ok"))
        await r.begin(host=None)
        await r.end()
        await r.begin(attempt="0bad", host=None)
        left_behind = bearer(attempt_holder(ROLLOUT, ATTEMPT))["authorization"].removeprefix("Bearer ")
        headers = {"x-api-key": left_behind, "authorization": f"Bearer rt-{ROLLOUT}"}
        status, answer = await r.post(CHAT, {"messages": ASK}, **headers)
        assert (status, answer["error"].get("code")) == (403, "other_attempt"), answer
        assert await r.end(attempt="0bad") == []


async def test_no_secret_is_recorded() -> None:
    """Neither with a call nor with claims that are quarantined."""
    async with rig() as r:
        r.engine.replies.append(Reply("ok"))
        await r.begin(host=None)
        shown = {"x-api-key": credential(KEY, attempt_holder(ROLLOUT, ATTEMPT))}
        assert (await r.post(CHAT, {"messages": ASK}, **shown))[0] == 200
        assert (await r.post(CHAT, {"messages": ASK}, **shown, **{"x-rollout-id": "77" * 14}))[0] == 400
        values = [record.value or b"" for topic in Topic for record in r.log.records(TOPICS.name(topic))]
        assert any(f"rt-{ROLLOUT}.{ATTEMPT}".encode() in value for value in values)
        assert not [value for value in values if SECRET.encode() in value]
        assert credential(KEY, runner_holder(RUN_HASH)).encode() not in b"".join(values)
