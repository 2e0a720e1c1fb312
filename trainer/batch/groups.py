"""One `transitions` record judged: a group that can train, an exclusion, or a dead letter.

In: a record, and what the policy can take (GroupLimits). Out: a Verdict. Pure; the schema's own checks are
`decode_group`'s, the policy's (vocabulary, temperature, masks inside turns, each call trained once) are here.
Invariant: bad bytes never raise. Where a malformed record still names its group, that group counts as consumed
(excluded, `malformed`), so that the pace of admission, which counts groups, is kept.

How a rollout lies in the rows of a group (`in_form`):

    segments       as credit made them: each prompt extends the last one with what was sampled; each token once
    transitions    a row for each call: its own tokens behind exactly the prompt that they were sampled after
    concatenated   a rollout's segments behind one another; from the second on their contexts are not those of sampling

Each call of each row is in one row of each form, in the same order, and its sampled tokens train there as they did.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import msgspec
import numpy as np

from tracegrad.schemas.errors import RecordError
from tracegrad.schemas.ids import RunHash
from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.reasons import Reason
from tracegrad.schemas.records.transitions import GroupSummary, SegmentRow, Turn, decode_group, group_id_of
from tracegrad.schemas.records.versions import VersionSpan

from ..algorithm.recipe import Rows
from ..history.config import ReplayConfig

CallKey = tuple[str, str]
"""(rollout id, call id)."""

_GROUP_ID = re.compile(r"[0-9A-Za-z._:-]{1,128}")
_REASON_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """What a group must keep to be trained by this policy."""

    policy: str
    vocabulary: int
    """Rows of the model's embedding."""
    max_row_tokens: int = 32768


@dataclass(frozen=True, slots=True)
class Group:
    """A well-formed record."""

    summary: GroupSummary
    rows: tuple[SegmentRow, ...]
    offset: int = -1
    """Where the record lies in the policy's partition."""

    @property
    def empty(self) -> str:
        """Why it has nothing to train, decided by credit; "" when it has rows."""
        if self.rows:
            return ""
        return self.summary.excluded[:_REASON_CHARACTERS] or Reason.NO_ROWS

    @property
    def turns(self) -> dict[CallKey, Turn]:
        """Each call once, by the first row that has it: a shared prefix repeats calls in other rows."""
        turns: dict[CallKey, Turn] = {}
        for row in self.rows:
            for turn in row.turns:
                turns.setdefault((row.rollout_id, turn.call_id), turn)
        return turns


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a record is, whatever the step."""

    record: Record
    group_id: str | None
    """None: the bytes do not even name a group."""
    group: Group | None
    """None: malformed."""
    reason: str = ""
    """Dead letter's reason when malformed."""
    detail: str = ""
    is_decoded: bool = True
    """False: the bytes are no record of this schema, whatever the policy."""


def judge(record: Record, limits: GroupLimits) -> Verdict:
    """The record's verdict. Never raises for bad input."""
    is_decoded = False
    try:
        summary, rows = decode_group(record.value)
        is_decoded = True
        _check_summary(summary, limits)
        for row in rows:
            _check_row(row, limits)
        _check_together(summary, rows)
    except RecordError as error:
        named = group_id_of(record.value)
        group_id = named if named is not None and _GROUP_ID.fullmatch(named) else None
        return Verdict(record, group_id, None, error.reason, str(error), is_decoded)
    return Verdict(record, summary.group_id, Group(summary, tuple(rows), record.offset))


def _check_summary(summary: GroupSummary, limits: GroupLimits) -> None:
    if not _GROUP_ID.fullmatch(summary.group_id):
        raise RecordError(f"expected a group id matching {_GROUP_ID.pattern}, got another")
    if summary.policy != limits.policy:
        raise RecordError(f"expected policy {limits.policy!r}, got {summary.policy[:60]!r}", reason=Reason.WRONG_POLICY)


