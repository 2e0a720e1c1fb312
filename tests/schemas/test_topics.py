"""The registry names every topic once, completely, and as users may rely on."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.reference.topics import CO_PARTITIONED, topics_markdown
from tracegrad.compose.kafka.client_settings import KafkaConfig
from tracegrad.compose.kafka.topic_admin import plan_topics
from tracegrad.schemas import keys
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.ids import RunName
from tracegrad.schemas.topics import INPUTS, REGISTRY, Stage, Topic, Topics

ROOT = Path(__file__).parents[2]
TOPICS = Topics(run=RunName("mine"), prefix="team.", renames={"otlp_spans": "collector_spans"})


def test_every_topic_is_registered_once() -> None:
    """In the enum and in the registry alike."""
    assert [spec.topic for spec in REGISTRY] == list(dict.fromkeys(spec.topic for spec in REGISTRY))
    assert {spec.topic for spec in REGISTRY} == set(Topic)


def test_names_follow_the_scope() -> None:
    """Raw topics bear the prefix, a run's topics prefix and run; a renamed one its own name."""
    assert TOPICS.name(Topic.LLM_CALLS) == "team.llm_calls"
    assert TOPICS.name(Topic.EPISODES) == "team.mine.episodes"
    assert TOPICS.name(Topic.OTLP_SPANS) == "collector_spans"
    assert TOPICS.group(Stage.CREDIT) == "team.mine.credit"
    names = [TOPICS.name(topic) for topic in Topic]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", name) for name in names)


@pytest.mark.parametrize("name", ["episodes", "otlp_span", ""])
def test_only_raw_topics_are_renamed(name: str) -> None:
    """Others belong to the run."""
    with pytest.raises(ConfigurationError, match="renamed"):
        Topics(run=RunName("mine"), renames={name: "x"})


def test_topics_where_fencing_matters_are_not_compacted() -> None:
    """After compaction a zombie's later record would replace the good one; only markers and reports are compacted."""
    compacted = {spec.topic for spec in REGISTRY if "compact" in spec.settings.get("cleanup.policy", "")}
    assert compacted == {Topic.CLOSED_EPISODES, Topic.CLOSED_GROUPS, Topic.PROCESS_STATUS}


def test_markers_outlive_what_they_mark() -> None:
    """Else a late fact would open a closed episode again."""
    kept = {spec.topic: int(spec.settings["retention.ms"]) for spec in REGISTRY}
    assert kept[Topic.EPISODE_EVENTS] >= 24 * 3600 * 1000
    passing = {Topic.EPISODE_EVENTS, Topic.EPISODE_SCORES, Topic.PROCESS_STATUS}
    assert all(kept[topic] == -1 for topic in set(Topic) - passing)


def test_plan_has_equal_counts_where_markers_follow() -> None:
    """A marker lies in the partition number of its input."""
    plans = {
        plan.name: plan
        for plan in plan_topics(TOPICS, policies=["a", "b"], kafka=KafkaConfig(partitions=6, replication=3))
    }
    assert {plans[TOPICS.name(topic)].partitions for topic in CO_PARTITIONED} == {6}
    assert plans[TOPICS.name(Topic.TRANSITIONS)].partitions == 2
    assert plans[TOPICS.name(Topic.WEIGHTS)].partitions == 1
    assert all(plan.replication == 3 for plan in plans.values())


def test_each_topic_has_a_message_limit_of_its_own() -> None:
    """8 MiB; 32 where groups lie, and where any topic's record may end; a key overrides either."""
    topics = msgspec.structs.replace(TOPICS, max_message_bytes={"episodes": 16 << 20, "transitions": 4 << 20})
    for given in (TOPICS, topics):
        plans = {plan.name: plan for plan in plan_topics(given, policies=["a"], kafka=KafkaConfig(partitions=1))}
        defaults = dict.fromkeys(map(str, Topic), 8 << 20)
        defaults |= dict.fromkeys(("episodes", "transitions", "advantages", "dead_letters"), 32 << 20)
        limits = {topic.value: int(plans[given.name(topic)].settings["max.message.bytes"]) for topic in Topic}
        assert limits == {**defaults, **given.max_message_bytes}


@pytest.mark.parametrize("wrong", [{"nowhere": 8 << 20}, {"episodes": 1000}, {"episodes": 100 << 20}], ids=str)
def test_a_message_limit_that_cannot_be_is_refused(wrong: dict[str, int]) -> None:
    """An unknown topic, no room for a value, more than clients send."""
    with pytest.raises(ConfigurationError, match=r"\[kafka.max_message_bytes\]"):
        Topics(run=RunName("mine"), max_message_bytes=wrong)


@pytest.mark.parametrize("wrong", [{"partitions": 0}, {"replication": 0}], ids=str)
def test_counts_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    """Before any cluster is asked."""
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        KafkaConfig(**wrong)


def test_a_plan_without_a_policy_is_refused() -> None:
    """Nobody could be trained."""
    with pytest.raises(ConfigurationError, match="policy"):
        plan_topics(TOPICS, policies=[], kafka=KafkaConfig())


def test_normalize_reads_raw_topics_only() -> None:
    """A run is a view of raw topics from chosen offsets, so a replay needs nothing else."""
    raw = {spec.topic for spec in REGISTRY if spec.raw}
    assert set(INPUTS[Stage.NORMALIZE]) == raw


KEYS = {name for name in vars(keys) if name.endswith("_key")}
HANDED_ON = {
    "self._key",
    "output.key",
    "record.key",
    "episode.key",
    "key",
    "caller.record_key",
    "asked.caller.record_key",
}
"""Made by a key function further up."""


def test_every_writer_takes_its_key_from_the_registry() -> None:
    """What is appended, or handed to the shell to be, bears a key that a function of `schemas/topics.py` made."""
    offences = []
    for room in ("producers", "streams", "trainer", "consumers", "compose"):
        for path in (ROOT / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.Call):
                    continue
                writer = ast.unparse(node.func).rpartition(".")[2]
                for given in node.keywords:
                    made = isinstance(given.value, ast.Call) and ast.unparse(given.value.func) in KEYS
                    is_key = given.arg == "key" and writer in ("append", "Output")
                    if is_key and not made and ast.unparse(given.value) not in HANDED_ON:
                        offences.append(f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(given.value)}")
    assert offences == []


def test_each_topic_names_a_key_function_and_each_function_has_a_topic() -> None:
    """Whose first line the page prints."""
    named = {spec.key.__name__ for spec in REGISTRY}
    assert named == KEYS


def test_keys_are_the_ids_as_text() -> None:
    """Records of one episode, group, policy or engine have one key, whoever writes them."""
    assert [keys.episode_key(*of) for of in (("r", "t"), (None, "t"), (None, None))] == [b"r", b"t", b""]
    assert [keys.episode_key(of, "t", conversation="c") for of in ("r", None)] == [b"r", b"c"]
    assert (keys.group_key("g", "e"), keys.group_key(None, "e")) == (b"g", b"e")
    plain = (keys.trace_key, keys.rollout_key, keys.closed_key, keys.policy_key, keys.engine_key)
    assert [key("x") for key in plain] == [b"x"] * 5


def test_page_is_the_registry() -> None:
    """docs/topics.md is generated: run `python -m tests.reference.topics > docs/topics.md`."""
    assert (ROOT / "docs" / "topics.md").read_text() == topics_markdown()
