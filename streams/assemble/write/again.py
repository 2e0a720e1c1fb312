"""An episode that a run recorded, made again of the facts that it was made of then. Pure.

In: the episode's id and key, why it closed, its facts as normalize makes them of the raw records. Out: its record on
`episodes`, as assemble writes it by the rules of now. Invariant: which facts those are, and that it closes, was decided
by the run that recorded it; the fold's links, counts and closes are not asked again. The order of the facts changes
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tracegrad.schemas.fold import Output
from tracegrad.schemas.ids import attempt_of
from tracegrad.schemas.log.made_of import origins_in
from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.metrics import Metrics
from tracegrad.schemas.records.episodes import Episode
from tracegrad.schemas.records.facts import EPISODE_EVENTS, CallFact, Facts
from tracegrad.schemas.topics import Topic, Topics

from ...config import StreamRules
from ..open_episode import OpenEpisode
from .emit import disposition_of, emit

Judge = Callable[[Episode, Sequence[CallFact]], Episode]
"""(an episode before rules reward it, its calls) -> the episode as it is judged now."""


def make_again(
    episode_id: str,
    key: str,
    closed_by: str,
    facts: Sequence[Output],
    *,
    rules: StreamRules,
    topics: Topics,
    metrics: Metrics,
    reward: Callable[[Episode], Episode],
    judge: Judge | None = None,
) -> tuple[Output, ...]:
    """The records of the episode; none, where the rules of now do not want it.

    Args:
        episode_id: as it was recorded.
        key: of its conversation; of a runner's attempt the id again.
        closed_by: as it was recorded.
        facts: records of `episode_events`, its own and those of traces that were forwarded to it.
        reward: as of `emit`.
        judge: who grades it anew, before rules reward it; None: what was said of it stays.
    """
    episode = OpenEpisode(episode_id, attempt_of(episode_id, rules.runs), partition=0, key=key)
    for output in facts:
        batch = EPISODE_EVENTS.decode(output.value)
        assert isinstance(batch, Facts)
        if batch.episode_id not in (episode_id, key):
            episode.sources.add(batch.episode_id)
        episode.origins.add_record(batch.facts, origins_in(output.headers))
        for fact in batch.facts:
            episode.add_fact(fact, rules.reward_sources)
    if disposition_of(episode, rules) != "emitted":
        return ()
    value = facts[-1].value if facts else b""
    record = Record(topic=topics.name(Topic.EPISODE_EVENTS), partition=0, offset=0, key=None, value=value)
    reward = judged(judge, episode, reward)
    return emit(episode, record, closed_by, rules=rules, topics=topics, metrics=metrics, reward=reward)


def judged(
    judge: Judge | None, episode: OpenEpisode, reward: Callable[[Episode], Episode]
) -> Callable[[Episode], Episode]:
    """Rewards by rules, behind what a judge gives."""
    if judge is None:
        return reward
    facts = [*episode.calls.values()]
    return lambda written: reward(judge(written, facts))
