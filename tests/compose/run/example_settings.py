"""Settings of a run as tests start from."""

from __future__ import annotations

import msgspec

from tracegrad.compose.run.settings import RunSettings
from tracegrad.producers.llm_gateway.config import PolicyConfig
from tracegrad.producers.rewards.config import FeedbackConfig
from tracegrad.producers.runner.config import AgentConfig, RewardConfig
from tracegrad.producers.tasks.config import TasksConfig
from tracegrad.streams.assemble.air.rules import AirConfig, AirRule
from tracegrad.streams.config import SelectConfig, StreamsConfig
from tracegrad.trainer.config import AlgorithmConfig

SETTINGS = RunSettings(
    run="mine",
    seed=3,
    agent=AgentConfig(command="python agent.py --fast", cwd="/somewhere"),
    tasks=TasksConfig(file="/somewhere/tasks.jsonl"),
    reward=RewardConfig(grader="/somewhere/grade.py:score", sources=("human:*",)),
    policy=PolicyConfig(model="/somewhere/model"),
    air=AirConfig(rules=(AirRule(name="ok", status="succeeded", value=0.5, cap=2),)),
    streams=StreamsConfig(workers=2),
)


CAPTURING = msgspec.structs.replace(
    SETTINGS,
    tasks=TasksConfig(eval_file="/somewhere/eval.jsonl"),
    select=SelectConfig(train=True),
    feedback=FeedbackConfig(),
    algorithm=AlgorithmConfig(recipe="rloo_batch"),
)
"""Trains on captured traffic, with held-out tasks."""
