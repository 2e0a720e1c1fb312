"""Token ids told with a call are believed where they spell its words, and train by a ratio if enough is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.compose.history.telling import (
    ASK,
    CALC,
    CALLS,
    UNTOLD,
    real,
    renderer_of,
    told,
)
from tracegrad.compose.history.rendering import ExactIdRules
from tracegrad.schemas.reasons import Reason
from tracegrad.schemas.records.tokens import ids_to_bytes, logprobs_to_bytes
from tracegrad.schemas.records.told import ChatMessage, ToldCall, ToldIds, ToldSampling

pytestmark = pytest.mark.slow


def with_ids(
    call: ToldCall, text: str, *, prompt: str | None = None, logprobs: int | None = None, more: Any = ()
) -> ToldCall:
    """Told with ids, spelt letter by letter, as no template would."""
    template = real("qwen2_5")
    asked = prompt if prompt is not None else f"<|im_start|>user\n{ASK.content}<|im_end|>\n<|im_start|>assistant\n"
    sampled = [token for letter in text for token in template.encode(letter)] + [*more, template.special("<|im_end|>")]
    count = len(sampled) if logprobs is None else logprobs
    ids = ToldIds(
        prompt=ids_to_bytes(template.encode(asked)),
        sampled=ids_to_bytes(sampled),
        logprobs=logprobs_to_bytes([-0.5] * count),
    )
    return msgspec.structs.replace(call, ids=ids)


AT_ONE: dict[str, Any] = {"sampling": ToldSampling(temperature=1.0, top_p=1.0, top_k=-1)}
SPELT = "<think>\nhm\n</think>\n\nIt is 3.\n\nReally."
CALLED = '<tool_call>\n{"name": "calc", "arguments": {"expr": "1+\\"2\\"", "n": 1.50}}\n</tool_call>'


@pytest.mark.parametrize(
    ("call", "masked"),
    [
        (with_ids(told(**AT_ONE), SPELT), ""),
        (with_ids(told(**AT_ONE, **UNTOLD), SPELT), ""),
        (with_ids(told(answer=CALLS, **AT_ONE), CALLED), ""),
        (with_ids(told(**AT_ONE), SPELT, logprobs=0), Reason.NO_LOGPROBS_TOLD),
        (with_ids(told(**AT_ONE), SPELT, logprobs=3), Reason.BAD_LOGPROBS),
        (with_ids(told(), SPELT), Reason.NO_TEMPERATURE_TOLD),
        (with_ids(told(sampling=ToldSampling(temperature=0.7)), SPELT), Reason.RAW_LOGPROBS),
        (with_ids(told(sampling=ToldSampling(temperature=1.0, top_p=0.9)), SPELT), Reason.RAW_LOGPROBS),
        (with_ids(told(sampling=ToldSampling(temperature=1.0, top_k=20)), SPELT), Reason.RAW_LOGPROBS),
        (with_ids(told(sampling=ToldSampling(temperature=1.0, min_p=0.1)), SPELT), Reason.RAW_LOGPROBS),
    ],
)
def test_told_ids_that_spell_the_words_are_taken_as_they_are(tmp_path: Path, call: ToldCall, masked: str) -> None:
    """With their logprobs; by a ratio they train where these are of the distribution that sampled them."""
    got = renderer_of(tmp_path, "qwen2_5").tokens(call)
    assert call.ids is not None
    assert (got.reason, got.masked) == ("", masked)
    assert ids_to_bytes(got.prompt) == call.ids.prompt and ids_to_bytes(got.answer) == call.ids.sampled


@pytest.mark.parametrize(
    ("call", "rules", "masked", "temperature"),
    [
        (told(), ExactIdRules(temperature=1.0), "", 1.0),
        (told(), ExactIdRules(temperature=0.7), Reason.RAW_LOGPROBS, 0.7),
        (told(), ExactIdRules(temperature=0.7, are_processed=True), "", 0.7),
        (told(sampling=ToldSampling(temperature=0.5)), ExactIdRules(temperature=1.0, are_processed=True), "", 0.5),
        (told(), ExactIdRules(are_processed=True), Reason.NO_TEMPERATURE_TOLD, None),
    ],
)
def test_the_user_may_say_what_spans_do_not(
    tmp_path: Path, call: ToldCall, rules: ExactIdRules, masked: str, temperature: float | None
) -> None:
    """A span's own temperature goes before; logprobs behind it may be of any."""
    got = renderer_of(tmp_path, "qwen2_5", rules).tokens(with_ids(call, SPELT))
    assert (got.reason, got.masked, got.temperature) == ("", masked, temperature)


@pytest.mark.parametrize(
    "call",
    [
        with_ids(told(**AT_ONE), "It is 4.\n\nReally."),
        with_ids(told(**AT_ONE), "so It is 3.\n\nReally. so"),
        with_ids(told(**AT_ONE), SPELT, prompt="something else"),
        with_ids(told(**AT_ONE), SPELT, prompt=""),
        with_ids(told(ChatMessage(role="user", content=" "), **AT_ONE), SPELT),
        with_ids(told(answer=ChatMessage(role="assistant", content=""), **AT_ONE), SPELT),
        with_ids(told(answer=CALLS, tools=(CALC,), **AT_ONE), CALLED.replace("calc", "cald")),
        with_ids(told(answer=CALLS, tools=(CALC,), **AT_ONE), CALLED.replace("1+", "2+")),
        with_ids(told(**AT_ONE), SPELT, more=(500_000,)),
        msgspec.structs.replace(told(), ids=ToldIds(prompt=ids_to_bytes([-1]), sampled=ids_to_bytes([3]))),
    ],
)
def test_ids_of_another_tokenizer_are_not_believed(tmp_path: Path, call: ToldCall) -> None:
    """The call is its words then, and says why."""
    renderer = renderer_of(tmp_path, "qwen2_5")
    got, plain = renderer.tokens(call), renderer.tokens(msgspec.structs.replace(call, ids=None))
    assert (got.reason, got.masked, got.logprobs) == ("", Reason.OTHER_TOKENIZER, None)
    assert np.array_equal(got.prompt, plain.prompt) and np.array_equal(got.answer, plain.answer)


@pytest.mark.parametrize("text", ["It is 3.\n\nReally.END", "No: It is 3.\n\nReally."])
def test_ids_that_spell_more_than_the_answer_are_not_believed(tmp_path: Path, text: str) -> None:
    """Be it a stop string or another answer: nobody told it."""
    found = renderer_of(tmp_path / "m", "qwen2_5").tokens(with_ids(told(**AT_ONE), text))
    assert found.masked == Reason.OTHER_TOKENIZER and found.logprobs is None
