"""A batch is the next contiguous interval of the policy's partition that holds exactly G distinct new groups.

    TransitionsReader   consumes the policy's partition of `transitions`, in order; waits at most the time given
    OpenBatch           takes records one by one until the G-th that counts; its end depends on them alone
    Batch               interval, groups to train, exclusions by reason, dead letters, accounting, hash

Invariant: what is excluded depends on (record, step) only - the records of the interval, the groups consumed
before it, the version it starts from and the manifests up to that one - so the same offsets give the same batch hash.
Excluded groups count towards G: they were admitted. Where the recipe has batches refilled, those that are well-formed
and have spread count (of whichever version: that may change while it is read), and what does not is given back.
Duplicates and records that name no group never count.
On failure: LogGapError when an offset lies outside the log or is passed over; bad records are verdicts, never
exceptions.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import msgspec

from tracegrad.schemas.errors import LogGapError, UnavailableError, UndecodableError
from tracegrad.schemas.ids import RunHash
from tracegrad.schemas.log.follow import follow
from tracegrad.schemas.log.protocol import AWAY_S, Log, Record, TopicPartition
from tracegrad.schemas.log.refusals import Refusals
from tracegrad.schemas.reasons import Reason
from tracegrad.schemas.records.training import Accounting, hash_batch
from tracegrad.schemas.records.weights import VersionManifest

from ..algorithm.recipe import Recipe
from ..algorithm.scale import sample_std
from ..algorithm.selection import selected
from .groups import Group, GroupLimits, Verdict, judge, trained_versions, why_untrained
from .staleness import staleness


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch, decided."""

    begin_offset: int
    next_offset: int
    groups: tuple[Group, ...]
    """To be trained, in the order of their records."""
    untrained: tuple[Group, ...]
    """Well-formed, excluded by a reason: they still tell rewards."""
    excluded: dict[str, str]
    """Group id -> reason; groups consumed by this batch that train nothing."""
    num_duplicates: int
    dead: tuple[Verdict, ...]
    """To be dead-lettered before the batch counts as consumed."""
    hash: str
    """`hash_batch` of its records."""
    consumed: tuple[str, ...]
    """All groups that this batch consumes, in the order of their records."""
    started_from: int | None = None
    """The version that its step starts from, for tokens' versions to be compared with; None: none is."""
    staleness: Mapping[int, int] = field(default_factory=dict)
    """By version, of the tokens that it sampled, where versions are compared."""
    read_s: float = 0.0
    """Seconds spent on judging its records."""

    def without(self, group_ids: Collection[str], reason: str) -> Batch:
        """The same interval, where some of the groups are excluded after all."""
        gone = tuple(group for group in self.groups if group.summary.group_id in group_ids)
        reasons = {group.summary.group_id: reason for group in gone}
        groups = tuple(group for group in self.groups if group not in gone)
        return replace(self, groups=groups, untrained=(*self.untrained, *gone), excluded=self.excluded | reasons)

    @property
    def group_ids(self) -> tuple[str, ...]:
        """Groups that are trained, in order."""
        return tuple(group.summary.group_id for group in self.groups)


@dataclass(kw_only=True)
class OpenBatch:
    """The interval that is being read."""

    begin_offset: int
    num_groups: int
    """G."""
    consumed: Collection[str]
    """Groups of earlier batches."""
    limits: GroupLimits
    recipe: Recipe
    """Says which groups count, and which of them train."""
    refusals: Refusals
    """Of all batches: told of each record whether it could be decoded."""
    _verdicts: list[tuple[Verdict, bool]] = field(default_factory=list)
    """Each with whether its group was consumed before."""
    _seen: set[str] = field(default_factory=set)
    given_back: list[str] = field(default_factory=list)
    """Groups that do not count towards G, where the recipe has the batch refilled."""
    read_s: float = 0.0
    """Seconds that its reader spent on judging records."""

    @property
    def num_seen(self) -> int:
        """Distinct new groups so far."""
        return len(self._seen)

    @property
    def num_counted(self) -> int:
        """Of those, the ones that count towards G."""
        return self.num_seen - len(self.given_back)

    @property
    def is_complete(self) -> bool:
        """Whether the G-th group that counts is in, or the last that it may take."""
        return self.num_counted >= self.num_groups or self.num_seen >= self.recipe.refill * self.num_groups

    @property
    def next_offset(self) -> int:
        """Of the record that `add_record` takes next."""
        return self.begin_offset + len(self._verdicts)

    def add_record(self, record: Record) -> None:
        """Takes the partition's next record. Not to be called once the batch is complete.

        Raises LogGapError when it is another record than the next: a batch is a contiguous interval; UnreadableError
        when it is one of too many in a row that cannot be decoded.
        """
        assert not self.is_complete
        if record.offset != self.next_offset:
            raise LogGapError(
                f"expected offset {self.next_offset} of {record.topic!r}[{record.partition}], got {record.offset}; "
                "records are gone (retention, compaction?): restore the topic, or start a new run"
            )
        verdict = judge(record, self.limits)
        if verdict.is_decoded:
            self.refusals.accept(record)
        else:
            self.refusals.refuse(record, UndecodableError(verdict.detail, reason=verdict.reason))
        group_id = verdict.group_id
        is_duplicate = group_id in self.consumed or group_id in self._seen
        self._verdicts.append((verdict, is_duplicate))
        if group_id is not None and not is_duplicate:
            self._seen.add(group_id)
            if self.recipe.refill > 1 and not (
                verdict.group and verdict.group.rows and spread(verdict.group, self.recipe.final)
            ):
                self.given_back.append(group_id)

    def close(
        self,
        *,
        run: RunHash,
        version: int | None,
        max_staleness: int,
        manifests: Mapping[int, VersionManifest] = MappingProxyType({}),
    ) -> Batch:
        """The batch of these records for a step that starts from the run's `version`; None: tokens of the run have no
        staleness. `manifests`: those of the run, by which it is counted."""
        ages: dict[int, int] = {}
        if version is not None:
            numbers = {span.version for one, _ in self._verdicts if one.group for span in trained_versions(one.group)}
            ages = {number: staleness(number, version, manifests) for number in numbers}
        decided = [
            (verdict, Reason.DUPLICATE if is_duplicate else _reason(verdict, run, version, max_staleness, ages))
            for verdict, is_duplicate in self._verdicts
        ]
        usable = [verdict.group for verdict, reason in decided if verdict.group and not reason]
        left_out = unselected(usable, self.recipe)
        decided = [(verdict, reason or left_out.get(verdict.group_id or "", "")) for verdict, reason in decided]
        new = [(verdict, reason) for verdict, reason in decided if reason != Reason.DUPLICATE]
        return Batch(
            begin_offset=self.begin_offset,
            next_offset=self.next_offset,
            groups=tuple(verdict.group for verdict, reason in new if verdict.group and not reason),
            untrained=tuple(verdict.group for verdict, reason in new if verdict.group and reason),
            excluded={verdict.group_id: reason for verdict, reason in new if verdict.group_id and reason},
            num_duplicates=sum(is_duplicate for _, is_duplicate in self._verdicts),
            dead=tuple(verdict for verdict, _ in self._verdicts if verdict.group is None),
            consumed=tuple(verdict.group_id for verdict, _ in new if verdict.group_id),
            hash=hash_batch((hashlib.sha256(one.record.value or b"").digest(), reason) for one, reason in decided),
            started_from=version,
            staleness=ages,
            read_s=self.read_s,
        )


