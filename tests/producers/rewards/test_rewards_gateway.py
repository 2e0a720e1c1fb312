"""The rewards gateway: what is taken, under which key, and what each kind of bad request is answered."""

from __future__ import annotations

import math
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings

from tests.memory_log import MemoryLog
from tests.producers.keys import HOST, KEY, RUN_HASH, bearer, by_host, by_runner
from tests.producers.mutants import mutants
from tests.producers.rewards.listening import listening
from tests.serving import free_port
from tracegrad.producers.client import feedback as client
from tracegrad.producers.client.feedback import send_feedback
from tracegrad.producers.feedback_names import RangeConfig
from tracegrad.producers.rewards.app import RewardsGateway
from tracegrad.producers.rewards.config import FeedbackConfig, FeedbackHandles
from tracegrad.producers.rewards.receipts import Receipts
from tracegrad.schemas.credentials import credential, engine_holder, feedback_holder
from tracegrad.schemas.errors import ConfigurationError, RecordError, UnavailableError
from tracegrad.schemas.ids import RunHash, RunName, WirePrefix, conversation_key, new_call, new_tool_call, wire_id
from tracegrad.schemas.metrics import FEEDBACK, FEEDBACK_REFUSED, Metrics
from tracegrad.schemas.records.rollouts import REWARDS, Reward
from tracegrad.schemas.topics import Topic, Topics

TOPICS = Topics(run=RunName("test"))
TOKEN = bearer(feedback_holder(RUN_HASH))
KEY_OF_TRACE = "5e" * 16
ANSWER = new_call(KEY_OF_TRACE)
ROLLOUT = RUN_HASH + "0" * 19 + "7"
NAMES = {"reward": RangeConfig(low=-1.0, high=1.0), "stars": RangeConfig(low=1.0, high=5.0)}


class Door:
    """A gateway over the log in memory, and its client."""

    def __init__(self, log: MemoryLog) -> None:
        self.log = log
        log.create_topics(TOPICS, policies=["policy"])
        self.metrics = Metrics()
        self.receipts = Receipts(trains=False, wait_s=0.0)
        config = FeedbackConfig(names=NAMES)
        handles = FeedbackHandles(port=0, run_hash=RUN_HASH, key=KEY)
        gateway = RewardsGateway(
            config,
            handles,
            topics=TOPICS,
            writer=log.writer(),
            metrics=self.metrics,
            receipts=self.receipts,
            now_ms=lambda: 1_000,
        )
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(app=gateway.app), base_url="http://gateway")

    async def post(self, body: Any, **headers: str) -> httpx.Response:
        """An answer to a JSON body."""
        return await self.http.post("/v1/rewards", json=body, headers=headers or TOKEN)

    def written(self) -> list[tuple[bytes | None, Reward]]:
        """(key, record) of all that is on the log."""
        return [(record.key, REWARDS.decode(record.value)) for record in self.log.records(TOPICS.name(Topic.REWARDS))]


@pytest.fixture
async def door(memory_log: MemoryLog) -> AsyncIterator[Door]:
    """With the topics of a run."""
    made = Door(memory_log)
    yield made
    await made.http.aclose()


CALL = new_tool_call(KEY_OF_TRACE)


