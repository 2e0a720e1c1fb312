"""What another model answered is shown on the episode, and is no call of the policy's."""

from __future__ import annotations

from typing import Any

import pytest

from tests.consumers.audit.small_run import RING, memory_log
from tests.schemas.released import UPSTREAM_CALL
from tests.streams.assemble.test_links import KEY, OTHER, TRACE, captured, close, episodes, streams
from tests.streams.make import (
    RUN_HASH,
    TOPICS,
    agent_span,
    call,
    closed,
    event,
    llm_span,
    otlp,
    reward,
    rollout,
    signed_by,
    span,
)
from tracegrad.consumers.audit.account import audit
from tracegrad.schemas.ids import CallId, RunHash, new_call, stretch_id
from tracegrad.schemas.metrics import CONTEXT_CALLS
from tracegrad.schemas.records.calls import LLM_CALLS, UpstreamCall
from tracegrad.schemas.topics import Topic


def answered(name: str, **changes: Any) -> UpstreamCall:
    """One that the gateway passed on."""
    fields: dict[str, Any] = {
        **{name: getattr(UPSTREAM_CALL, name) for name in UPSTREAM_CALL.__struct_fields__},
        "call_id": CallId(new_call(TRACE, lambda below: sum(name.encode()) % below)),
        "response_id": f"chatcmpl-{name}",
        "rollout_id": None,
        "attempt_id": None,
        "conversation_key": None,
        "trace_id": TRACE,
        "parent_span_id": None,
    }
    return UpstreamCall(**{**fields, **changes})


@pytest.mark.parametrize("calls_first", [True, False])
def test_an_agent_before_another_model_alone_has_an_episode(calls_first: bool) -> None:
    """Its agents are known as those of the policy's calls are; a later request makes the next episode."""
    run = streams()
    known = answered("a"), answered("b", parent_span_id=f"{4:016x}")
    model = span(TRACE, 2, "chat", parent=1, gen_ai__operation__name="chat", gen_ai__response__id="chatcmpl-a")
    spans = otlp(agent_span(TRACE, 1, "planner"), model, agent_span(TRACE, 3, "critic"), span(TRACE, 4, parent=3))
    run.feed(*((*known, spans) if calls_first else (spans, *known)))
    close(run)
    later = answered("c")
    run.feed(later)
    run.tick(*range(300, 400, 20))
    first, second = (episodes(run)[id_] for id_ in (TRACE, stretch_id(TRACE, later.call_id)))
    assert [(one.response_id, one.agent, one.joined_by) for one in first.context_calls] == [
        ("chatcmpl-a", "planner", "response_id"),
        ("chatcmpl-b", "critic", "traceparent"),
    ]
    assert [(one.model, one.status, one.sampled_tokens) for one in second.context_calls] == [("gpt-4o", 200, 34)]
    assert first.calls == second.calls == ()
    assert run.normalize.metrics.value(CONTEXT_CALLS) == 3
    report = audit(memory_log(run), TOPICS, RunHash(RUN_HASH), "policy", ring=RING)
    assert report.calls.terms == {} and report.missing == []


def test_it_goes_where_its_conversation_is() -> None:
    """With its trace, and beside the policy's calls, of which it changes nothing."""
    run = streams()
    own = captured(KEY, "own", conversation_key=KEY, trace_id=TRACE, parent_span_id=f"{2:016x}")
    run.feed(answered("a", trace_id=OTHER, conversation_key=KEY, parent_span_id=f"{2:016x}"), own)
    run.feed(*(otlp(agent_span(trace, 1, "solver"), span(trace, 2, parent=1)) for trace in (TRACE, OTHER)))
    close(run)
    episode = run.episode
    assert [one.agent for one in episode.calls] == [one.agent for one in episode.context_calls] == ["solver"]


@pytest.mark.parametrize("parent", [None, f"{3:016x}"], ids=["no_place", "place"])
def test_a_span_that_another_models_call_is_in_tells_of_no_call_of_the_policys(parent: str | None) -> None:
    """However alike the answers are: the policy's may have no span. Where nothing else is known, the text tells."""
    run = streams()
    run.feed(answered("a", parent_span_id=parent), captured(TRACE, "own", trace_id=TRACE, content="yes"))
    said = '[{"role": "assistant", "parts": [{"type": "text", "content": "yes"}]}]'
    model = span(TRACE, 2, "chat", parent=1, gen_ai__operation__name="chat", gen_ai__output__messages=said)
    run.feed(otlp(agent_span(TRACE, 1, "planner"), model, span(TRACE, 3, parent=2), agent_span(TRACE, 4, "worker")))
    close(run)
    episode = run.episode
    expected = ("content", "planner") if parent is None else ("none", None)
    assert [(one.joined_by, one.agent) for one in episode.calls] == [expected]
    assert [one.agent for one in episode.context_calls] == [None if parent is None else "planner"]


def test_an_attempts_episode_closes_by_the_calls_of_its_policy() -> None:
    """What another model answered is neither counted nor awaited."""
    run, own = streams(), rollout(1)
    made = call("a", own, [1], [2])
    other = answered("a", rollout_id=own, attempt_id="a001", trace_id=own + "a001")
    run.append(Topic.LLM_CALLS, LLM_CALLS.encode(other), headers=signed_by(RUN_HASH))
    run.feed(made, otlp(llm_span(own + "a001", 1, "a")), closed(own, [made]), reward(own), event(own))
    episode = run.episode
    assert (episode.closed_by, len(episode.calls), len(episode.context_calls)) == ("complete", 1, 1)
    assert (episode.num_joined_by, episode.reward) == ({"response_id": 1}, 1.0)