def _reason(verdict: Verdict, run: RunHash, version: int | None, max_staleness: int, ages: Mapping[int, int]) -> str:
    """Why the record's group trains nothing; "" when it does. `ages`: the staleness of its tokens, by version."""
    if verdict.group is None:
        return verdict.reason
    if (reason := why_untrained(verdict.group, run)) or version is None:
        return reason
    numbers = {span.version for span in trained_versions(verdict.group)}
    if any(number > version for number in numbers):
        return Reason.NEWER
    return Reason.STALE if any(ages[number] > max_staleness for number in numbers) else ""


def unselected(groups: Sequence[Group], recipe: Recipe) -> dict[str, str]:
    """Group id -> why it does not train, `no_spread` or `low_spread`, of those that the recipe leaves out."""
    if recipe.selection == "none":
        return {}
    stds = {group.summary.group_id: spread(group, recipe.final) for group in groups}
    # With refill what has no spread was given back and replaced, so it may not train after all.
    counted = [id_ for id_, std in stds.items() if std or recipe.refill == 1]
    stays = selected([stds[id_] for id_ in counted], recipe.selection, recipe.share)
    trained = {id_ for id_, stay in zip(counted, stays, strict=True) if stay}
    return {id_: Reason.LOW_SPREAD if std else Reason.NO_SPREAD for id_, std in stds.items() if id_ not in trained}


def spread(group: Group, final: float = 0.0) -> float:
    """The std of what its rollouts were worth: the mean return of each one's turns, else its final reward; and `final`
    times that besides, where a recipe compares it too."""
    returns: defaultdict[str, list[float]] = defaultdict(list)
    for (rollout, _), turn in group.turns.items():
        returns[rollout].append(turn.return_)
    rewards = {
        one.rollout_id: one.reward for one in group.summary.members if not one.excluded and one.reward is not None
    }
    for rollout, reward in rewards.items():
        if rollout not in returns:
            returns[rollout].append(reward)
    return sample_std(
        [sum(values) / len(values) + final * rewards.get(rollout, 0.0) for rollout, values in returns.items()]
    )


def account(before: Accounting, batch: Batch) -> Accounting:
    """The cumulative counts after a batch; consumed = trained + the sum of excluded, in distinct groups."""
    return msgspec.structs.replace(
        before,
        consumed=before.consumed + len(batch.groups) + len(batch.excluded),
        trained=before.trained + len(batch.groups),
        excluded=dict(Counter(before.excluded) + Counter(batch.excluded.values())),
        duplicates=before.duplicates + batch.num_duplicates,
    )


class TransitionsReader:
    """The policy's partition from an offset on."""

    def __init__(self, log: Log, at: TopicPartition, *, next_offset: int, poll_s: float = 0.0) -> None:
        self._log = log
        self._at = at
        self._next_offset = next_offset
        # One at a time: none may be taken beyond the batch's last.
        self._chunks = follow(
            log,
            [at.topic],
            starts={at: next_offset},
            partitions=[at.partition],
            poll_s=poll_s,
            max_records=1,
            patience_s=AWAY_S,
        )

    def next(self) -> Record | None:
        """The next record, or None when none came within `poll_s`.

        Raises LogGapError when the offset is no longer, or not yet, in the log.
        """
        for record in next(self._chunks).records:
            self._next_offset = record.offset + 1
            return record
        return None

    @property
    def lag(self) -> int | None:
        """Records on the log that were not taken yet; None while the broker does not answer."""
        try:
            bounds = self._log.offsets(self._at.topic)
        except UnavailableError:
            return None
        return max(0, bounds[self._at.partition].end - self._next_offset)

    def close(self) -> None:
        """Releases the reader."""
        self._chunks.close()
