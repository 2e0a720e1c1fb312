"""How busy an engine is: what vLLM says of itself, in bounds, and nothing where it does not say it."""

from __future__ import annotations

import json
from collections.abc import Callable

import httpx
import pytest

from tracegrad.consumers.engine import load
from tracegrad.consumers.engine.load import EngineLoad
from tracegrad.schemas.metrics import ENGINE_LOOKS_FAILED, Metrics

METRICS = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="policy"} 12.0
vllm:num_requests_waiting{engine="0",model_name="policy"} 3.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="policy",reason="capacity"} 3.0
vllm:generation_tokens_total{engine="0",model_name="policy"} TOKENS
vllm:generation_tokens_created{engine="0",model_name="policy"} 1.7955426154524717e+09
"""
"""As vLLM 0.32 writes them, but for all others."""
INFO = {"vllm_config": {"scheduler_config": {"max_num_seqs": 128}}, "vllm_env": {}}


class Engine:
    """Answers as told; its clock is the caller's."""

    def __init__(self) -> None:
        self.metrics, self.tokens, self.now = METRICS, 1000.0, 0.0
        self.asked: list[str] = []
        self.counted = Metrics()
        client = httpx.Client(base_url="http://engine", transport=httpx.MockTransport(self._answer))
        self.load = EngineLoad(client, self.counted, clock=lambda: self.now)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request.url.path)
        if request.url.path == "/server_info":
            return httpx.Response(200, content=json.dumps(INFO))
        if not self.metrics:
            raise httpx.ConnectError("away")
        return httpx.Response(200, content=self.metrics.replace("TOKENS", f"{self.tokens:.1f}"))

    def look(self, after_s: float = 2.0) -> dict[str, float]:
        """What is told then."""
        self.now += after_s
        self.load.look()
        return self.counted.snapshot()


@pytest.fixture(name="engine")
def made() -> Engine:
    """That answers well."""
    return Engine()


def test_slots_requests_and_tokens_are_told(engine: Engine) -> None:
    """Tokens from the second look on, by what came between the two."""
    told = {"engine_slots": 128, "engine_slots_used": 12, "engine_requests_waiting": 3}
    assert engine.look() == told
    engine.tokens += 500
    assert engine.look(after_s=4.0) == told | {"engine_tokens_per_second": 125}


def test_schedulers_of_one_engine_are_taken_together(engine: Engine) -> None:
    """With data parallelism each has its own series, and its own slots."""
    engine.metrics += METRICS.replace('engine="0"', 'engine="1"')
    assert engine.look() == {"engine_slots": 256, "engine_slots_used": 24, "engine_requests_waiting": 6}


def test_it_is_asked_every_two_seconds_and_for_its_slots_once(engine: Engine) -> None:
    """However often the loop turns."""
    for _ in range(40):
        engine.look(after_s=0.1)
    assert engine.asked == ["/metrics", "/server_info", "/metrics"]


def test_an_engine_that_was_started_again_is_asked_anew(engine: Engine) -> None:
    """Its tokens begin at none, and it may have other slots."""
    engine.look()
    kept, engine.metrics = engine.metrics, ""
    assert engine.look() == {"engine_looks_failed": 1}
    engine.metrics, engine.tokens = kept, 10.0
    assert "engine_tokens_per_second" not in engine.look()
    assert engine.asked.count("/server_info") == 2


@pytest.mark.parametrize(
    "break_it",
    [
        pytest.param(lambda text: "", id="away"),
        pytest.param(lambda text: "<html>", id="another program"),
        pytest.param(lambda text: text.replace("12.0", "many"), id="no number"),
        pytest.param(lambda text: text + "#" * load._MAX_BYTES, id="without end"),
    ],
)
def test_what_is_no_answer_of_an_engine_is_counted_and_leaves_no_figure(
    engine: Engine, break_it: Callable[[str], str]
) -> None:
    """Nobody takes an old one for one of now."""
    engine.look()
    engine.metrics = break_it(engine.metrics)
    assert engine.look() == {"engine_looks_failed": 1}
    assert engine.counted.value(ENGINE_LOOKS_FAILED) == 1
