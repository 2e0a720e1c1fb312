"""What points at what between the topics of a run: each pointer whose other end is gone is named.

In: Evidence. Out: `what: id` lines. Invariant: a link is judged only where retention has
taken nothing and the stage that should have made it has committed past its input, so a living run raises no alarm.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator

from tracegrad.schemas.ids import run_hash_of
from tracegrad.schemas.log.protocol import Position
from tracegrad.schemas.records.rollouts import MAX_GIVEN_UP, RolloutState
from tracegrad.schemas.records.transitions import MemberSummary
from tracegrad.schemas.topics import Stage, Topic

from .evidence import Evidence
from .fact_key import FEEDBACK

_RAW = {
    "call": Topic.LLM_CALLS,
    "call_ended": Topic.LLM_CALLS,
    "call_open": Topic.LLM_CALLS,
    "calls_closed": Topic.LLM_CALLS,
    "context_call": Topic.LLM_CALLS,
    "event": Topic.ROLLOUT_EVENTS,
    "reward": Topic.REWARDS,
    "span": Topic.OTLP_SPANS,
}


def check_links(seen: Evidence, *, takes_feedback: bool = True) -> list[str]:
    """Every broken pointer, and every hole in what is numbered."""
    checks = (
        _raw_to_facts,
        _facts_to_raw,
        _episodes_to_raw,
        *((_feedback,) if takes_feedback else ()),
        _markers,
        _groups,
        _rollouts,
        _holes,
        _proposals,
        _dead_letters,
        _differing,
    )
    return [text for check in checks for text in check(seen)]


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
        # A log record's own key is nowhere kept: most of them are no facts.
        if kind == "log" or key in seen.raw or _RAW[kind] in seen.expired:
            continue
        # Facts of other runs and of captured agents' spans are here by selection; their raw keys were not kept.
        if (kind == "span" or "/" in rest) and run_hash_of(rest) != seen.run:
            continue
        if kind in ("call", "call_ended", "call_open", "context_call") and rest in seen.foreign_calls:
            continue
        yield f"fact of episode {episode} without its raw record: {key}"


def _absent(
    seen: Evidence, topic: Topic, ids: Iterable[str], there: Container[str], what: str, *, kind: str = ""
) -> Iterator[str]:
    """The ids that are not there, unless retention has taken records of the topic where they would be."""
    if topic not in seen.expired:
        yield from (f"{what}: {id_}" for id_ in sorted(ids) if kind + id_ not in there)


def _episodes_to_raw(seen: Evidence) -> Iterator[str]:
    calls, facts = Topic.LLM_CALLS, Topic.EPISODE_EVENTS
    for id_, episode in seen.episodes.items():
        here = f"in episode {id_} but not on"
        said = [key.removeprefix("reward:") for key in episode.rewards]
        rewards = [key for key in said if key.startswith(FEEDBACK) or run_hash_of(key) == seen.run]
        own_calls = episode.calls - seen.foreign_calls
        yield from _absent(seen, calls, own_calls, seen.raw, f"call {here} llm_calls", kind="call:")
        yield from _absent(seen, Topic.REWARDS, rewards, seen.raw, f"reward {here} rewards", kind="reward:")
        yield from _absent(seen, facts, episode.calls, seen.facts, f"call {here} episode_events", kind="call:")
        yield from _absent(seen, facts, [episode.conversation or id_], seen.fact_places, "episode without facts")
        if episode.closed_by == "complete":
            for call in sorted(seen.outcomes.get(id_, frozenset()) - episode.calls):
                yield f"call named by calls_closed but not in its complete episode {id_}: {call}"
    # An undecodable call cannot be told by its id: a named id that is not there may be one of those.
    for id_, named in () if seen.undecodable_calls else seen.outcomes.items():
        what = f"call named by calls_closed of {id_} but not on llm_calls"
        yield from _absent(seen, calls, named, seen.raw, what, kind="call:")


def _feedback(seen: Evidence) -> Iterator[str]:
    """What people said of a conversation is on an episode, or behind one; of a runner's attempt it may be on none."""
    if seen.expired & {Topic.EPISODES, Topic.EPISODE_SCORES}:
        return
    told = seen.scores.union(*(episode.rewards for episode in seen.episodes.values()))
    for key, episode in seen.facts.items():
        is_told = key in told or key in seen.dead_facts or not key.startswith(f"reward:{FEEDBACK}")
        if not is_told and all(seen.is_done(Stage.ASSEMBLE, place) for place in seen.fact_places.get(episode, [])):
            yield f"feedback on no episode and behind none: {key}"