@pytest.mark.parametrize(
    ("about", "key", "target"),
    [
        ({"response_id": ANSWER}, KEY_OF_TRACE, ANSWER),
        ({"response_id": wire_id(ANSWER, WirePrefix.MESSAGE)}, KEY_OF_TRACE, ANSWER),
        ({"response_id": wire_id(ANSWER, WirePrefix.RESPONSE)}, KEY_OF_TRACE, ANSWER),
        ({"tool_call_id": CALL}, KEY_OF_TRACE, CALL),
        ({"conversation_id": "room 7"}, conversation_key("room 7"), None),
        ({"trace_id": "cd" * 16}, "cd" * 16, None),
    ],
    ids=["chat", "messages", "responses", "tool", "conversation", "trace"],
)
async def test_feedback_lies_under_the_key_of_what_it_is_about(
    door: Door, about: dict[str, str], key: str, target: str | None
) -> None:
    """So that it comes to the worker that holds the calls; an id is told as records hold it, whatever the API."""
    answer = await door.post({**about, "value": 1, "idempotency_key": "k1", "reason": "thanks"})
    assert (answer.status_code, answer.json()) == (202, {"results": [{"idempotency_key": "k1"}]})
    expected = Reward(
        rollout_id="",
        attempt_id="",
        name="reward",
        value=1.0,
        reason="thanks",
        target=target,
        source="feedback",
        idempotency_key="k1",
        at_ms=1_000,
        conversation_key=key,
    )
    assert door.written() == [(key.encode(), expected)]
    assert door.metrics.value(FEEDBACK, "reward") == 1


@pytest.mark.parametrize(
    "about",
    [
        {"trace_id": ROLLOUT + "9a3c"},
        {"rollout_id": ROLLOUT, "attempt_id": "9a3c"},
        {"response_id": new_call(ROLLOUT), "attempt_id": "9a3c"},
    ],
    ids=["trace", "rollout", "response"],
)
async def test_feedback_on_a_runners_attempt_names_it(door: Door, about: dict[str, str]) -> None:
    """By its trace id, or beside the rollout, which alone could mean any of several tries."""
    assert (await door.post({**about, "value": True})).status_code == 202
    ((key, record),) = door.written()
    assert (key, record.rollout_id, record.attempt_id) == (ROLLOUT.encode(), ROLLOUT, "9a3c")
    assert (record.value, record.conversation_key) == (1.0, None)


REFUSED: list[tuple[dict[str, Any], int, str | None, str]] = [
    ({"value": 1}, 400, None, "got none"),
    ({"value": 1, "trace_id": "cd" * 16, "response_id": ANSWER}, 400, None, "got 2 of them"),
    ({"value": 1, "response_id": "chatcmpl-abc"}, 404, "response_id", "our LLM gateway"),
    ({"value": 1, "response_id": CALL}, 404, "response_id", "our LLM gateway"),
    ({"value": 1, "tool_call_id": ANSWER}, 404, "tool_call_id", "our LLM gateway"),
    ({"value": 1, "trace_id": "xyz"}, 400, "trace_id", "32 hex digits"),
    ({"value": 1, "rollout_id": "x"}, 400, "rollout_id", "28 hex digits"),
    ({"value": 1, "rollout_id": ROLLOUT}, 400, "attempt_id", "its trace_id alone"),
    ({"value": 1, "rollout_id": "f" * 28, "attempt_id": "9a3c"}, 404, None, "of this run"),
    ({"value": 1, "trace_id": "cd" * 16, "attempt_id": "9a3c"}, 400, "attempt_id", "rollout only"),
    ({"value": 1, "trace_id": ROLLOUT + "9a3c", "attempt_id": "0001"}, 400, "attempt_id", "9a3c"),
    ({"value": 1.5, "response_id": ANSWER}, 400, "value", "[-1, 1]"),
    ({"value": "1", "response_id": ANSWER}, 400, "value", "[-1, 1]"),
    ({"value": 10**400, "response_id": ANSWER}, 400, "value", "[-1, 1]"),
    ({"response_id": ANSWER}, 400, "value", "[-1, 1]"),
    ({"value": 1, "response_id": ANSWER, "name": "mood"}, 400, "name", "(reward, stars)"),
    ({"value": 0, "response_id": ANSWER, "name": "stars"}, 400, "value", "[1, 5]"),
    ({"value": 1, "response_id": ANSWER, "reason": "x" * 2_001}, 400, "reason", "2000"),
    ({"value": 1, "response_id": ANSWER, "idempotency_key": ""}, 400, "idempotency_key", "1 to 200"),
    ({"value": 1, "response_id": ANSWER, "rating": 3}, 400, "rating", "another field"),
]


