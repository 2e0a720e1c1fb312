"""Which model a request means: the policy, by its name or an alias, or nobody here. Pure.

In: the `model` of a request's body. Out: nothing, or RequestError (404, `model_not_found`) that prints the lines of the
settings that would serve it. Invariant: a request that names another model is never answered by the policy: whoever
asked for it would get, and train on, answers that it takes for the other's. A request without a model means the policy.
"""

from __future__ import annotations

import msgspec

from tracegrad.schemas.errors import RequestError

from .config import PolicyConfig

__all__ = ["check_model"]

_TOLD_CHARS = 80
"""Of a name that anybody may have sent."""


def check_model(model: str | None, policy: PolicyConfig) -> None:
    """Returns when the policy is meant; raises RequestError else."""
    if model is None or model == policy.name or model in policy.aliases:
        return
    name = msgspec.json.encode(model[:_TOLD_CHARS]).decode()
    raise RequestError(
        f"model: expected {policy.name!r}, the policy, or one of its aliases, got {name}; if that is to mean the "
        f"policy, add it to the settings: [policy] aliases = [{name}]",
        status=404,
        param="model",
        code="model_not_found",
    )
