"""The accounting beside a trainer that gives groups back while it reads a batch."""

from __future__ import annotations

import msgspec

from tests.consumers.audit.small_run import audited, memory_log, step
from tests.consumers.audit.test_audit import filled, run
from tests.streams.make import TOPICS
from tests.versions import RUN
from tracegrad.schemas.records.training import TRAINING_STEPS, Accounting, GroupsGivenBack
from tracegrad.schemas.records.transitions import group_id_of
from tracegrad.schemas.topics import Topic


def test_a_group_that_was_given_back_is_accounted_for_once() -> None:
    """It waits for the step that excludes it, by whatever epoch it is said again."""
    log = memory_log(run())
    name = TOPICS.name(Topic.TRAINING_STEPS)
    waiting = group_id_of(log.records(TOPICS.name(Topic.TRANSITIONS))[2].value) or ""
    for epoch in (1, 1, 2):
        word = GroupsGivenBack(run=RUN, policy="policy", epoch=epoch, step=3, consumed=3, group_ids=(waiting,))
        log.append(name, b"policy", TRAINING_STEPS.encode(word), (), 0)
    report = audited(log)
    assert (report.missing, report.groups.terms) == ([], {"trained": 2, "waiting": 1})
    last = msgspec.structs.replace(
        step(3),
        excluded_ids={waiting: "no_spread"},
        skipped="no_tokens",
        is_updated=False,
        version=2,
        accounting=Accounting(consumed=3, trained=2, excluded={"no_spread": 1}),
    )
    log.append(name, b"policy", TRAINING_STEPS.encode(filled(log, last, "no_spread")), (), 0)
    report = audited(log)
    assert (report.missing, report.groups.terms) == ([], {"trained": 2, "excluded: no_spread": 1})
    (reason,) = report.groups.reasons
    assert reason.startswith("no_spread: Its rollouts earned equal rewards")


def test_a_group_that_was_given_back_and_trained_all_the_same_is_named() -> None:
    """Another was admitted in its stead."""
    log = memory_log(run())
    trained = group_id_of(log.records(TOPICS.name(Topic.TRANSITIONS))[0].value) or ""
    word = GroupsGivenBack(run=RUN, policy="policy", epoch=1, step=1, consumed=1, group_ids=(trained,))
    log.append(TOPICS.name(Topic.TRAINING_STEPS), b"policy", TRAINING_STEPS.encode(word), (), 0)
    assert audited(log).missing == [f"group given back but not excluded by step 1: {trained}"]