@pytest.mark.parametrize(("body", "status", "param", "words"), REFUSED)
async def test_what_is_wrong_is_refused_with_the_field_at_fault(
    door: Door, body: dict[str, Any], status: int, param: str | None, words: str
) -> None:
    """And leaves nothing on the log."""
    answer = await door.post(body)
    error = answer.json()["results"][0]["error"]
    assert (answer.status_code, error["status"], error["param"]) == (status, status, param)
    assert words in error["message"]
    assert door.written() == []
    assert door.metrics.value(FEEDBACK_REFUSED, "form" if param in (None, "rating") else param) == 1


async def test_an_empty_comment_is_no_comment(door: Door) -> None:
    """As a form sends a field that nobody filled in."""
    assert (await door.post({"response_id": ANSWER, "value": 1, "reason": ""})).status_code == 202
    assert [record.reason for _, record in door.written()] == [""]


async def test_nan_is_no_value(door: Door) -> None:
    """JSON has none, and Python's clients send it all the same."""
    text = f'{{"response_id": "{ANSWER}", "value": NaN}}'
    answer = await door.http.post("/v1/rewards", content=text, headers=TOKEN)
    assert (answer.status_code, door.written()) == (400, [])


async def test_many_are_judged_one_by_one(door: Door) -> None:
    """The good ones are kept, the others told at their places."""
    good, bad = {"response_id": ANSWER, "value": 0.5}, {"response_id": ANSWER, "value": 7}
    answer = await door.post({"rewards": [good, bad, good]})
    first, second, third = answer.json()["results"]
    assert (answer.status_code, second["error"]["param"]) == (202, "value")
    assert first["idempotency_key"] != third["idempotency_key"]
    assert [record.idempotency_key for _, record in door.written()] == [
        first["idempotency_key"],
        third["idempotency_key"],
    ]
    assert (await door.post({"rewards": [bad, bad]})).status_code == 400
    bodies: list[dict[str, Any]] = [
        {"rewards": []},
        {"rewards": [good] * 1_001},
        {"rewards": [good], "value": 1},
        {"rewards": good},
    ]
    for wrong in bodies:
        assert (await door.post(wrong)).status_code == 400
    assert len(door.written()) == 2


@pytest.mark.parametrize(
    "headers",
    [
        {"x": "nobody"},
        by_runner(),
        by_host(HOST),
        bearer(engine_holder(RUN_HASH)),
        bearer(feedback_holder(RunHash("0" * 8))),
        {"authorization": "Bearer " + credential(bytes(32), feedback_holder(RUN_HASH))},
    ],
    ids=["none", "runner", "agent", "engine", "other-run", "other-key"],
)
async def test_only_the_reward_token_rates(door: Door, headers: dict[str, str]) -> None:
    """No credential that an agent or another part of the run has."""
    answer = await door.post({"response_id": ANSWER, "value": 1}, **headers)
    assert (answer.status_code, door.written()) == (401, [])


async def test_it_answers_when_the_log_has_it_and_503_when_not(door: Door) -> None:
    """So that who hears 202 can forget it, and who hears 503 sends it again."""
    door.log.fail_next(UnavailableError("away"))
    answer = await door.post({"response_id": ANSWER, "value": 1})
    assert (answer.status_code, int(answer.headers["retry-after"]) > 0) == (503, True)
    door.log.fail_next(RecordError("too large"))
    assert (await door.post({"response_id": ANSWER, "value": 1})).status_code == 400


@pytest.mark.slow
@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=mutants({"rewards": [{"response_id": ANSWER, "value": 1, "name": "stars", "idempotency_key": "k"}] * 2}))
async def test_no_body_is_our_fault(memory_log: MemoryLog, body: bytes) -> None:
    """Never a 5xx, and what is accepted is on the log."""
    door = Door(memory_log)
    before = len(door.written())
    answer = await door.http.post("/v1/rewards", content=body, headers=TOKEN)
    await door.http.aclose()
    assert answer.status_code in (202, 400, 404)
    taken = [one for one in answer.json().get("results", []) if "idempotency_key" in one]
    assert len(door.written()) - before == len(taken)


