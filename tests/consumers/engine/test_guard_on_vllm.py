"""Every route of a real vLLM: without the engine's token none but two is answered, and nothing is changed."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.engine_fixture import RunningEngine

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

OPEN = {("GET", "/health"), ("GET", "/metrics")}
HIDDEN = {("GET", "/metrics"), ("GET", "/docs"), ("GET", "/openapi.json"), ("POST", "/no-such-route")}
"""That its own list of routes leaves out."""


def routes_of(engine: RunningEngine) -> set[tuple[str, str]]:
    """Method and path of each, as vLLM itself lists them to who has the token."""
    paths: dict[str, dict[str, Any]] = engine.client.get("/openapi.json").json()["paths"]
    return {(verb.upper(), path) for path, verbs in paths.items() for verb in verbs} | HIDDEN


def test_no_route_but_two_is_answered_without_the_token(engine: RunningEngine) -> None:
    """Pause, RPC and weights among them; asked by anybody, the engine is neither paused nor asleep nor relabelled."""
    before = engine.control.status()
    routes = routes_of(engine)
    assert {("POST", "/pause"), ("POST", "/collective_rpc"), ("POST", "/sleep"), ("POST", "/v1/completions")} <= routes
    with httpx.Client(base_url=engine.url, timeout=30.0) as anybody:
        for headers in ({}, {"authorization": "Bearer guess"}):
            answers = {
                (verb, path): anybody.request(verb, path, headers=headers, json={}).status_code for verb, path in routes
            }
            assert {route for route, status in answers.items() if status != 401} == OPEN
            assert {answers[route] for route in OPEN} == {200}
    assert engine.control.status() == before
    assert not engine.client.get("/is_sleeping").json()["is_sleeping"]
