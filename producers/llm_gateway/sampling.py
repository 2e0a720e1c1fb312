"""Which sampling parameters a call uses: forced for rollouts, the request's own for captured agents. Pure.

In: the chat request and the attempt's purpose. Out: what the record says was used, and what the engine is sent.
For a trained policy every field is written here, so that the recorded logprobs are the policy's: only
`max_tokens` and `stop` of the request are honoured. Bad values raise RequestError, which becomes a 400.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tracegrad.schemas.errors import RequestError
from tracegrad.schemas.records.calls import Purpose, SamplingParameters

from .config import PolicyRef

__all__ = ["Sampling", "decide", "engine_parameters"]

_ASKED = (
    "temperature", "top_p", "top_k", "min_p", "max_tokens", "max_completion_tokens", "stop", "seed", "n",
    "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "min_tokens", "ignore_eos",
    "bad_words", "allowed_token_ids", "stop_token_ids", "length_penalty", "use_beam_search", "tool_choice",
    "parallel_tool_calls", "response_format", "structured_outputs", "guided_json", "guided_regex",
    "guided_choice", "guided_grammar", "logprobs", "top_logprobs", "reasoning_effort",
)  # fmt: skip
_FILTERS = {
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "repetition_penalty": 1,
    "logit_bias": None,
    "min_tokens": 0,
    "ignore_eos": False,
    "bad_words": None,
    "allowed_token_ids": None,
}
"""What changes the logits besides the parameters of the record, with the value that changes nothing."""
MAX_STOPS = 16


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """The decision for one call."""

    used: SamplingParameters
    filters: dict[str, Any]
    """Logit filters of a captured agent, passed on as they are."""
    asked: dict[str, Any]
    top_logprobs: int | None
    """None: the agent wants no logprobs."""

    @property
    def is_filtered(self) -> bool:
        """Whether the logprobs are not the policy's own."""
        return bool(self.filters)


def decide(
    request: dict[str, Any],
    *,
    purpose: Purpose,
    policy: PolicyRef,
    validation_temperature: float,
) -> Sampling:
    """The sampling of one call. Raises RequestError for a value of a wrong type or range."""
    if request.get("n") not in (None, 1):
        raise RequestError("n: expected 1, got another value; send one request for each answer", param="n")
    limits = [_number(request, name, low=1, whole=True) for name in ("max_completion_tokens", "max_tokens")]
    limit = limits[0] if limits[0] is not None else limits[1]
    bounds = [int(bound) for bound in (limit, policy.max_tokens) if bound is not None]
    fields: dict[str, Any] = {"max_tokens": min(bounds) if bounds else None, "stop": _stops(request)}
    filters: dict[str, Any] = {}
    if purpose is Purpose.UNKNOWN:
        fields |= _own(request)
        filters = {
            name: request[name]
            for name, neutral in _FILTERS.items()
            if request.get(name) not in (None, neutral, {}, [])
        }
    else:
        greedy = purpose is Purpose.VALIDATION
        fields["temperature"] = validation_temperature if greedy else policy.temperature
    wants_logprobs = bool(request.get("logprobs"))
    top = _number(request, "top_logprobs", low=0, high=20, whole=True) or 0
    return Sampling(
        used=SamplingParameters(**fields),
        filters=filters,
        asked={name: request[name] for name in _ASKED if name in request},
        top_logprobs=int(top) if wants_logprobs else None,
    )


def _own(request: dict[str, Any]) -> dict[str, Any]:
    """The request's own fields, with OpenAI's defaults."""
    temperature = _number(request, "temperature", low=0, high=2)
    top_p = _number(request, "top_p", low=0, high=1)
    top_k = _number(request, "top_k", low=-1, whole=True)
    min_p = _number(request, "min_p", low=0, high=1)
    seed = _number(request, "seed", whole=True)
    if top_p == 0:
        raise RequestError("top_p: expected a number above 0, got 0", param="top_p")
    return {
        "temperature": 1.0 if temperature is None else float(temperature),
        "top_p": 1.0 if top_p is None else float(top_p),
        "top_k": max(0, int(top_k or 0)),
        "min_p": float(min_p or 0),
        "seed": None if seed is None else int(seed),
    }


def _number(
    request: dict[str, Any], name: str, *, low: float | None = None, high: float | None = None, whole: bool = False
) -> float | None:
    value = request.get(name)
    if value is None:
        return None
    is_number = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
    if not is_number or (low is not None and value < low) or (high is not None and value > high):
        kind = "a whole number" if whole else "a number"
        raise RequestError(f"{name}: expected {kind} in [{low}, {high}], got another value", param=name)
    return float(value) if not whole else int(value)


def _stops(request: dict[str, Any]) -> tuple[str, ...]:
    stop = request.get("stop")
    if stop is None:
        return ()
    stops = [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or len(stops) > MAX_STOPS or not all(isinstance(s, str) and s for s in stops):
        raise RequestError(f"stop: expected a string or at most {MAX_STOPS} of them, none empty", param="stop")
    return tuple(stops)


def engine_parameters(sampling: Sampling, constraint: Any) -> dict[str, Any]:
    """`sampling_params` of the engine's generate request; every field is written, so no default applies.

    Args:
        constraint: the grammar that the engine derived from the request (`structured_outputs`), or None.
    """
    used = sampling.used
    parameters: dict[str, Any] = {
        "n": 1,
        "temperature": used.temperature,
        "top_p": used.top_p,
        "top_k": used.top_k,
        "min_p": used.min_p,
        "logprobs": sampling.top_logprobs or 0,
        # Only a search for stop strings needs text, and text costs the engine time.
        "detokenize": bool(used.stop),
        **sampling.filters,
    }
    if used.max_tokens is not None:
        parameters["max_tokens"] = used.max_tokens
    if used.stop:
        parameters["stop"] = list(used.stop)
    if used.seed is not None:
        parameters["seed"] = used.seed
    if constraint is not None:
        parameters["structured_outputs"] = constraint
    return parameters
