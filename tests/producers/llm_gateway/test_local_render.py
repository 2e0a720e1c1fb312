"""Rendering in the gateway: proved before use, left to the engine where it was not proved."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from tests.house import ROOT, files_imported, imports, name_of
from tests.producers.llm_gateway.taught_model import DATA, TOOLS
from tracegrad.producers.llm_gateway.api.chat_request import ChatRequest
from tracegrad.producers.llm_gateway.api.openai_chat import OPENAI_CHAT
from tracegrad.producers.llm_gateway.engines.engine import (
    LogprobEntry,
    ParsedMessage,
    RenderedIds,
    waits_until,
)
from tracegrad.producers.llm_gateway.render.local_render import LocalRenderer, parse, prove
from tracegrad.producers.llm_gateway.render.local_template import LocalTemplate, can_render, load
from tracegrad.schemas.errors import EngineRefusal

pytestmark = pytest.mark.slow

ASK = {"role": "user", "content": "hello"}
WAITS = waits_until("", 5.0)


def asked(*messages: dict[str, Any], **fields: Any) -> ChatRequest:
    """As it would come over OpenAI's API."""
    return OPENAI_CHAT.read({"messages": messages or [ASK], **fields})


class Engine:
    """A Renderer that works as an engine with the same folder would, save for what a test changes."""

    def __init__(self, template: LocalTemplate) -> None:
        self.template = template
        self.num_asked = 0
        self.end: list[int] = []

    async def ids(self, request: ChatRequest, waits: Any, *, to_generate: bool = True) -> RenderedIds:
        self.num_asked += 1
        if request.messages[0].content == "refuse":
            raise EngineRefusal("no", status=400)
        ids = self.template.ids(request, to_generate=to_generate)
        assert ids is not None
        return RenderedIds(ids=ids + self.end)

    async def count(self, request: ChatRequest, waits: Any) -> int:
        return len((await self.ids(request, waits)).ids)

    async def parse(
        self, request: ChatRequest, prompt_ids: list[int], sampled: Sequence[LogprobEntry], waits: Any
    ) -> ParsedMessage:
        self.num_asked += 1
        return parse(self.template, request, prompt_ids, [entry.token_id for entry in sampled])


@pytest.fixture(params=["qwen2_5", "trimming"])
def folder(request: Any, tmp_path: Path) -> Path:
    """A version's folder, as far as rendering needs it."""
    (tmp_path / "tokenizer.json").write_bytes((DATA / "tokenizer.json").read_bytes())
    (tmp_path / "chat_template.jinja").write_bytes((DATA / f"{request.param}.jinja").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    return tmp_path


def entries(*ids: int) -> list[LogprobEntry]:
    """As an engine samples them."""
    return [LogprobEntry(token, -0.1) for token in ids]


def loaded(folder: Path) -> LocalTemplate:
    template = load(folder)
    assert template is not None
    return template


async def test_an_equal_engine_is_no_longer_asked(folder: Path) -> None:
    """After the proof, plain requests are rendered and parsed here."""
    engine = Engine(loaded(folder))
    local = await prove(str(folder), engine, WAITS, max_tokens=1000)
    assert isinstance(local, LocalRenderer)
    num_asked = engine.num_asked
    request = asked(tools=TOOLS)
    ids = (await local.ids(request, WAITS)).ids
    said = entries(*loaded(folder).encode('so <tool_call>{"name": "calc", "arguments": {"expr": "1"}}</tool_call>'))
    parsed = await local.parse(request, ids, said, WAITS)
    assert (parsed.content, parsed.tool_calls) == ("so ", (("calc", '{"expr": "1"}'),))
    assert engine.num_asked == num_asked


async def test_one_differing_id_keeps_the_engine(folder: Path) -> None:
    """A template or tokenizer that differs anywhere is not used."""
    engine = Engine(loaded(folder))
    engine.end = [1]
    assert await prove(str(folder), engine, WAITS, max_tokens=1000) is None
    assert await prove("/nowhere", engine, WAITS, max_tokens=1000) is None


async def test_what_was_not_proved_is_the_engines(folder: Path) -> None:
    """Other fields, other content, logprobs, prompts near the window's end."""
    engine = Engine(loaded(folder))
    local = LocalRenderer(loaded(folder), engine, max_tokens=30)
    long = asked({"role": "user", "content": "long " * 40}, logprobs=True)
    await local.ids(long, WAITS)
    await local.parse(long, [1], entries(5), WAITS)
    assert engine.num_asked == 2
    with pytest.raises(EngineRefusal):
        refused = asked({"role": "user", "content": "refuse"}, chat_template_kwargs={})
        await local.ids(refused, WAITS)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"response_format": {"type": "json_object"}}, ASK),
        ({"tool_choice": "required", "tools": TOOLS}, ASK),
        ({"tools": []}, ASK),
        ({"tools": [{"type": "function", "function": {"name": "x", "strict": True}}]}, ASK),
        ({}, {"role": "observer", "content": "x"}),
        ({}, {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]}),
        ({}, {"role": "user", "content": None}),
        ({}, {"role": "assistant", "content": "x", "reasoning": "y"}),
        ({}, {"role": "assistant", "tool_calls": [{"function": {"name": "x", "arguments": "[1]"}}]}),
        ({}, {"role": "assistant", "tool_calls": [{"function": {"name": "x", "arguments": "{"}}]}),
    ],
)
def test_unusual_requests_are_not_rendered_here(fields: Any, message: Any) -> None:
    """The probes do not speak for them."""
    assert not can_render(asked(message, **fields))


