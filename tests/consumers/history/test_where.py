"""What `--where` may ask of a source's episodes, and what it may not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.memory_log import MemoryLog
from tests.streams.credit.test_credit import member
from tests.streams.credit.test_segments import call as of_tokens
from tests.streams.make import TOPICS
from tests.versions import sampled_by
from tracegrad.consumers.episode_facts import BEFORE, FIELDS, SETTLED, EpisodeFacts, read_facts
from tracegrad.consumers.history.selection import fits, fitting, terms_of
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.log.made_of import MadeOf, made_of_header
from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.records.episodes import EPISODES, Episode, EpisodeCall
from tracegrad.schemas.records.rollouts import GroupRef
from tracegrad.schemas.topics import Topic


def call(agent: str, version: int, turn: int = 0) -> EpisodeCall:
    """Of three tokens."""
    made: EpisodeCall = of_tokens(f"{agent}-{turn}", [], [0, 0, 0])
    return msgspec.structs.replace(made, agent=agent, turn=turn, versions=(sampled_by(version),))


EPISODE = msgspec.structs.replace(
    member(0, calls=(call("planner", 4), call("coder", 5), call("planner", 6, turn=1)), task_id="task 7"),
    episode_id="e1",
    group=GroupRef(id="g1", size=2, member=0, index=0),
    services=("shop", "cart"),
    num_tools=3,
    num_tools_succeeded=2,
    duration_s=8.0,
)
CAPTURED = msgspec.structs.replace(
    EPISODE, episode_id="e2", rollout_id=None, group=None, task_id=None, calls=(), reward=None, conversation="c1"
)

OUTCOME = sorted(set(FIELDS).difference(BEFORE, SETTLED))


def facts(episode: Episode) -> EpisodeFacts:
    """Of its record."""
    value = EPISODES.encode(episode)
    return read_facts(Record(topic="episodes", partition=0, offset=0, key=None, value=value), "policy")


@pytest.mark.parametrize(
    "text",
    [
        "service=shop agent=planner",
        "service=cart agent!=coder agents!=writer",
        "task='task 7' purpose=train captured=no group=g* policy=pol*",
        "first_version=4 conversation=none",
        "first_version<5",
        "agents=coder turns=2 calls>2 tokens=9 tools>=3 tools_succeeded<3",
        "reward>0 state=succeeded closed_by=complete final=yes duration_s<=8",
    ],
)
def test_an_episode_fits_what_stands_on_it(text: str) -> None:
    """Of agents the first is known beforehand; which others it called came of it."""
    terms = terms_of(text, may_see_outcome=True)
    assert fits(facts(EPISODE), terms)


@pytest.mark.parametrize(
    "text",
    ["service=bank", "agent=coder", "captured=yes", "first_version>4", "reward>1", "group=c1", "conversation!=none"],
)
def test_an_episode_of_which_a_term_does_not_hold_does_not_fit(text: str) -> None:
    """However many others hold."""
    assert not fits(facts(EPISODE), terms_of(f"service=shop {text}", may_see_outcome=True))


def test_what_is_not_known_of_an_episode_is_none() -> None:
    """A captured one has no task, no reward, perhaps no call; it would train as a group of its own."""
    words = "task=none captured=yes agent=none first_version=none reward=none group=e2 conversation=c1 turns=0"
    assert fits(facts(CAPTURED), terms_of(words, may_see_outcome=True))
    assert not fits(facts(CAPTURED), terms_of("reward<=0", may_see_outcome=True))


@pytest.mark.parametrize("field", OUTCOME)
def test_the_outcome_chooses_for_filter_alone(field: str) -> None:
    """The message says why, what may be asked instead, and where it may."""
    assert terms_of(f"{field}=none", may_see_outcome=True)
    with pytest.raises(
        ConfigurationError, match=f"known before the outcome .*, got {field}: .*good luck.*--mode filter"
    ):
        terms_of(f"service=shop {field}=none", may_see_outcome=False)


@pytest.mark.parametrize("field", sorted(BEFORE))
def test_facts_known_beforehand_choose_for_any_mode(field: str) -> None:
    """Each of them."""
    assert terms_of(f"{field}=none", may_see_outcome=False)[0].field == field


@pytest.mark.parametrize("field", SETTLED)
def test_what_no_record_of_an_episode_tells_chooses_nothing(field: str) -> None:
    """It is a fact all the same: who asks is told where it may be asked."""
    with pytest.raises(ConfigurationError, match=f"--where: .*own record, got {field}, .*tracegrad episodes"):
        terms_of(f"captured=yes {field}=none", may_see_outcome=True)


@pytest.mark.parametrize("text", ["shop", "services=shop", "reward>much", "captured>yes"])
def test_what_is_not_understood_is_refused_with_the_option(text: str) -> None:
    """And with the place in it."""
    with pytest.raises(ConfigurationError, match=r"--where: expected .* at character \d+"):
        terms_of(text, may_see_outcome=True)


def test_of_an_episode_the_greatest_revision_counts_and_what_cannot_be_read_fits_nothing() -> None:
    """As for all that is made again; a record that names no positions is left out."""
    log = MemoryLog()
    log.create_topics(TOPICS, policies=["policy"], partitions=1)

    def write(episode: Episode, revision: int, value: bytes | None = None, **changes: Any) -> None:
        made = MadeOf(id=episode.episode_id, key="k", group="g", closed_by="complete", revision=revision)
        body = EPISODES.encode(msgspec.structs.replace(episode, **changes)) if value is None else value
        topic = TOPICS.name(Topic.EPISODES)
        log.writer().append(topic, key=b"k", value=body, headers=made_of_header(made), partition=0)

    write(EPISODE, 0, reward=0.0)
    write(EPISODE, 1, reward=1.0)
    write(EPISODE, 1, reward=0.0)
    write(EPISODE, 0, reward=0.0)
    write(CAPTURED, 0, b"no json")
    topic = TOPICS.name(Topic.EPISODES)
    log.writer().append(topic, key=b"k", value=EPISODES.encode(msgspec.structs.replace(EPISODE, episode_id="e3")))
    assert fitting(log, TOPICS, terms_of("reward=1", may_see_outcome=True), "policy") == {"e1"}
    assert fitting(log, TOPICS, terms_of("service!=bank", may_see_outcome=False), "policy") == {"e1"}
