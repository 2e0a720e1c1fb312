"""The accounting of captured traces whose facts assemble forwarded: each counts once."""

from __future__ import annotations

import copy
from functools import lru_cache

from tests.consumers.audit.small_run import audited
from tests.streams.assemble.test_agent_rewards import CALLS, R1, TRUSTED, says
from tests.streams.make import Streams, agent_span, call, closed, config, otlp, reward
from tests.streams.make import event as rollout_event
from tests.streams.test_log_events import event
from tests.versions import sampled_by
from tracegrad.schemas.ids import conversation_key
from tracegrad.schemas.records.calls import Purpose
from tracegrad.schemas.topics import Topic
from tracegrad.streams.config import SelectConfig


@lru_cache
def forwarded_run() -> Streams:
    """A captured trace whose call names itself and whose span names a conversation; all of it closed."""
    streams = Streams(config(select=SelectConfig(capture_all=True)))
    trace = "ab" * 16
    streams.feed(call("one", None, [1], [2], trace_id=trace, purpose=Purpose.UNKNOWN, versions=(sampled_by(0),)))
    streams.feed(otlp(agent_span(trace, 1, "solver", gen_ai__conversation__id="c-17")))
    streams.tick(*range(0, 100, 20))
    return streams


def test_what_was_forwarded_counts_once_and_where_it_went() -> None:
    """The call lies under two keys on `episode_events`, and in one episode."""
    streams = forwarded_run()
    assert len(streams.log[Topic.CLOSED_EPISODES]) == 2
    report = audited(streams)
    assert report.calls.terms == {"in episodes": 1}
    assert [line for line in report.missing if "version" not in line] == []


def test_a_forwarded_call_that_did_not_arrive_is_missing() -> None:
    """Its trace's marker says that it went on; nothing is there."""
    streams = copy.copy(forwarded_run())
    streams.log = dict(streams.log)
    key = conversation_key("c-17").encode()
    streams.log[Topic.EPISODE_EVENTS] = [one for one in streams.log[Topic.EPISODE_EVENTS] if one.key != key]
    streams.log[Topic.EPISODES] = []
    assert audited(streams).calls.terms == {"missing": 1}


def test_facts_of_log_events_are_accounted_for() -> None:
    """Their raw records are not kept by name; nor is anything missing."""
    streams = Streams(config(select=SelectConfig(capture_all=True)))
    trace = "ab" * 16
    streams.feed(otlp(agent_span(trace, 1, "solver")))
    streams.append(Topic.OTLP_LOGS, event("gen_ai.choice", 1, {"message": {"content": "ok"}}, trace=trace))
    assert [line for line in audited(streams).missing if "version" not in line] == []


def test_what_an_agent_says_of_its_reward_on_a_span_lies_on_no_topic() -> None:
    """It is in the episode, where the configuration trusts it, and was never posted."""
    streams = Streams(config(reward_sources=TRUSTED))
    end = rollout_event(R1, spans_exported=1, rewards_awaited=("reward", "agent"))
    streams.feed(*CALLS, says(1, 0.5), closed(R1, CALLS), reward(R1), end)
    streams.tick(*range(0, 2000, 100))
    assert len(streams.episodes[0].rewards) == 2
    assert [line for line in audited(streams).missing if line.startswith("reward")] == []