def _check_row(row: SegmentRow, limits: GroupLimits) -> None:
    where = f"rollout={row.rollout_id} segment={row.segment}"
    if len(row.token_ids) > limits.max_row_tokens:
        raise RecordError(
            f"expected at most {limits.max_row_tokens} tokens, got {len(row.token_ids)}, {where}",
            reason=Reason.TOO_LONG,
        )
    if (row.token_ids >= limits.vocabulary).any():
        raise RecordError(
            f"expected token ids < {limits.vocabulary}, got a greater one, {where}", reason=Reason.VOCABULARY
        )
    if row.loss_mask[:1].any():
        raise RecordError(f"expected loss_mask 0 on the first token (nothing precedes it), got 1, {where}")
    end = 0
    inside = 0
    for turn in sorted(row.turns, key=lambda turn: (turn.start, turn.end)):
        if turn.start < end:
            raise RecordError(f"expected turns that do not overlap, got overlap at call={turn.call_id}, {where}")
        end = turn.end
        trained = int(row.loss_mask[turn.start : turn.end].sum())
        inside += trained
        if trained and turn.temperature <= 0.0:
            raise RecordError(
                f"expected temperature > 0 on a trained turn, got {turn.temperature}, call={turn.call_id}, {where}",
                reason=Reason.ZERO_TEMPERATURE,
            )
    if outside := int(row.loss_mask.sum()) - inside:
        raise RecordError(f"expected loss_mask 1 inside turns only, got {outside} outside, {where}")


def _check_together(summary: GroupSummary, rows: list[SegmentRow]) -> None:
    """Between rows: members, one meaning per call, each call trained once, rollout_tokens."""
    members = {member.rollout_id for member in summary.members if not member.excluded}
    meanings: dict[CallKey, tuple[float, str, float]] = {}
    trained_in: dict[CallKey, int] = {}
    tokens: dict[str, int] = {}
    for number, row in enumerate(rows):
        if row.rollout_id not in members:
            raise RecordError(f"expected rows of included members only, got rollout={row.rollout_id}")
        tokens[row.rollout_id] = tokens.get(row.rollout_id, 0) + int(row.loss_mask.sum())
        for turn in row.turns:
            call = (row.rollout_id, turn.call_id)
            meaning = (turn.return_, turn.peers, turn.weight)
            if meanings.setdefault(call, meaning) != meaning:
                raise RecordError(f"expected equal return, peers and weight in all rows, got two, call={turn.call_id}")
            trains = row.loss_mask[turn.start : turn.end].any()
            if trains and trained_in.setdefault(call, number) != number:
                raise RecordError(f"expected each call to train in one row, got two, call={turn.call_id}")
    for row in rows:
        if row.rollout_tokens != tokens[row.rollout_id]:
            raise RecordError(
                f"expected rollout_tokens {tokens[row.rollout_id]}, got {row.rollout_tokens}, rollout={row.rollout_id}"
            )


def token_versions(turn: Turn) -> list[tuple[int, int, VersionSpan]]:
    """(start, end, version) of the turn's stretches, positions counted within the row."""
    starts = [turn.start + span.start for span in turn.versions]
    ends = [*starts, turn.end][1:]
    return [
        (min(start, turn.end), min(end, turn.end), span)
        for start, end, span in zip(starts, ends, turn.versions, strict=True)
    ]


def trained_versions(group: Group) -> list[VersionSpan]:
    """The versions that sampled the group's trained tokens, one for each stretch."""
    return [
        span
        for row in group.rows
        for turn in row.turns
        for start, end, span in token_versions(turn)
        if row.loss_mask[start:end].any()
    ]


def why_untrained(group: Group, run: RunHash) -> str:
    """Why no step of a run trains it; "" where one may. Versions compare with those of their own run only."""
    if group.empty:
        return group.empty
    return Reason.OTHER_RUN if any(span.run != run for span in trained_versions(group)) else ""


def filtered(group: Group, config: ReplayConfig) -> Group:
    """The group as the mode `filter` trains it: without the episodes whose final reward is below the bound, which leave
    the denominators too, and with those calls of which the texts alone are known."""
    group, keeps_unrated = _with_texts(group), config.unrated == "train"
    members = tuple(
        member
        if member.excluded or (keeps_unrated if member.reward is None else member.reward >= config.bound)
        else msgspec.structs.replace(member, excluded=Reason.BELOW_BOUND)
        for member in group.summary.members
    )
    kept = {member.rollout_id for member in members if not member.excluded}
    rows = tuple(row for row in group.rows if row.rollout_id in kept)
    return replace(group, summary=msgspec.structs.replace(group.summary, members=members), rows=rows)


