"""The one place that knows which fold runs which stage."""

from __future__ import annotations

from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.fold import Fold
from tracegrad.schemas.metrics import Metrics
from tracegrad.schemas.topics import Stage, Topics

from .assemble.fold import Assemble
from .config import StreamRules
from .credit.fold import Credit
from .normalize.fold import Normalize

_FOLDS: dict[Stage, type[Normalize | Assemble | Credit]] = {fold.stage: fold for fold in (Normalize, Assemble, Credit)}


def build_fold(stage: Stage, rules: StreamRules, topics: Topics, metrics: Metrics | None = None) -> Fold:
    """An empty fold for a stage; `topics` tells which raw topic a full name stands for, and how large a record may be.

    Raises:
        ConfigurationError: the stage is not one of the streams.
    """
    if stage not in _FOLDS:
        raise ConfigurationError(f"expected a stage of {[name.value for name in _FOLDS]}, got {stage.value!r}")
    return _FOLDS[stage](rules, topics, metrics)
