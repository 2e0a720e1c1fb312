"""The accounting of a run, recomputed from the topics alone: what became of every call, episode and group.

    calls    = in episodes + open + unattributed + not selected + late + dead-lettered
    episodes = in groups + open groups + superseded + displaced + validation + captured + unscored
    groups   = trained + excluded{reason} + waiting + open + lost
    feedback = joined + open + late + not counted + dead-lettered + ignored + unknown     (feedback.py)

In: a Log that leaves nothing out, a run's topics, hash and keys. Out: a Report. Invariant: each term is counted where
it happens and none by subtraction, so an id that is in no term is missing, and is named. Works on a living run too
(`open` holds what is on its way); only a run that stands still can be expected to have nothing open. The trainer's own
ledger is checked against the count, never used for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec

from tracegrad.schemas.ids import RunHash
from tracegrad.schemas.log.mac import KeyRing
from tracegrad.schemas.log.protocol import Log, TopicPartition
from tracegrad.schemas.reasons import Reason, reason_text
from tracegrad.schemas.records.calls import Purpose
from tracegrad.schemas.records.rollouts import MAX_GIVEN_UP
from tracegrad.schemas.records.training import TrainingStep, surviving_steps
from tracegrad.schemas.topics import Stage, Topic, Topics

from .evidence import MAX_NAMED, EpisodeEvidence, Evidence
from .feedback import FeedbackPiece
from .links import check_links
from .read import gather
from .versions import Look, check_versions

_EXCLUDED = "excluded: "


class AccountLine(msgspec.Struct, kw_only=True):
    """One line of the accounting, over distinct ids."""

    total: int = 0
    terms: dict[str, int] = msgspec.field(default_factory=dict)
    """Term -> ids; they add up to `total` when nothing is missing."""

    @property
    def reasons(self) -> list[str]:
        """Of its terms `excluded: REASON`: what each reason means."""
        words = (term.removeprefix(_EXCLUDED) for term in self.terms if term.startswith(_EXCLUDED))
        return list(map(reason_text, words))


class Report(msgspec.Struct, kw_only=True):
    """What the audit found."""

    run: RunHash
    calls: AccountLine
    episodes: AccountLine
    groups: AccountLine
    feedback: AccountLine
    missing: list[str]
    """`what: id`, one each; empty when every id is accounted for."""
    num_missing: int
    num_steps: int
    expired: list[str]
    """Topics whose oldest records retention has taken: absence there was not judged."""
    unverified: list[str]
    """`topic/partition/offset: reason` of records that no key vouches for, on topics where one must: others wrote or
    changed them, and every reader leaves them out."""
    num_unverified: int

    @property
    def is_complete(self) -> bool:
        """Whether every id is accounted for."""
        return self.num_missing == 0


def audit(
    log: Log,
    topics: Topics,
    run: RunHash,
    policy: str,
    *,
    ring: KeyRing,
    starts: Mapping[TopicPartition, int] | None = None,
    is_live: bool = False,
    look: Look | None = None,
    weight_root: str = "",
    num_kept: int = 0,
    trains_captured: bool = False,
    takes_feedback: bool = True,
) -> Report:
    """Reads the run's topics and counts.

    Args:
        log: where to read; not the rooms' own, which leaves out what does not verify.
        topics, run, policy: the run's, its hash, and whose groups are counted.
        ring, starts: its keys, and where it began on the raw topics; None: at their beginning.
        is_live: a step may be under way between its manifest and its record.
        look: compares a version's files with its manifest, a second a gigabyte; None: they are not looked at.
        weight_root: where the run's versions lie now; one that is not there is looked for where it was written.
        num_kept: how many of the newest versions keep their folders, beside version 0; 0: all.
        trains_captured: rated captured episodes are groups, the others unscored.
        takes_feedback: it counts in this run; else a run that is selected may have taken some, and it is ignored.
    Raises UnavailableError: Kafka is away.
    """
    seen = gather(log, topics, run, policy, ring=ring, starts=starts)
    missing, steps = list[str](), surviving_steps(step for step in seen.steps if step.policy == policy)
    calls, episodes = _calls(seen, missing), _episodes(seen, missing, trains_captured=trains_captured)
    groups, feedback = _groups(seen, steps, policy, missing), _feedback(seen, missing, trains_captured, takes_feedback)
    missing += check_links(seen, takes_feedback=takes_feedback)
    missing += check_versions(seen, steps, is_live=is_live, look=look, root=weight_root, num_kept=num_kept)
    named, expired = list(dict.fromkeys(missing)), sorted(topic.value for topic in seen.expired)
    return Report(
        run=seen.run,
        calls=calls,
        episodes=episodes,
        groups=groups,
        feedback=feedback,
        missing=named[:MAX_NAMED],
        num_missing=len(named),
        num_steps=len(steps),
        expired=expired,
        unverified=seen.unverified,
        num_unverified=seen.num_unverified,
    )


def _unit(terms: Mapping[str, str], missing: list[str], what: str) -> AccountLine:
    missing += [f"{what}: {id_}" for id_, term in terms.items() if term == "missing"]
    return AccountLine(total=len(terms), terms=dict(sorted(Counter(terms.values()).items())))


def _calls(seen: Evidence, missing: list[str]) -> AccountLine:
    in_episodes = {call for episode in seen.episodes.values() for call in episode.calls}
    terms: dict[str, str] = dict.fromkeys(seen.foreign_calls, "not selected")
    for key, position in seen.raw.items():
        if not key.startswith("call:"):
            continue
        call = key.removeprefix("call:")
        episode = seen.facts.get(key)
        if call in in_episodes:
            terms[call] = "in episodes"
        elif position in seen.dead or key in seen.dead_facts:
            terms[call] = "dead-lettered"
        elif episode is not None:
            terms[call] = _term_of_fact(seen, episode, call)
        elif not seen.is_done(Stage.NORMALIZE, position):
            terms[call] = "open"
        elif Topic.EPISODE_EVENTS not in seen.expired:
            terms[call] = "missing"
    for position in seen.undecodable_calls:
        name = f"undecodable at {position.topic}/{position.partition}/{position.offset}"
        is_open = not seen.is_done(Stage.NORMALIZE, position)
        terms[name] = "dead-lettered" if position in seen.dead else "open" if is_open else "missing"
    return _unit(terms, missing, "call")


def _term_of_fact(seen: Evidence, episode: str, call: str) -> str:
    """Of a call that reached `episode_events` and is in no episode."""
    disposition = _disposition(seen, episode, call)
    if disposition is None or disposition == "forwarded":
        # What was forwarded has gone on, or is on its way: the record there precedes the marker.
        places = seen.fact_places.get(episode, [])
        return "missing" if all(seen.is_done(Stage.ASSEMBLE, place) for place in places) else "open"
    if disposition in ("not_selected", "unattributed"):
        return disposition.replace("_", " ")
    record = seen.episodes.get(episode)
    named = seen.outcomes.get(episode, frozenset())
    # An episode that closed by completeness has every call that its `calls_closed` names.
    return "missing" if record is None or (record.closed_by == "complete" and call in named) else "late"


def _disposition(seen: Evidence, episode: str, call: str) -> str | None:
    """Of the first episode of its conversation that has not ended before it; None: that is open."""
    if episode not in seen.stretches:
        return seen.markers.get(episode)
    key, partition, order = seen.orders.get(call, (episode, 0, 0))
    ends = ((marker.last_order(key, partition), marker.disposition) for marker in seen.stretches[episode])
    return min((end for end in ends if order <= end[0]), default=(0, None))[1]


def _episodes(seen: Evidence, missing: list[str], *, trains_captured: bool) -> AccountLine:
    in_groups = {member.episode_id for _, group in seen.groups.values() for member in group.members}
    counted = {(id_, member.rollout_id) for id_, (_, group) in seen.groups.items() for member in group.members}
    finals: dict[str, list[EpisodeEvidence]] = {}
    for episode in seen.episodes.values():
        if episode.group is not None and episode.is_final and not episode.is_validation:
            finals.setdefault(episode.group, []).append(episode)
    terms: dict[str, str] = {}
    for id_, episode in seen.episodes.items():
        if episode.group is None:
            terms[id_] = _term_of_captured(seen, id_, episode) if trains_captured else "captured"
        elif not episode.is_final:
            terms[id_] = "superseded"
        elif episode.is_validation:
            terms[id_] = "validation"
        elif id_ in in_groups:
            terms[id_] = "in groups"
        elif (episode.group, episode.rollout) in counted:
            # Given up when its real episode came, or the other way round: its group holds one of them.
            terms[id_] = "displaced"
        elif episode.group not in seen.groups and _is_open(seen, finals[episode.group]):
            terms[id_] = "open groups"
        else:
            terms[id_] = "missing"
    return _unit(terms, missing, "episode in no group")


def _term_of_captured(seen: Evidence, id_: str, episode: EpisodeEvidence) -> str:
    """Of a run that trains on them."""
    if id_ in seen.groups:
        return "in groups"
    if id_ in seen.unscored:
        return "unscored"
    if not seen.is_done(Stage.CREDIT, episode.position):
        return "open groups"
    # Markers expire.
    return "missing" if episode.is_rated else "unscored"


def _is_open(seen: Evidence, finals: list[EpisodeEvidence]) -> bool:
    return len({episode.rollout for episode in finals}) < finals[0].group_size or not all(
        seen.is_done(Stage.CREDIT, episode.position) for episode in finals
    )


def _groups(seen: Evidence, steps: list[TrainingStep], policy: str, missing: list[str]) -> AccountLine:
    next_offset = steps[-1].next_offset if steps else 0
    consumed: dict[str, str] = {}
    for step in steps:
        for group, term in (
            *((group, "trained") for group in step.group_ids),
            *((group, f"{_EXCLUDED}{reason}") for group, reason in step.excluded_ids.items()),
        ):
            if group in consumed and not term.endswith(Reason.DUPLICATE):
                missing.append(f"group consumed twice: {group} (step {step.step})")
            consumed.setdefault(group, term)
    terms: dict[str, str] = {}
    for id_, (offset, summary) in seen.groups.items():
        if summary.policy != policy:
            continue
        if id_ in consumed:
            terms[id_] = consumed[id_]
        elif offset >= next_offset:
            terms[id_] = "waiting"
        else:
            terms[id_] = "missing"
    if Topic.TRANSITIONS not in seen.expired:
        terms |= {id_: term for id_, term in _unclosed(seen).items() if id_ not in terms and id_ not in consumed}
        missing += [f"group in a batch but not on transitions: {id_}" for id_ in consumed if id_ not in seen.groups]
    if steps:
        trained = sum(term == "trained" for term in consumed.values())
        said = steps[-1].accounting
        if said.trained != trained or said.consumed != len(consumed):
            missing.append(
                f"training_steps says {said.trained} trained of {said.consumed} consumed groups, "
                f"its batches name {trained} of {len(consumed)}"
            )
    return _unit(terms, missing, "group passed by and in no batch")


def _feedback(seen: Evidence, missing: list[str], trains: bool, takes: bool) -> AccountLine:
    terms = feedback_terms(seen, trains=trains) if takes else dict.fromkeys(seen.feedback.pieces, "ignored")
    if seen.expired & {Topic.REWARDS, Topic.EPISODE_EVENTS, Topic.EPISODE_SCORES}:
        terms = {id_: term for id_, term in terms.items() if term not in ("missing", "unknown")}
    named = {seen.feedback.pieces[id_].name or id_: term for id_, term in terms.items()}
    return _unit(named, missing, "feedback neither joined nor late nor open")


def feedback_terms(seen: Evidence, *, trains: bool) -> dict[str, str]:
    """Of each piece of feedback, by its id; `trains`: an episode that bears it is not the end of it."""
    return {id_: _term_of_piece(seen, piece, trains=trains) for id_, piece in seen.feedback.pieces.items()}


def _term_of_piece(seen: Evidence, piece: FeedbackPiece, *, trains: bool) -> str:
    if not piece.name:
        return "unknown"
    if piece.of_runner:
        return "not counted"
    if piece.groups if trains else piece.episodes:
        return "joined"
    if piece.is_late:
        return "late"
    if any(position in seen.dead for _, position in piece.inputs):
        return "dead-lettered"
    waiting = [(Stage.CREDIT, seen.episodes[id_].position) for id_ in piece.episodes if id_ in seen.episodes]
    if not all(seen.is_done(stage, position) for stage, position in (*piece.inputs, *waiting)):
        return "open"
    # Markers expire.
    return "joined" if any(id_ in seen.groups for id_ in piece.episodes) else "missing"


def _unclosed(seen: Evidence) -> dict[str, str]:
    """Training groups that were asked for and are not on `transitions`."""
    final = {episode.rollout for episode in seen.episodes.values() if episode.is_final}
    given_up = {rollout for rollout, attempts in seen.given_up.items() if len(attempts) >= MAX_GIVEN_UP} - final
    asked = [place for members in seen.asked.get(Purpose.TRAIN, {}).values() for place in members.values()]
    lost = {group.id for rollout, group in asked if rollout in given_up}
    return {group.id: "lost" if group.id in lost else "open" for _, group in asked if group.id not in seen.groups}
