"""A trainer starts: from the newest checkpoint, or at step 0; then it does what the one before had not done.

In: checkpoints, the policy's versions and steps on the log. Out: where training stands, with the learner set to it; on
return of `begin` the run's present version is announced and its last step recorded. A fresh run checkpoints step 0 and
publishes version 0. On failure: ConfigurationError, LogGapError; what store.py has.
"""

from __future__ import annotations

import logging

import msgspec

from tracegrad.schemas.errors import ConfigurationError, LogGapError
from tracegrad.schemas.records.training import TRAINING_STEPS, TrainingStep

from ..config import TrainerHandles
from ..learner import Learner
from .checkpoint import Checkpoints, CheckpointState, Progress
from .policy_log import PolicyLog
from .store import Rollbacks, Store

_log = logging.getLogger(__name__)


def resume(handles: TrainerHandles, checkpoints: Checkpoints, policy_log: PolicyLog, learner: Learner) -> Progress:
    """Sets the learner to the newest checkpoint and says where it stands; step 0, with no files, without one.

    One older than what was published is the beginning of a replay (publish.py).

    Raises:
        ConfigurationError: the checkpoint is another run's, or there is none and versions were published.
        LogGapError: its offset is one of a topic that is no more.
    """
    fresh = Progress(CheckpointState(policy=handles.policy, run=handles.run_hash))
    progress, tensors = checkpoints.load_newest() or (fresh, {})
    state = progress.state
    if (state.run, state.policy) != (handles.run_hash, handles.policy):
        raise ConfigurationError(
            f"{handles.work_dir}: expected checkpoints of run {handles.run_hash!r}, policy {handles.policy!r}, got "
            f"{state.run!r}, {state.policy!r}: give each policy of each run a folder of its own"
        )
    topic_id = policy_log.transitions_id
    if topic_id != state.topic_id and state.topic_id and topic_id:
        raise LogGapError(
            f"expected `transitions` with the id {state.topic_id}, in which the checkpoint of step {state.step} names "
            f"offset {state.next_offset}, got {topic_id}: the topic was deleted and made anew; restore it, or start "
            "another run (--run NAME), whose [policy] model may be this one's newest version"
        )
    newest = policy_log.lineage.newest
    published = newest.version if newest else 0
    if published and not tensors:
        raise ConfigurationError(
            f"expected a checkpoint of policy {handles.policy!r}, whose version {published} was published, under "
            f"{handles.work_dir}, got none: restore the folder, or start a new run"
        )
    if tensors:
        learner.restore(tensors)
        known, now = state.settings, learner.settings
        changed = [f"{name} {known[name]} -> {now[name]}" for name in now if known.get(name, now[name]) != now[name]]
        if changed:
            _log.warning("[trainer], [algorithm] changed since step %d of this run: %s", state.step, ", ".join(changed))
        _log.info("resumes: step=%d version=%d next_offset=%d", state.step, state.version, state.next_offset)
        if published > state.version:
            _log.warning("version %d was published after this checkpoint: the log is replayed from there", published)
    progress.state = msgspec.structs.replace(
        state, epoch=policy_log.epoch, settings=learner.settings, topic_id=topic_id
    )
    return progress


def begin(store: Store, rollbacks: Rollbacks) -> list[TrainingStep]:
    """Publishes and records what is missing, rolls back where the last step calls for it; the steps that this run
    recorded before the next one."""
    progress, versions = store.progress, store.versions
    source, policy_log = versions.source, versions.policy_log
    store.save()
    is_lost = versions.is_lost(policy_log.lineage.versions.get(store.state.version))
    if not store.state.num_unpublished:
        if is_lost:
            store.save(publishes=True)
    elif not source.is_repeat and (is_lost or source.is_last(store.state.step, store.state.next_offset)):
        _publish_rest(store)
    if progress.training_step is None:
        return []
    steps = policy_log.training_steps(progress.training_step)
    rollbacks.ask_where_worse(steps[-1])
    return steps


def _publish_rest(store: Store) -> None:
    """The weights that no version holds under a number of their own: the newest step leads to it, told anew."""
    progress, before = store.progress, store.state
    assert progress.training_step is not None
    record = TRAINING_STEPS.decode(progress.training_step)
    assert isinstance(record, TrainingStep)
    version = store.versions.next_number()
    told = msgspec.structs.replace(record, version=version, num_unpublished=0, epoch=before.epoch)
    progress.training_step = TRAINING_STEPS.encode(told)
    progress.advance(version=version, base_version=before.version, num_unpublished=0)
    store.save(publishes=True)