def _with_texts(group: Group) -> Group:
    """The group with those calls in the loss of which a text is known, and not the ids that were sampled: a likelihood
    asks for no sampler. Each trains in the first row that has it."""
    seen: set[CallKey] = set()
    rows: list[SegmentRow] = []
    tokens: defaultdict[str, int] = defaultdict(int)
    for row in group.rows:
        mask_T, turns = row.loss_mask.copy(), list[Turn]()
        for turn in row.turns:
            call = (row.rollout_id, turn.call_id)
            if turn.masked == Reason.TEXT and call not in seen:
                seen.add(call)
                mask_T[turn.start : turn.end] = 1
                turn = msgspec.structs.replace(turn, masked="")
            turns.append(turn)
        tokens[row.rollout_id] += int(mask_T.sum())
        rows.append(msgspec.structs.replace(row, loss_mask=mask_T, turns=tuple(turns)))
    rows = [msgspec.structs.replace(row, rollout_tokens=tokens[row.rollout_id]) for row in rows]
    return replace(group, rows=tuple(rows)) if seen else group


def in_form(groups: Sequence[Group], form: Rows, *, max_row_tokens: int) -> Sequence[Group]:
    """The groups with rows of this form.

    `transitions` are the paper's (arXiv:2508.03680, eq. 6), what its batches are made of; `concatenated` is the form
    of trainers that know a rollout as one sequence. No token is lost to a bound: where a segment would make a
    concatenated row longer than `max_row_tokens`, which no segment is, a new row begins with it.
    """
    if form == "segments":
        return groups
    if form == "transitions":
        return [replace(group, rows=tuple(one for row in group.rows for one in _transitions(row))) for group in groups]
    return [replace(group, rows=tuple(map(_joined, _runs(group.rows, max_row_tokens)))) for group in groups]


def _transitions(row: SegmentRow) -> Iterator[SegmentRow]:
    """Masked calls too: their returns are others' peers."""
    for turn in sorted(row.turns, key=lambda turn: turn.start):
        mask_T, logprobs_T = row.loss_mask[: turn.end].copy(), row.logprobs[: turn.end].copy()
        mask_T[: turn.start] = logprobs_T[: turn.start] = 0
        yield msgspec.structs.replace(
            row, token_ids=row.token_ids[: turn.end], loss_mask=mask_T, logprobs=logprobs_T, turns=(turn,)
        )


def _runs(rows: Iterable[SegmentRow], max_row_tokens: int) -> list[list[SegmentRow]]:
    """The segments of each rollout, as many in a run as the bound allows."""
    by_rollout: defaultdict[str, list[list[SegmentRow]]] = defaultdict(list)
    lengths: defaultdict[str, int] = defaultdict(int)
    for row in rows:
        runs = by_rollout[row.rollout_id]
        lengths[row.rollout_id] += len(row.token_ids)
        if not runs or lengths[row.rollout_id] > max_row_tokens:
            runs.append([])
            lengths[row.rollout_id] = len(row.token_ids)
        runs[-1].append(row)
    return [run for runs in by_rollout.values() for run in runs]


def _joined(run: Sequence[SegmentRow]) -> SegmentRow:
    """One row, whose number is its first segment's."""
    starts = accumulate((len(row.token_ids) for row in run), initial=0)
    return msgspec.structs.replace(
        run[0],
        token_ids=np.concatenate([row.token_ids for row in run]),
        loss_mask=np.concatenate([row.loss_mask for row in run]),
        logprobs=np.concatenate([row.logprobs for row in run]),
        turns=tuple(_moved(turn, start) for row, start in zip(run, starts, strict=False) for turn in row.turns),
    )


def _moved(turn: Turn, num_tokens: int) -> Turn:
    return msgspec.structs.replace(turn, start=turn.start + num_tokens, end=turn.end + num_tokens)
