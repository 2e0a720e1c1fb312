"""A captured conversation that people rate."""

from __future__ import annotations

from tests.streams.assemble.test_feedback import CALLS, said
from tests.streams.make import Streams, config
from tracegrad.streams.config import SelectConfig


def rated_run() -> Streams:
    """A captured conversation that two people rate, under keys of their own, one of which looks like an id of ours."""
    streams = Streams(config(reward_sources=("feedback",), select=SelectConfig(capture_all=True)))
    streams.feed(*CALLS, said(1.0, "k1"), said(0.0, "0123abcd/x"))
    streams.tick(0.0, 100.0)
    return streams
