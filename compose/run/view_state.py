"""What the views of a run fold its records into."""

from __future__ import annotations

from tracegrad.consumers.views.run_state import RunState

from .wiring import Wiring


def run_state(wiring: Wiring) -> RunState:
    """What the views of a run read, empty."""
    policy, weights = wiring.settings.policy.name, str(wiring.run_dir.weights)
    return RunState(wiring.topics, wiring.record.hash, policy, root=weights)
