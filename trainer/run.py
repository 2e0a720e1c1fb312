"""One policy's training, as compose starts it: on `transitions` that grow, or on another run's history.

In: settings and handles; a log. Out: what the trainer writes. Blocking; it ends when `steps` batches are done, when the
history is consumed, or when it is told to stop.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack

from tracegrad.schemas.log.protocol import Log
from tracegrad.schemas.metrics import Metrics
from tracegrad.schemas.topics import Topics

from .config import AlarmsConfig, AlgorithmConfig, TrainerConfig, TrainerHandles
from .history.same import SameTrainer
from .history.trainer import HistoryTrainer
from .loop import Trainer

__all__ = ["run"]


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
) -> None:
    """Trains until there is nothing left to do, or `stop` is set.

    Raises:
        FencedError: another trainer claimed the policy.
        DivergedError: loss, gradients or logits are no numbers any more; or an alarm is to stop the run.
        ConfigurationError, LogGapError: a person must act.
        UnavailableError, OSError: a restart may cure it.
    """
    history = handles.history
    kind = Trainer if history is None else SameTrainer if history.mode == "same" else HistoryTrainer
    with ExitStack() as ends:
        kind(config, algorithm, alarms, handles, topics=topics, log=log, metrics=metrics, ends=ends, stop=stop).train()
