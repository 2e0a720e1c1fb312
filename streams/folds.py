"""The one place that knows which fold runs which stage."""

from __future__ import annotations

from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.fold import Fold
from tracegrad.schemas.metrics import Metrics
from tracegrad.schemas.topics import STREAMS, Stage, Topics

from .assemble.fold import Assemble
from .config import StreamRules
from .credit.fold import Credit
from .normalize.fold import Normalize

__all__ = ["build_fold"]


def build_fold(stage: Stage, rules: StreamRules, topics: Topics, metrics: Metrics | None = None) -> Fold:
    """An empty fold for a stage; `topics` tells which raw topic a full name stands for, and how large a record may be.

    Raises:
        ConfigurationError: the stage is not one of the streams.
    """
    if stage is Stage.NORMALIZE:
        return Normalize(rules, topics, metrics)
    if stage is Stage.ASSEMBLE:
        return Assemble(rules, topics, metrics)
    if stage is Stage.CREDIT:
        return Credit(rules, topics, metrics)
    raise ConfigurationError(f"expected a stage of {[name.value for name in STREAMS]}, got {stage.value!r}")
