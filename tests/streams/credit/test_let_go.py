"""What is let go of counts for no episode that the partition tells of behind that, wherever the episodes are read."""

from __future__ import annotations

import itertools

from tests.streams.assemble.test_feedback import KEY, said
from tests.streams.credit.strategies.test_conversations import TURNS, conversation
from tests.streams.credit.test_feedback_window import Run, second_request
from tests.streams.make import TOPICS, call_id
from tracegrad.schemas.ids import stretch_id
from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.records.episodes import CLOSED, EPISODE_SCORES, UNCLAIMED, EmittedEpisode, Score
from tracegrad.schemas.records.facts import Close
from tracegrad.schemas.topics import Topic

SECOND = stretch_id(KEY, call_id("z"))
SCORES: tuple[Score | EmittedEpisode | Close, ...] = (
    EmittedEpisode(key=KEY, episode_id=KEY),
    # When the second answer was in flight, so that it is about both.
    Score(key=KEY, reward=said(1.0, "k1", at_ms=60_000)),
    Close(episode_id=KEY, reason=UNCLAIMED, before=2),
    EmittedEpisode(key=KEY, episode_id=SECOND),
    Close(episode_id=KEY, reason="feedback"),
    Close(episode_id=SECOND, reason="feedback"),
)


def test_what_was_let_go_before_an_episode_was_told_of_is_not_that_episodes() -> None:
    """Also while it is held for an earlier one: a worker that had read less would have it no more."""
    run = Run()
    run.feed(*conversation(*TURNS))
    run.wait(20)
    run.feed(second_request())
    run.wait(20)
    episodes, credit = run.streams.log[Topic.EPISODES], run.streams.credit
    name = TOPICS.name(Topic.EPISODE_SCORES)
    scores = [
        Record(topic=name, partition=0, offset=offset, key=KEY.encode(), value=EPISODE_SCORES.encode(told))
        for offset, told in enumerate(SCORES)
    ]
    assert len(episodes) == 2
    for places in itertools.combinations(range(len(scores) + 2), 2):
        credit.reset()
        left = {"episodes": iter(episodes), "scores": iter(scores)}
        order = ["episodes" if place in places else "scores" for place in range(len(scores) + 2)]
        emissions = [credit.fold(next(left[which])) for which in order]
        markers = [CLOSED.decode(one.marker.value) for one in emissions if one.marker is not None]
        assert {one.id: one.disposition for one in markers} == {KEY: "emitted", SECOND: "unscored"}, order
