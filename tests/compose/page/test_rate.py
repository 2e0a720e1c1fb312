"""A score that is given on the page, through the run's real rewards gateway."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.consumers.audit.rated_run import rated_run
from tests.consumers.audit.small_run import memory_log as audited
from tests.consumers.page.looking import board_over, episode_of
from tests.memory_log import MemoryLog
from tests.producers.keys import KEY, RUN_HASH
from tests.producers.rewards.listening import listening
from tests.serving import free_port, until
from tracegrad.compose.page.rate import rater_at
from tracegrad.consumers.page.board import Rater, Rating
from tracegrad.consumers.page.episodes.rate import form_of, rate
from tracegrad.producers.feedback_names import RangeConfig
from tracegrad.producers.rewards.config import FeedbackConfig
from tracegrad.schemas.credentials import credential, feedback_holder
from tracegrad.schemas.errors import RequestError, UnavailableError
from tracegrad.schemas.ids import RunName, new_call
from tracegrad.schemas.records.rollouts import REWARDS
from tracegrad.schemas.topics import Topic, Topics

pytestmark = pytest.mark.slow

TOPICS = Topics(run=RunName("test"))
CONFIG = FeedbackConfig(names={"thumb": RangeConfig(low=0.0, high=1.0)})
TRACE = "5e" * 16
IDEMPOTENCY = "0" * 32
TOKEN = credential(KEY, feedback_holder(RUN_HASH))


@pytest.fixture
def url(memory_log: MemoryLog) -> Iterator[str]:
    """Of a gateway that listens."""
    with listening(memory_log, TOPICS, CONFIG) as found:
        yield found


def rater(url: str, token: str = TOKEN) -> Rater:
    """Of the run."""
    return rater_at(url, token, CONFIG, is_trained_on=True)


def rating(value: float = 1.0, **target: str) -> Rating:
    """One piece."""
    return Rating(target or {"trace_id": TRACE}, "thumb", value, "good", IDEMPOTENCY)


def test_a_score_is_on_rewards_as_any_feedback(url: str, memory_log: MemoryLog) -> None:
    """And what became of it is told; under the same key it is revised."""
    given = rater(url)
    answer = new_call(TRACE)
    given.send(rating(1.0, response_id=answer))
    given.send(rating(0.0, response_id=answer))
    records = [REWARDS.decode(record.value) for record in memory_log.records(TOPICS.name(Topic.REWARDS))]
    assert [(one.value, one.target, one.source, one.reason, one.idempotency_key) for one in records] == [
        (value, answer, "feedback", "good", IDEMPOTENCY) for value in (1.0, 0.0)
    ]
    assert {one.conversation_key for one in records} == {TRACE}
    until(lambda: [one["value"] for one in given.receipts(IDEMPOTENCY)] == [0.0])
    assert given.receipts(IDEMPOTENCY)[0]["state"] == "accepted"


def test_to_change_a_score_revises_it(url: str, tmp_path: Path) -> None:
    """One of the whole conversation too, by what the page's form holds then: one piece by the receipts."""
    board = board_over(audited(rated_run()), tmp_path)
    board.about = msgspec.structs.replace(board.about, is_live=True)
    given = board.rater = rater(url)
    episode, closed_ms = episode_of(board)
    first = form_of(board, episode, closed_ms)
    fields = {"what": "conversation", "name": "thumb", "value": "1", "reason": "", "key": first.key}
    key = rate(board, episode.episode_id, fields)
    change = form_of(board, episode, closed_ms, key)
    again = {**fields, "what": next(iter(change.what)), "name": change.name, "value": "0", "key": change.key}
    assert rate(board, episode.episode_id, again) == key
    until(lambda: [one["value"] for one in given.receipts(key)] == [0.0])


def test_a_refusal_is_told_in_the_gateways_words(url: str) -> None:
    """Of a value out of range, and of a token that is not the run's."""
    with pytest.raises(RequestError, match="value"):
        rater(url).send(rating(7.0))
    with pytest.raises(RequestError, match="reward token"):
        rater(url, "rf-wrong").send(rating())
    assert rater(url).receipts("1" * 32) == [], "nothing was said under it"


def test_a_gateway_that_is_away_is_told() -> None:
    """In time."""
    given = rater_at(f"http://127.0.0.1:{free_port()}", "t", CONFIG, is_trained_on=True, patience_s=0.3)
    with pytest.raises(UnavailableError, match="send it again"):
        given.send(rating())
    with pytest.raises(UnavailableError):
        given.receipts(IDEMPOTENCY)
