"""Published chat templates as a Renderer: rendered as vLLM does, over a tokenizer of bytes and their special tokens."""

from __future__ import annotations

import datetime
import json
import re
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tracegrad.producers.llm_gateway.api.chat_request import ChatRequest
from tracegrad.producers.llm_gateway.engines.chat_form import chat_form
from tracegrad.producers.llm_gateway.engines.engine import RenderedIds, Waits
from tracegrad.schemas.errors import EngineRefusal

FOLDER = Path(__file__).parents[2] / "data" / "templates"
NOW = Waits(sticky="", deadline=0.0)
_SPECIAL = re.compile(
    r"<\|[^|>\s]{1,40}\|>|<\uff5c[^\uff5c>\s]{1,40}\uff5c>|</?s>|\[/?(?:INST|TOOL_CALLS|TOOL_RESULTS)\]|\[gMASK\]|<sop>"
    r"|<(?:start|end)_of_turn>|<\|[a-z_]+>|<[a-z_]+\|>|<end_of_utterance>"
)
_GENERATION = re.compile(r"\{%-?\s*(end)?generation\s*-?%\}")


class RealTemplate:
    """A Renderer, as far as prompts go."""

    def __init__(self, source: str) -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = lambda value, ensure_ascii=False, indent=None, **_: json.dumps(
            value, ensure_ascii=ensure_ascii, indent=indent
        )
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = datetime.datetime(2026, 11, 28).strftime
        self._template = environment.from_string(_GENERATION.sub("", source))
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        self.tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
        self.tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        self.tokenizer.decoder = decoders.ByteLevel()
        special = sorted({*_SPECIAL.findall(source), "<|begin|>", "<|stop|>"})
        self.tokenizer.add_special_tokens([AddedToken(text, special=True) for text in special])

    async def ids(self, request: ChatRequest, waits: Waits, *, to_generate: bool = True) -> RenderedIds:
        """See Renderer. An engine's template that fails in any way is a refusal."""
        form = chat_form(request, with_grammar=False)
        try:
            text = self._template.render(
                messages=[_as_vllm(message) for message in form["messages"]],
                tools=form.get("tools"),
                documents=None,
                add_generation_prompt=to_generate,
                bos_token="<|begin|>",
                eos_token="<|stop|>",
                **(request.extra.get("chat_template_kwargs") or {}),
            )
        except Exception as error:
            raise EngineRefusal(f"{type(error).__name__}: {error}") from error
        return RenderedIds(ids=self.encode(text))

    def encode(self, text: str) -> list[int]:
        """With special tokens where they are spelled."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Any) -> str:
        """With special tokens."""
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=False)
        return text

    def special(self, text: str) -> int:
        """The id of a special token."""
        token = self.tokenizer.token_to_id(text)
        assert isinstance(token, int)
        return token


def load(name: str) -> RealTemplate:
    """One of the fixtures."""
    return RealTemplate((FOLDER / f"{name}.jinja").read_text())


def _refuse(message: str) -> None:
    raise TemplateError(message)


def _as_vllm(message: dict[str, Any]) -> dict[str, Any]:
    """No content is an empty text, arguments are objects, thoughts go by both names."""
    made = {**message, "content": "" if message.get("content") is None else message["content"]}
    if "reasoning" in made:
        made["reasoning_content"] = made["reasoning"]
    for call in made.get("tool_calls") or ():
        call["function"]["arguments"] = json.loads(call["function"]["arguments"] or "{}")
    return made