@pytest.mark.parametrize("name", ["air:thumb", "agent.thumb", "", "x" * 81])
def test_a_name_that_would_count_by_other_rules_is_refused(name: str) -> None:
    """What AIR pays, or the agent says of itself; or one that no feedback can bear."""
    with pytest.raises(ConfigurationError, match="names: expected names"):
        FeedbackConfig(names={name: RangeConfig(low=0.0, high=1.0)})


def test_a_range_has_room_between_its_ends() -> None:
    """Of finite numbers."""
    for low, high in ((1.0, 1.0), (1.0, 0.0), (-1e13, 0.0)):
        with pytest.raises(ConfigurationError, match="low < high"):
            RangeConfig(low=low, high=high)


@pytest.fixture
def url(memory_log: MemoryLog) -> Iterator[str]:
    """Of a gateway that listens."""
    with listening(memory_log, TOPICS, FeedbackConfig()) as found:
        yield found


@pytest.mark.slow
def test_the_client_sends_in_three_lines(url: str, memory_log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over real HTTP: a piece, its revision under the same key, a refusal with the gateway's words."""
    monkeypatch.setenv(client.REWARDS_URL, url)
    monkeypatch.setenv(client.REWARD_TOKEN, credential(KEY, feedback_holder(RUN_HASH)))
    key = send_feedback(response_id=ANSWER, value=1)
    assert send_feedback(response_id=ANSWER, value=-1, idempotency_key=key) == key
    records = [REWARDS.decode(record.value) for record in memory_log.records(TOPICS.name(Topic.REWARDS))]
    assert [(record.idempotency_key, record.value) for record in records] == [(key, 1.0), (key, -1.0)]
    with pytest.raises(ValueError, match=r"value: expected a number in \[-1, 1\]"):
        send_feedback(response_id=ANSWER, value=3)
    with pytest.raises(ValueError, match=r"[Oo]ut of range float"):
        send_feedback(response_id=ANSWER, value=math.nan)
    with pytest.raises(PermissionError, match="reward token"):
        send_feedback(response_id=ANSWER, value=1, token="rf-wrong")
    memory_log.fail_next(UnavailableError("away"))
    assert send_feedback(response_id=ANSWER, value=0, idempotency_key="later") == "later"


async def test_of_what_one_request_says_twice_the_later_was_said_later(door: Door) -> None:
    """Its clock may tell the same millisecond of all; of another thing nothing was said before."""
    pieces = [{"value": value, "idempotency_key": "k1", "response_id": ANSWER} for value in (1, 0, -1)]
    other = {"value": 0.5, "idempotency_key": "k1", "trace_id": "cd" * 16}
    assert (await door.post({"rewards": [*pieces, other]})).status_code == 202
    assert [(one.value, one.at_ms) for _, one in door.written()] == [(1, 1_000), (0, 1_001), (-1, 1_002), (0.5, 1_000)]


@pytest.mark.slow
def test_a_gateway_that_answers_no_http_is_asked_again_and_then_told_of() -> None:
    """Something else listens at its address."""

    def answer(listening: socket.socket) -> None:
        for _ in range(2):
            asking, _address = listening.accept()
            with asking:
                asking.recv(65_536)
                asking.sendall(b"garbage\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(10)
        thread = threading.Thread(target=answer, args=(listening,), daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(ConnectionError, match="expected the rewards gateway at"):
            send_feedback(response_id=ANSWER, value=1, url=url, token="t", patience_s=0.3)
        thread.join(10)


def test_the_client_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """An address, or somebody there."""
    monkeypatch.delenv(client.REWARDS_URL, raising=False)
    with pytest.raises(PermissionError, match=client.REWARDS_URL):
        send_feedback(response_id=ANSWER, value=1)
    nobody = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(ConnectionError, match="expected the rewards gateway at"):
        send_feedback(response_id=ANSWER, value=1, url=nobody, token="t", patience_s=0)
