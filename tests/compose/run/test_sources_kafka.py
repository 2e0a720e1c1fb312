"""Scores that people gave elsewhere, on real parts: from three servers, as they were recorded, to joined receipts."""

from __future__ import annotations

import json
import urllib.request
import uuid
from pathlib import Path

import pytest

pytest.importorskip("torch")

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.compose.run.running import RunningUp
from tests.compose.run.test_feedback_kafka import asked, episodes, receipt
from tests.fake_engine.scripted import ScriptedEngine
from tests.producers.rewards.sources.replay import SESSION, TRACE, Replay, load
from tests.producers.runner.rig import running_engine
from tests.serving import Background, free_port, until
from tracegrad.compose.kafka.log import KafkaLog
from tracegrad.compose.run.run_dir import RunDir
from tracegrad.compose.run.wiring import Wiring
from tracegrad.producers.asgi import serve
from tracegrad.producers.client.feedback import REWARD_TOKEN, REWARDS_URL
from tracegrad.schemas.ids import conversation_key
from tracegrad.schemas.log.follow import read_to_end
from tracegrad.schemas.records.rollouts import REWARDS
from tracegrad.schemas.topics import Topic

pytestmark = [pytest.mark.kafka, pytest.mark.torch, pytest.mark.e2e, pytest.mark.timeout(300)]

POLICY = Path(__file__).parents[3] / "examples" / "calculator" / "policy"
KINDS = ("langfuse", "mlflow", "phoenix")
FILE = """
run = "elsewhere"
policy.model = "{policy}"
engine.url = "{engine}"
kafka.bootstrap_servers = "{broker}"
kafka.topic_prefix = "{prefix}"
streams.idle_s = 6.0
feedback.names.thumb = {{ low = 0.0, high = 1.0 }}
feedback.names.quality = {{ low = 0.0, high = 5.0 }}
feedback.names.tone = {{ low = 0.0, high = 1.0 }}
"""
SOURCE = """
[[feedback.sources]]
kind = "{kind}"
url = "{url}/{kind}"
api_key_env = "{variable}"
names = {{ thumb = "thumb", stars = "quality", tone = "tone" }}
labels = {{ kind = 1.0 }}
every_s = 0.5
look_back_s = 3e8
"""
THUMB = "thumb"
"""On an answer of the recorded conversation, which is not among the calls here."""
KEY = "pk:sk-of-elsewhere"


class Elsewhere:
    """All three, which want a key: away for a while, then with nothing, then rated as recorded."""

    def __init__(self) -> None:
        self.num_asked = 0
        self.is_rated = False
        self._parts = Starlette(routes=[Mount(f"/{kind}", Prefixed(Replay(load(kind)), f"/{kind}")) for kind in KINDS])
        self.app = Starlette(routes=[Mount("/", self)])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One answer."""
        self.num_asked += 1
        answer: ASGIApp = self._parts if self.is_rated else JSONResponse({"data": [], "meta": {"limit": 100}})
        if self.num_asked <= 2 * len(KINDS):
            answer = Response("", 503)
        elif not Request(scope).headers.get("authorization", "").startswith("Basic "):
            answer = Response("", 401)
        await answer(scope, receive, send)


class Prefixed:
    """An application below a path."""

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app = app
        self._prefix = prefix.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Without the prefix."""
        await self._app({**scope, "raw_path": scope["raw_path"].removeprefix(self._prefix)}, receive, send)


def test_scores_from_elsewhere_are_joined_by_their_receipts(
    tmp_path: Path, broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call in the rated trace and one in the rated session; while the servers are away the gateway serves."""
    elsewhere, port = Elsewhere(), free_port()
    monkeypatch.setenv("KEY_OF_ELSEWHERE", KEY)
    with (
        running_engine(ScriptedEngine()) as engine,
        Background(lambda stop: serve(elsewhere.app, host="127.0.0.1", port=port, stop=stop, name="elsewhere")),
    ):
        url, prefix = f"http://127.0.0.1:{port}", f"t{uuid.uuid4().hex[:12]}."
        settings = FILE.format(policy=POLICY, engine=engine, broker=broker, prefix=prefix)
        settings += "".join(SOURCE.format(kind=kind, url=url, variable="KEY_OF_ELSEWHERE") for kind in KINDS)
        (tmp_path / "tracegrad.toml").write_text(settings)
        run = RunningUp(tmp_path)
        try:
            until(lambda: run.pids("rewards"), 120)
            given, agents = run.ask("env", "--feedback"), run.ask("env")
            openai = agents["OPENAI_BASE_URL"]
            until(lambda: asked(openai), 60)
            for headers in ({"traceparent": f"00-{TRACE}-00000000000000a2-01"}, {"x-conversation-id": SESSION}):
                ask(openai, headers)
            elsewhere.is_rated = True
            wiring = Wiring(RunDir.open(tmp_path / "runs" / "elsewhere"))
            rated = until(
                lambda: (found := ratings(wiring, broker)).keys() == {TRACE, conversation_key(SESSION)} and found
            )
            log = read_to_end(KafkaLog(broker), wiring.topics.name(Topic.REWARDS))
            said = [REWARDS.decode(record.value) for record in log]
            keys = [reward.idempotency_key for reward in said if reward.target is None and reward.name != THUMB]
            url, token = given[REWARDS_URL], given[REWARD_TOKEN]
            until(lambda: [receipt(url, token, key) for key in keys] == ["joined"] * 6, 30)
            status = json.dumps(run.ask("status"))
        finally:
            run.end()
    assert rated == {TRACE: [("quality", 4.0)] * 3, conversation_key(SESSION): [("tone", 1.0)] * 3}
    assert len(set(keys)) == len(keys) == 6
    assert "reason=503" in status and "sources_away{source=mlflow}" in status
    texts = [run.err.read_text(), *(path.read_text() for path in (tmp_path / "runs").rglob("*.log"))]
    assert not any("sk-of-elsewhere" in text for text in texts)


def ask(url: str, headers: dict[str, str]) -> None:
    """A call that says where it belongs."""
    body = {"model": "policy", "messages": [{"role": "user", "content": "what is 12 plus 30?"}]}
    urllib.request.urlopen(
        urllib.request.Request(f"{url}/chat/completions", json.dumps(body).encode(), headers)
    ).close()


def ratings(wiring: Wiring, broker: str) -> dict[str, list[tuple[str, float | None]]]:
    """Conversation -> (name, value) of what was said of it."""
    return {
        episode.conversation or "": [(reward.name, reward.value) for reward in episode.rewards if reward.name != THUMB]
        for episode in episodes(wiring, broker)
        if episode.rewards
    }
