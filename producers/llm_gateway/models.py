"""Which model a request means: the policy, by its name or an alias, an upstream that serves it, or nobody here. Pure.

In: the `model` of a request's body. Out: who is meant, or RequestError (404, `model_not_found`) that prints the lines
of the settings that would serve it. Invariant: a request that names another model is never answered by the policy:
whoever asked for it would get, and train on, answers that it takes for the other's. A request without a model means the
policy; without a policy it means nobody. A body that is passed on names one model by every reader's rules.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase

import msgspec

from tracegrad.schemas.errors import RequestError

from .config import PolicyConfig, Upstream

_MAX_CHARS = 200
"""Of a name; a longer one, which anybody may send, matches nothing."""
_MAY_NAME = re.compile(rb'"model"|\\u00[46]', re.IGNORECASE)
"""Where a body names its model, or by escapes what may be the word."""


def check_one_model(data: bytes) -> None:
    """Raises RequestError for a JSON object that names its model more than once, in letters of any case.

    It is passed on as it is: which of two counts, and whether `Model` is the same name, readers of JSON decide
    differently, and the upstream would answer, and charge, for another model than the settings let through.
    """
    if len(_MAY_NAME.findall(data)) < 2:
        return
    try:
        # Objects as lists of pairs; the numbers are not looked at.
        pairs = json.loads(data.decode(), object_pairs_hook=list, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        pairs = []
    if sum(name.lower() == "model" for name, _ in pairs) != 1:
        raise RequestError("model: expected to be named once, got it twice", param="model")


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
