"""What points at what between the topics of a run: each pointer whose other end is gone is named.

In: Evidence and the surviving steps. Out: `what: id` lines. Invariant: a link is judged only where retention has
taken nothing and the stage that should have made it has committed past its input, so a living run raises no alarm.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tracegrad.schemas.ids import run_hash_of
from tracegrad.schemas.log.protocol import Position
from tracegrad.schemas.records.training import TrainingStep
from tracegrad.schemas.topics import Stage, Topic

from .read import Evidence

__all__ = ["check_links"]

_RAW = {
    "call": Topic.LLM_CALLS,
    "calls_closed": Topic.LLM_CALLS,
    "event": Topic.ROLLOUT_EVENTS,
    "reward": Topic.REWARDS,
    "span": Topic.OTLP_SPANS,
}


def check_links(seen: Evidence, steps: Sequence[TrainingStep], *, is_live: bool) -> list[str]:
    """Every broken pointer."""
    return [
        *_raw_to_facts(seen),
        *_facts_to_raw(seen),
        *_episodes_to_raw(seen),
        *_markers(seen),
        *_groups(seen),
        *_rollouts(seen),
        *_versions(seen, steps, is_live=is_live),
    ]


def _raw_to_facts(seen: Evidence) -> Iterator[str]:
    if Topic.EPISODE_EVENTS in seen.expired:
        return
    for key, position in seen.raw.items():
        if key in seen.facts or key in seen.dead_facts or position in seen.dead:
            continue
        if seen.is_done(Stage.NORMALIZE, position) and not key.startswith("call:"):
            yield f"never normalised: {key}"


def _facts_to_raw(seen: Evidence) -> Iterator[str]:
    for key, episode in seen.facts.items():
        kind, _, rest = key.partition(":")
        if key in seen.raw or _RAW[kind] in seen.expired:
            continue
        # Facts of other runs and of captured agents' spans are here by selection; their raw keys were not kept.
        if (kind == "span" or "/" in rest) and run_hash_of(rest) != seen.run:
            continue
        if kind == "call" and rest in seen.foreign_calls:
            continue
        yield f"fact of episode {episode} without its raw record: {key}"


def _episodes_to_raw(seen: Evidence) -> Iterator[str]:
    for id_, episode in seen.episodes.items():
        if Topic.LLM_CALLS not in seen.expired:
            for call in sorted(episode.calls - seen.foreign_calls):
                if f"call:{call}" not in seen.raw:
                    yield f"call in episode {id_} but not on llm_calls: {call}"
        if Topic.REWARDS not in seen.expired:
            for reward in episode.rewards:
                if run_hash_of(reward) == seen.run and f"reward:{reward}" not in seen.raw:
                    yield f"reward in episode {id_} but not on rewards: {reward}"
        if Topic.EPISODE_EVENTS not in seen.expired:
            for call in sorted(episode.calls):
                if f"call:{call}" not in seen.facts:
                    yield f"call in episode {id_} but not on episode_events: {call}"
            if id_ not in seen.fact_places:
                yield f"episode without facts: {id_}"
        if episode.closed_by == "complete":
            for call in sorted(seen.outcomes.get(id_, frozenset()) - episode.calls):
                yield f"call named by calls_closed but not in its complete episode {id_}: {call}"
    # An undecodable call cannot be told by its id: a named id that is not there may be one of those.
    if Topic.LLM_CALLS in seen.expired or seen.undecodable_calls:
        return
    for id_, named in seen.outcomes.items():
        for call in sorted(named):
            if f"call:{call}" not in seen.raw:
                yield f"call named by calls_closed of {id_} but not on llm_calls: {call}"


def _markers(seen: Evidence) -> Iterator[str]:
    for id_, disposition in seen.markers.items():
        if disposition == "emitted" and id_ not in seen.episodes and Topic.EPISODES not in seen.expired:
            yield f"closed but not on episodes: {id_}"
    if Topic.EPISODE_EVENTS in seen.expired:
        return
    for id_, places in seen.fact_places.items():
        is_folded = all(seen.is_done(Stage.ASSEMBLE, place) for place in places)
        if id_ not in seen.markers and is_folded and not all(place in seen.dead for place in places):
            yield f"folded but without a closed marker: {id_}"


def _groups(seen: Evidence) -> Iterator[str]:
    places: dict[str, list[Position]] = {}
    for episode in seen.episodes.values():
        if episode.group is not None:
            places.setdefault(episode.group, []).append(episode.position)
    for id_ in sorted(seen.group_markers - set(seen.groups)):
        if Topic.TRANSITIONS not in seen.expired:
            yield f"closed but not on transitions: {id_}"
    for id_, (_, summary) in seen.groups.items():
        done = all(seen.is_done(Stage.CREDIT, place) for place in places.get(id_, []))
        if id_ not in seen.group_markers and done:
            yield f"group without a closed marker: {id_}"
        if Topic.EPISODES in seen.expired:
            continue
        for member in summary.members:
            if member.episode_id not in seen.episodes:
                yield f"episode in group {id_} but not on episodes: {member.episode_id}"


def _rollouts(seen: Evidence) -> Iterator[str]:
    final = {episode.rollout for episode in seen.episodes.values() if episode.is_final}
    for key in seen.raw:
        if not key.startswith("event:"):
            continue
        rollout, attempt, state = key.removeprefix("event:").split("/")
        if rollout not in seen.rollouts and Topic.ROLLOUTS not in seen.expired:
            yield f"rollout ran but was never asked for: {rollout}"
        started = f"event:{rollout}/{attempt}/started"
        if state not in ("started", "given_up") and started not in seen.raw:
            yield f"attempt ended but never started: {rollout}/{attempt}"
    if Topic.ROLLOUT_EVENTS not in seen.expired:
        # The runner commits a request when its final event is on the log; one above its commits is on its way.
        for rollout, position in seen.rollouts.items():
            is_ours = run_hash_of(rollout) == seen.run and position not in seen.dead
            if is_ours and rollout not in seen.final_rollouts and seen.is_done(Stage.RUNNER, position):
                yield f"rollout asked for, committed by the runner and without a final event: {rollout}"
    for rollout in sorted(filter(None, final)):
        if run_hash_of(rollout) == seen.run and rollout not in seen.final_rollouts:
            yield f"final episode without a final rollout event: {rollout}"


def _versions(seen: Evidence, steps: Sequence[TrainingStep], *, is_live: bool) -> Iterator[str]:
    expected = 0
    for number, step in enumerate(steps, start=1):
        if step.step != number:
            yield f"step missing before: step {step.step}"
            break
        if step.begin_offset != expected:
            yield f"gap in the offsets before: step {step.step}"
        expected = step.next_offset
    for step in steps:
        if step.is_updated and step.version not in seen.lineage.versions and step.epoch == steps[-1].epoch:
            yield f"version trained but not on weights: {step.version}"
    newest = max((manifest.step for manifest in seen.lineage.versions.values()), default=0)
    last = steps[-1].step if steps else 0
    if newest > last + (1 if is_live else 0):
        yield f"version published but its step is not on training_steps: step {newest}"
