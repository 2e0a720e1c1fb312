"""What assemble rewards an episode by: the rules, and the user's function where `[air]` names one.

In: an Episode. Out: the episode with its automatic rewards. Failure: a function that fails costs the episode what it
would have paid, counted with its reason, as is each payment that does not count; ConfigurationError when it cannot be
imported at the start.
"""

from __future__ import annotations

import logging

from tracegrad.schemas.metrics import AIR_FUNCTION_FAILED, AIR_PAYMENTS_LEFT_OUT, Metrics
from tracegrad.schemas.records.episodes import Episode

from .apply import apply_air, said_of
from .function import Answer, PayFunction
from .rules import AirConfig

__all__ = ["Rewarder"]

_LOGGER = logging.getLogger(__name__)


class Rewarder:
    """Of one fold."""

    def __init__(self, config: AirConfig, metrics: Metrics) -> None:
        self._config = config
        self._metrics = metrics
        is_asked = config.enabled and config.function is not None
        self._function = PayFunction(str(config.function), config.function_limit_s) if is_asked else None

    def __call__(self, episode: Episode) -> Episode:
        """The episode as it is rewarded."""
        answer = self._function(episode) if self._function is not None and episode.calls else Answer()
        if answer.problem:
            self._metrics.add(AIR_FUNCTION_FAILED, answer.problem)
            _LOGGER.warning("[air] function pays nothing for %s: %s", episode.episode_id, answer.detail)
        said = said_of(self._config, episode, answer.pays)
        if num_left_out := len(answer.pays) - len(said):
            self._metrics.add(AIR_PAYMENTS_LEFT_OUT, num=num_left_out)
        return apply_air(self._config, episode, said)