def _markers(seen: Evidence) -> Iterator[str]:
    emitted = [id_ for id_, disposition in seen.markers.items() if disposition == "emitted"]
    yield from _absent(seen, Topic.EPISODES, emitted, seen.episodes, "closed but not on episodes")
    folded = [
        id_
        for id_, places in seen.fact_places.items()
        if (id_ in seen.spoken_of or id_ in seen.episodes)
        and all(seen.is_done(Stage.ASSEMBLE, place) for place in places)
        and not seen.dead.issuperset(places)
    ]
    yield from _absent(seen, Topic.EPISODE_EVENTS, folded, seen.markers, "folded but without a closed marker")


def _groups(seen: Evidence) -> Iterator[str]:
    places: dict[str, list[Position]] = {}
    for id_, episode in seen.episodes.items():
        # A conversation is a group of its own.
        places.setdefault(episode.group or id_, []).append(episode.position)
    yield from _absent(seen, Topic.TRANSITIONS, seen.group_markers, seen.groups, "closed but not on transitions")
    for id_, (_, summary) in seen.groups.items():
        done = all(seen.is_done(Stage.CREDIT, place) for place in places.get(id_, []))
        if id_ not in seen.group_markers and done:
            yield f"group without a closed marker: {id_}"
        members = [member.episode_id for member in summary.members if not _is_stood_in_for(seen, member)]
        yield from _absent(seen, Topic.EPISODES, members, seen.episodes, f"episode in group {id_} but not on episodes")


def _is_stood_in_for(seen: Evidence, member: MemberSummary) -> bool:
    """Whether credit closed the group without the member, of which no episode had come: tasks did not give it up by an
    event, or as often as it does, in vain."""
    given_up = seen.given_up.get(member.rollout_id, set())
    is_vain = member.attempt_id not in given_up or len(given_up) >= MAX_GIVEN_UP
    return member.state == RolloutState.GIVEN_UP and is_vain


def _rollouts(seen: Evidence) -> Iterator[str]:
    # From the right: an id that somebody made up may hold a slash itself.
    events = [key.removeprefix("event:").rsplit("/", 2) for key in seen.raw if key.startswith("event:")]
    given = seen.final_rollouts
    ran = {rollout for rollout, _, _ in events}
    yield from _absent(seen, Topic.ROLLOUTS, ran, seen.rollouts, "rollout ran but was never asked for")
    for rollout, attempt, state in events:
        if state not in ("started", "given_up") and f"event:{rollout}/{attempt}/started" not in seen.raw:
            yield f"attempt ended but never started: {rollout}/{attempt}"
    # The runner commits a request when its final event is on the log; one above its commits is on its way.
    committed = [
        rollout
        for rollout, position in seen.rollouts.items()
        if run_hash_of(rollout) == seen.run and position not in seen.dead and seen.is_done(Stage.RUNNER, position)
    ]
    what = "rollout asked for, committed by the runner and without a final event"
    yield from _absent(seen, Topic.ROLLOUT_EVENTS, committed, given, what)
    final = {episode.rollout for episode in seen.episodes.values() if episode.is_final and episode.rollout}
    own = [rollout for rollout in final if run_hash_of(rollout) == seen.run]
    yield from _absent(seen, Topic.ROLLOUT_EVENTS, own, given, "final episode without a final rollout event")


def _holes(seen: Evidence) -> Iterator[str]:
    """Groups are numbered from 0 and each is asked for as a whole before the next, so that only the newest may have
    members missing."""
    if Topic.ROLLOUTS in seen.expired:
        return
    for purpose, groups in seen.asked.items():
        newest = max(groups)
        for gap in gaps(groups, 0, newest):
            yield f"group never asked for: {purpose} group {gap}"
        for index in sorted(groups.keys() - {newest}):
            size = next(iter(groups[index].values()))[1].size
            for gap in gaps(groups[index], 0, size):
                yield f"rollout never asked for: member {gap} of {purpose} group {index}"


def gaps(there: Collection[int], begin: int, end: int) -> Iterator[str]:
    """What of begin .. end - 1 is not there, as "3" or "4 to 9": one number out of place must not make a line, or a
    turn of a loop, for each of the thousands of millions below it."""
    expected = begin
    for number in (*sorted(number for number in there if begin <= number < end), end):
        if number > expected:
            yield str(expected) if number == expected + 1 else f"{expected} to {number - 1}"
        expected = number + 1


def _proposals(seen: Evidence) -> Iterator[str]:
    if Topic.EPISODE_EVENTS in seen.expired:
        return
    for id_, episode in seen.episodes.items():
        if episode.closed_by != "complete" and (id_, episode.closed_by) not in seen.closes:
            yield f"episode closed by {episode.closed_by} that nobody proposed: {id_}"


def _dead_letters(seen: Evidence) -> Iterator[str]:
    for origin in sorted(seen.unseen_origins):
        yield f"dead letter of a record that is not there: {origin.topic}/{origin.partition}/{origin.offset}"


def _differing(seen: Evidence) -> Iterator[str]:
    for id_ in sorted(seen.differing):
        yield f"emitted twice with different bytes: {id_}"