def test_a_prompt_is_neither_cut_nor_padded(folder: Path) -> None:
    """A tokenizer that was saved after training may bear its collator's settings; the probes are too short to tell."""
    plain = loaded(folder).encode("long " * 400)
    assert len(plain) > 200
    saved = Tokenizer.from_file(str(folder / "tokenizer.json"))
    saved.enable_truncation(200)
    saved.enable_padding(length=4000)
    saved.save(str(folder / "tokenizer.json"))
    assert loaded(folder).encode("long " * 400) == plain


def test_the_template_runs_in_a_sandbox(folder: Path) -> None:
    """A template cannot reach Python's internals."""
    (folder / "chat_template.jinja").write_text("{{ messages.__class__.__mro__[1].__subclasses__() }}")
    assert loaded(folder).ids(asked(), to_generate=True) is None


def test_half_a_character_is_held_back(folder: Path) -> None:
    """As the engine streams: bytes that are no character yet are not text."""
    template = loaded(folder)
    ids = template.encode("a\U0001f642")
    assert template.decode([], ids, skip_special_tokens=True) == "a\U0001f642"
    assert template.decode([], ids[:-1], skip_special_tokens=True) == "a"


@pytest.mark.parametrize(
    ("marked", "plain"),
    [
        ("a {%- generation %} b {% endgeneration %}\nc", "a b c"),
        ("a {% generation -%} b {%- endgeneration -%} c", "a bc"),
    ],
)
def test_tags_of_training_print_nothing(folder: Path, marked: str, plain: str) -> None:
    """transformers marks an assistant's tokens by them; the white space around them is the tag's to take."""
    (folder / "chat_template.jinja").write_text(marked)
    template = loaded(folder)
    assert template.ids(asked(), to_generate=True) == template.encode(plain)


def test_the_template_is_loaded_without_an_engine() -> None:
    """The command line renders a history where no engine and no HTTP client is installed."""
    found, todo = set[Path](), [ROOT / "producers/llm_gateway/render/local_template.py"]
    while todo:
        path = todo.pop()
        if path not in found:
            found.add(path)
            todo += files_imported(path)
    assert {name_of(path) for path in found} & {
        f"producers/llm_gateway/engines/{it}.py" for it in ("engine", "vllm")
    } == set()
    assert not {module.split(".")[0] for path in found for module, *_ in imports(path)} & {
        "aiohttp",
        "yarl",
        "starlette",
    }
