"""A tiny Qwen2 that has learnt a few answers by heart, spelt letter by letter, for tests on the real engine.

Its tokenizer merges letters, so that rendering one of its answers again always gives other ids than were sampled.
torch and transformers are imported when called.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.tiny_models import small_model

DATA = Path(__file__).parents[2] / "data"
TEMPLATES = ("qwen2_5", "trimming")
"""Of the engines that the tests of this folder share."""
OWN_TOKENIZER = os.environ.get("TRACEGRAD_TEST_TOKENIZER")
"""A tokenizer.json to use instead of the fixture's: random weights then; only splice and logprobs are looked at."""
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "calc",
            "description": "a calculator",
            "parameters": {"type": "object", "properties": {"expr": {"type": "string"}}},
        },
    }
]


def _call(expr: str) -> str:
    return '<tool_call>\n{"name": "calc", "arguments": {"expr": "' + expr + '"}}\n</tool_call>'


ANSWERS = {
    "say something": "the answer is  plain text",
    "use the tool": _call("12+34"),
    "use it twice": _call("1+2") + "\n" + _call("3+4"),
    "think, then use it": "I should add. " + _call("5+6"),
    "say nothing": "",
    "just chat": "no tool needed",
    "stop early": "one two three four",
    "break it": '<tool_call>\n{"name": "calc", "arg',
}
"""What the user says -> what the model has learnt to answer."""


Row = list[tuple[list[int], bool]]
"""Ids that the model learns from, in order, and whether it is to say them."""


def tools_for(said: str) -> list[dict[str, Any]] | None:
    """The tools that the request has; two answers are learnt without any."""
    return None if said in ("say something", "stop early") else TOOLS


def _answers(tokenizer: Any) -> list[Row]:
    rows: list[Row] = []
    for said, answer in ANSWERS.items():
        messages = [{"role": "user", "content": said}]
        rendered = tokenizer.apply_chat_template(
            messages, tools=tools_for(said), add_generation_prompt=True, tokenize=False
        )
        rows.append([(tokenizer.encode(rendered, add_special_tokens=False), False), (spelt(tokenizer, answer), True)])
    return rows


def make_taught_model(
    folder: Path,
    template: str,
    *,
    rows_of: Callable[[Any], list[Row]] = _answers,
    tokenizer_file: Path = DATA / "tokenizer.json",
    steps: int = 400,
) -> Path:
    """Writes model and tokenizer.

    Args:
        template: the chat template's text.
        rows_of: what it learns, by its tokenizer; the end of a message follows whatever it is to say.
        steps: of training at most; 0 leaves random weights (for large vocabularies).
    """
    import torch
    import transformers

    library: Any = transformers
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer: Any = library.PreTrainedTokenizerFast(
        tokenizer_file=str(tokenizer_file), eos_token="<|im_end|>", pad_token="<|endoftext|>", model_max_length=1024
    )
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    torch.set_num_threads(2)
    model = small_model(
        "qwen2",
        vocab_size=len(tokenizer),
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.convert_tokens_to_ids("<|im_end|>"),
        pad_token_id=tokenizer.convert_tokens_to_ids("<|endoftext|>"),
    ).float()
    if steps:
        _teach(model, rows_of(tokenizer), tokenizer.convert_tokens_to_ids("<|im_end|>"), steps)
    model.save_pretrained(folder)
    return folder


def _teach(model: Any, rows: list[Row], end: int, steps: int) -> None:
    import torch

    whole = [[(ids + [end] * is_said, is_said) for ids, is_said in row] for row in rows]
    length = max(sum(len(ids) for ids, _ in row) for row in whole)
    ids_RT = torch.full((len(rows), length), end)
    labels_RT = torch.full((len(rows), length), -100)
    mask_RT = torch.zeros((len(rows), length), dtype=torch.long)
    for i, row in enumerate(whole):
        start = 0
        for ids, is_said in row:
            stop = start + len(ids)
            ids_RT[i, start:stop] = torch.tensor(ids)
            if is_said:
                labels_RT[i, start:stop] = torch.tensor(ids)
            start = stop
        mask_RT[i, :start] = 1
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.0)
    for _ in range(steps):
        loss = model(input_ids=ids_RT, attention_mask=mask_RT, labels=labels_RT).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if float(loss.detach()) < 0.003:
            return
    raise RuntimeError("expected the model to learn its answers, it did not; give it more steps")


def spelt(tokenizer: Any, text: str) -> list[int]:
    """Its ids letter by letter, so that rendering the text again gives others."""
    return [token for letter in _letters(text) for token in tokenizer.encode(letter, add_special_tokens=False)]


def _letters(text: str) -> list[str]:
    """Letters, with the two tags of a tool call whole."""
    letters: list[str] = []
    while text:
        tag = next((tag for tag in ("<tool_call>", "</tool_call>") if text.startswith(tag)), text[0])
        letters.append(tag)
        text = text[len(tag) :]
    return letters
