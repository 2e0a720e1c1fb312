"""What OpenAI's chat completions and completions have in common: how to sample, and what it cost. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tracegrad.schemas.errors import RequestError

from .chat_request import ChatRequest, Wishes
from .events import Finished
from .reading import read_as

__all__ = ["ASKED", "check_best_of", "includes_usage", "usage", "wishes_of"]

ASKED = (
    "temperature", "top_p", "top_k", "min_p", "max_tokens", "max_completion_tokens", "stop", "seed", "n",
    "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "min_tokens", "ignore_eos",
    "bad_words", "allowed_token_ids", "stop_token_ids", "length_penalty", "use_beam_search", "tool_choice",
    "parallel_tool_calls", "response_format", "structured_outputs", "guided_json", "guided_regex",
    "guided_choice", "guided_grammar", "logprobs", "top_logprobs", "reasoning_effort",
)  # fmt: skip
"""Fields that are kept on the record as they were asked."""
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


def wishes_of(body: dict[str, Any], names: Mapping[str, str], **instead: Any) -> Wishes:
    """The sampling fields of a body, or what stands for some of them, and their names in this API. Raises
    RequestError."""
    named = {name: body[name] for name in Wishes.__struct_fields__ if body.get(name) is not None} | instead
    if isinstance(named.get("stop"), str):
        named["stop"] = [named["stop"]]
    named["filters"] = {
        name: body[name] for name, neutral in _FILTERS.items() if body.get(name) not in (None, neutral, {}, [])
    }
    return read_as(named, Wishes, names)


def check_best_of(body: dict[str, Any], num_choices: int | None) -> None:
    """Raises RequestError for a choice that would be made here."""
    if body.get("best_of") not in (None, 1, num_choices):
        raise RequestError("best_of: expected none, for whoever trains chooses by rewards; ask for n", param="best_of")


def includes_usage(request: ChatRequest) -> bool:
    """Whether a stream is to tell what it cost."""
    options = request.extra.get("stream_options")
    return isinstance(options, dict) and bool(options.get("include_usage"))


def usage(finished: Finished) -> dict[str, int]:
    """What an answer cost."""
    return {
        "prompt_tokens": finished.prompt_tokens,
        "completion_tokens": finished.sampled_tokens,
        "total_tokens": finished.prompt_tokens + finished.sampled_tokens,
    }
