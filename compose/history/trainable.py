"""Whether a history can be trained on: a model reads its token ids as the one did that sampled them, and it holds a
call to train on; else how many calls there were, and why none trains.

In: two model folders, before anything is written; later `transitions` of the new run, and, only where nothing trains,
its `episodes`. Out: nothing; one sentence. Invariants: of a model nothing but what text an id stands for is compared;
groups are judged as the trainer does before its first step, so that a run without anything to learn loads no model and
publishes no version, up to the first that trains. Failure: ConfigurationError where an id is another text; a folder
that is gone, or has no tokenizer.json, cannot be compared, and is taken: the trainer still refuses ids that its model
does not have.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from tracegrad.schemas.alarms import untrained_text
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.log.follow import decoded, read_to_end
from tracegrad.schemas.reasons import Reason
from tracegrad.schemas.records.calls import Purpose
from tracegrad.schemas.records.episodes import EPISODES, why_excluded
from tracegrad.schemas.topics import Topic
from tracegrad.trainer.batch.groups import GroupLimits, filtered, judge, why_untrained

from ..run.wiring import Wiring

_ANY_VOCABULARY = 2**31
"""check_vocabulary has looked at it."""
_FILE = "tokenizer.json"
_TOLD = 3
"""Ids named of those that differ."""


def why_nothing_trains(into: Wiring) -> str:
    """Empty where the trainer of this run would find a call in the loss, and where it repeats another's steps."""
    history = into.run_dir.history
    if history is None or history.mode == "same":
        return ""
    policy, rows = into.settings.policy.name, into.settings.trainer.max_row_tokens
    limits = GroupLimits(policy=policy, vocabulary=_ANY_VOCABULARY, max_row_tokens=rows)
    groups, members, calls = Counter[str](), Counter[str](), Counter[str]()
    for record in read_to_end(into.log(), into.topics.name(Topic.TRANSITIONS)):
        verdict = judge(record, limits)
        if (group := verdict.group) is None:
            groups[verdict.reason] += 1
            continue
        reason, masks = why_untrained(group, history.run), [turn.masked for turn in group.turns.values()]
        if history.mode == "filter" and not reason:
            group = filtered(group, history.config)
        if not reason and any(row.loss_mask.any() for row in group.rows):
            return ""
        # A bound that excludes its members is no cause where not one of its calls could train.
        is_masked = bool(masks) and not {"", Reason.TEXT.value} & {*masks}
        groups[reason or (Reason.NO_TOKENS if group.rows or is_masked else Reason.ALL_MEMBERS_EXCLUDED)] += 1
        members.update(one.excluded for one in group.summary.members if one.excluded)
        calls.update(filter(None, masks))
    num_calls, num_episodes, alone = _recorded(into, policy)
    if not groups:
        groups, members = Counter({Reason.ALL_MEMBERS_EXCLUDED.value: 1}), alone
    why = untrained_text(groups, members, calls)
    return (
        f"nothing to train: {num_calls} calls of {policy} in {num_episodes} episodes, none of them in the loss, so no "
        f"version is published. {why}"
    )


def _recorded(into: Wiring, policy: str) -> tuple[int, int, Counter[str]]:
    """Calls of the policy, the episodes, and why these are in no group, if they are not; none of what is held out."""
    num_calls, num_episodes, reasons = 0, 0, Counter[str]()
    topic = into.topics.name(Topic.EPISODES)
    for _, episode in decoded(read_to_end(into.log(), topic), {topic: EPISODES}):
        if episode.purpose is Purpose.VALIDATION:
            continue
        num_episodes += 1
        num_calls += sum(call.policy == policy for call in episode.calls)
        reasons[why_excluded(episode, policy) or Reason.WITHOUT_GROUP] += 1
    return num_calls, num_episodes, reasons


def check_vocabulary(source: str | None, own: str | None) -> None:
    """Raises ConfigurationError where an id of the source's model is another text, or none, in the new run's."""
    if source is None or own is None or Path(source) == Path(own):
        return
    was, now = _texts(Path(source)), _texts(Path(own))
    if not was or not now:
        return
    changed = sorted(id_ for id_, text in was.items() if now.get(id_) != text)
    if changed:
        told = ", ".join(f"{id_} is {was[id_]!r} there, {now.get(id_)!r} here" for id_ in changed[:_TOLD])
        raise ConfigurationError(
            f"[policy] model: expected the vocabulary of the source's model in {source}, since a history is token ids, "
            f"got another in {own}: {told}, {len(changed)} of {len(was)} ids in all; name a model of the same tokenizer"
        )


def _texts(folder: Path) -> dict[int, str]:
    """Id -> text; nothing where that is not told so."""
    try:
        found: Any = msgspec.json.decode((folder / _FILE).read_bytes())
        listed: Any = found["model"]["vocab"]
        ids = listed.items() if isinstance(listed, dict) else ((text, id_) for id_, (text, *_) in enumerate(listed))
        texts = {int(id_): str(text) for text, id_ in ids}
        return texts | {int(one["id"]): str(one["content"]) for one in found.get("added_tokens", ())}
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError, ValueError, AttributeError):
        return {}
