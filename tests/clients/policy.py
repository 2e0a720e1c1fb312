"""A tiny policy that has learnt the clients' whole conversation by heart, and what its answers are.

It is sampled freely, tools and all: no grammar, no script. What it says of the second question are bytes that are no
text, and a special token in the middle, as random weights would say them. torch and transformers are imported when
called.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.clients.agents.task import PROMPT, SYSTEM, THEN
from tests.fake_engine.scripted import tool_call_text
from tests.producers.llm_gateway.taught_model import Row, make_taught_model, spelt

_TEMPLATE = (
    "{% if tools %}<|im_start|>system\ntools:"
    "{% for tool in tools %} {{ tool.function.name.split('__')[-1] }}{% endfor %}<|im_end|>\n"
    "{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content or '' }}"
    "{% for call in message.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Of a tool it shows the name alone: each client describes it otherwise, and the policy knows one prompt."""
_PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
ASKED: dict[str, Any] = {
    "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": PROMPT}],
    "tools": [
        {"type": "function", "function": {"name": name, "parameters": _PARAMETERS}} for name in ("add", "multiply")
    ],
}
"""The first request of every client."""


def make_policy(folder: Path, **given: Any) -> Path:
    """Writes the model's folder."""
    return make_taught_model(folder, _TEMPLATE, rows_of=lambda tokenizer: [_conversation(tokenizer)], **given)


def _conversation(tokenizer: Any) -> Row:
    def rendered(messages: list[dict[str, str]], **given: Any) -> list[int]:
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, **given)
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
        return ids

    def after(*messages: tuple[str, str]) -> list[int]:
        newline: list[int] = tokenizer.encode("\n", add_special_tokens=False)
        return newline + rendered([{"role": role, "content": content} for role, content in messages])

    first = "I shall add. \u4f60\u597d \U0001f642 " + tool_call_text("add", a=12, b=30)
    return [
        (rendered(ASKED["messages"], tools=ASKED["tools"]), False),
        (spelt(tokenizer, first + "\n" + tool_call_text("multiply", a=6, b=7)), True),
        (after(("tool", "42"), ("tool", "42")), False),
        (spelt(tokenizer, tool_call_text("multiply", a=42, b=2)), True),
        (after(("tool", "84")), False),
        (spelt(tokenizer, "It is 84."), True),
        (after(("user", THEN[0])), False),
        (_broken(tokenizer), True),
        (after(("user", THEN[1])), False),
        (spelt(tokenizer, "\u00e9 \U0001f44b"), True),
    ]


def _broken(tokenizer: Any) -> list[int]:
    smile, ni = (tokenizer.encode(text, add_special_tokens=False) for text in ("\U0001f642", "\u4f60"))
    assert min(len(smile), len(ni)) > 1, "the test needs a tokenizer without these characters"
    special = tokenizer.convert_tokens_to_ids("<|im_start|>")
    middle = [*smile[:-1], *spelt(tokenizer, " x"), smile[-1], special, *spelt(tokenizer, "y \u4f60")]
    return [*spelt(tokenizer, "vierundachtzig "), *middle, *ni[:-1]]
