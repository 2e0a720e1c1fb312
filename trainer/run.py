"""One policy's training, as compose starts it: on `transitions` that grow, or on another run's history.

At start: load the model, claim an epoch, then load the newest checkpoint (in this order: what an older trainer writes
after the claim is void). In: settings and handles; a log. Out: what the trainer writes. Blocking; it ends when `steps`
batches are done, when the history is consumed, or when it is told to stop.
"""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack, closing
from pathlib import Path

from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.log.protocol import Log, TopicPartition
from tracegrad.schemas.log.refusals import Refusals
from tracegrad.schemas.metrics import Metrics
from tracegrad.schemas.policies import partition_of
from tracegrad.schemas.topics import Topic, Topics

from .algorithm.recipe import Recipe
from .algorithm.trial import try_functions
from .backends.single import load_learner
from .batch.batches import TransitionsReader
from .batch.groups import GroupLimits
from .config import WAITS, AlarmsConfig, AlgorithmConfig, TrainerConfig, TrainerHandles, Waits
from .history.compare import OF_THE_MACHINE, require_recipe
from .history.offline import HistorySource
from .history.record import read_record
from .history.same import SameSource
from .learner import Learner
from .loop import Trainer
from .source import BatchReader, LiveSource, Source
from .store.checkpoint import Checkpoints
from .store.policy_log import PolicyLog
from .store.publish import Versions
from .store.resume import begin, resume
from .store.store import Rollbacks, Store
from .store.work_marks import WorkMarks


def run(
    config: TrainerConfig,
    algorithm: AlgorithmConfig,
    alarms: AlarmsConfig,
    handles: TrainerHandles,
    *,
    topics: Topics,
    log: Log,
    stop: threading.Event,
    metrics: Metrics,
    waits: Waits = WAITS,
    overlaps: bool | None = None,
) -> None:
    """Trains until there is nothing left to do, or `stop` is set. `overlaps`: as `Store` has it.

    Raises:
        FencedError: another trainer claimed the policy.
        DivergedError: loss, gradients or logits are no numbers any more; or an alarm is to stop the run.
        ConfigurationError, LogGapError: a person must act.
        UnavailableError, OSError: a restart may cure it.
    """
    recipe, history = _recipe(algorithm, handles), handles.history
    if history is not None and history.mode == "same":
        alarms = AlarmsConfig()  # whatever went wrong in the source is to go wrong again
    work_dir, at = Path(handles.work_dir), TopicPartition(topics.name(Topic.TRANSITIONS), partition_of(handles.policy))
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(work_dir / "compiled"))
    with ExitStack() as ends:
        learner = load_learner(config, recipe, handles, is_told_to_stop=stop.is_set)
        writer = ends.enter_context(closing(log.writer()))
        policy_log = PolicyLog(handles, topics=topics, log=log, writer=writer, metrics=metrics)
        ends.enter_context(closing(policy_log))
        policy_log.claim()
        checkpoints = Checkpoints(work_dir / "checkpoints", keep=config.keep_checkpoints)
        progress = resume(handles, checkpoints, policy_log, learner)
        marks, refusals = WorkMarks(work_dir / "in-work", at), Refusals(topics, metrics, stops=True)
        limits = GroupLimits(handles.policy, learner.vocabulary, config.max_row_tokens)
        next_offset = progress.state.next_offset
        transitions = ends.enter_context(
            closing(TransitionsReader(log, at, next_offset=next_offset, poll_s=waits.poll_s))
        )
        reader = BatchReader(transitions, marks, limits, recipe, refusals, stop)
        source = _source(config, recipe, handles, learner, policy_log, reader, metrics, waits)
        window = alarms.window(is_captured=handles.trains_captured) if history is None else 0
        versions = Versions(config, handles, learner, policy_log, progress, source, window)
        store = Store(versions, checkpoints, refusals, overlaps)
        ends.callback(store.pool.shutdown)
        rollbacks = Rollbacks(store)
        past_steps = begin(store, rollbacks)
        Trainer(store, rollbacks, past_steps, alarms, recipe, handles.seed, marks, metrics, stop, waits).train()


def _source(
    config: TrainerConfig,
    recipe: Recipe,
    handles: TrainerHandles,
    learner: Learner,
    policy_log: PolicyLog,
    reader: BatchReader,
    metrics: Metrics,
    waits: Waits,
) -> Source:
    history = handles.history
    if history is None:
        return LiveSource(config, reader, policy_log, metrics, waits)
    if history.mode != "same":
        return HistorySource(history, config, recipe, learner, reader, metrics)
    settings = learner.settings
    own = {key: settings[key] for key in OF_THE_MACHINE if key in settings}
    own |= {"seed": str(handles.seed), **learner.machine}
    record = read_record(history.record, handles.policy)
    return SameSource(history, record, config, own, reader, policy_log, metrics)


def _recipe(algorithm: AlgorithmConfig, handles: TrainerHandles) -> Recipe:
    """Raises ConfigurationError: it, or a function of it, cannot work, or not on this history."""
    try:
        recipe = algorithm.resolve()
        try_functions(recipe)
    except ConfigurationError as error:
        raise ConfigurationError(f"[algorithm] {error}") from error
    if handles.history is not None:
        require_recipe(handles.history, recipe)
    return recipe
