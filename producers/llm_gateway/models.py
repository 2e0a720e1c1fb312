"""Which model a request means: the policy, by its name or an alias, an upstream that serves it, or nobody here. Pure.

In: the `model` of a request's body. Out: who is meant, or RequestError (404, `model_not_found`) that prints the lines
of the settings that would serve it. Invariant: a request that names another model is never answered by the policy:
whoever asked for it would get, and train on, answers that it takes for the other's. A request without a model means the
policy; without a policy it means nobody.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

import msgspec

from tracegrad.schemas.errors import RequestError

from .config import PolicyConfig, Upstream

__all__ = ["Models"]

_MAX_CHARS = 200
"""Of a name; a longer one, which anybody may send, matches nothing."""


class Models:
    """The models of one gateway."""

    def __init__(self, policy: PolicyConfig, upstreams: tuple[Upstream, ...]) -> None:
        self._policy = policy
        self._upstreams = upstreams

    def meant(self, model: object) -> Upstream | None:
        """The upstream that a body's `model` means; None: the policy is meant, or it is no name and the reader of the
        API says so. Raises RequestError."""
        own = self._policy.names
        if model in own or (own and not isinstance(model, str)):
            return None
        if not isinstance(model, str):
            raise self._unknown("none")
        if len(model) <= _MAX_CHARS:
            for upstream in self._upstreams:
                if any(
                    fnmatchcase(model, pattern.replace("[", "[[]").replace("?", "[?]")) for pattern in upstream.models
                ):
                    return upstream
        raise self._unknown(msgspec.json.encode(model[:_MAX_CHARS]).decode())

    def listed(self) -> Iterator[str]:
        """Every name that can be asked for; patterns have none."""
        yield from self._policy.names
        for upstream in self._upstreams:
            yield from (name for name in upstream.models if "*" not in name)

    def _unknown(self, name: str) -> RequestError:
        own = f"[policy] aliases = [{name}]" if self._policy.names else "[policy] model = DIR (there is no policy now)"
        return RequestError(
            f"model: expected {self._policy.name!r}, the policy, or a name that the settings give to it or to an "
            f"upstream, got {name}. If it is to mean the policy: {own}. If it is to be passed on: [[upstream]] models "
            f'= [{name}], url = "https://api.openai.com/v1", api_key_env = "OPENAI_API_KEY" (or whose it is; '
            "docs/upstreams.md)",
            status=404,
            param="model",
            code="model_not_found",
        )
