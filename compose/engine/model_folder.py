"""Whether an agent with tools can train the model in a folder, judged from its files alone, before an engine starts.

In: a Hugging Face folder. Out: nothing. Needs jinja2 (a chat template is rendered in its sandbox), neither torch nor
transformers. Failure: ConfigurationError that says what is wrong and what to do.
"""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

from tracegrad.producers.llm_gateway.config import PolicyConfig
from tracegrad.schemas.errors import ConfigurationError

CPU_HEAD_DIMS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""What vLLM 0.32's CPU attention was compiled for."""
_MARK = "tracegrad_probe"


def check_model(policy: PolicyConfig, *, is_cpu: bool, max_model_len: int) -> None:
    """Raises ConfigurationError unless the policy's folder holds a model that the engine can serve to the agent.

    Args:
        is_cpu: the engine is vLLM's CPU build, whose attention knows certain head sizes only.
    """
    folder, chat_template = policy.needed_model(), policy.chat_template
    path = Path(folder)
    if not path.is_dir():
        raise ConfigurationError(f"[policy] model: expected a folder, got nothing at {folder}")
    config = _read_json(path / "config.json", what="a Hugging Face model folder")
    if not any(path.glob("*.safetensors")):
        raise ConfigurationError(f"[policy] model: expected *.safetensors in {folder}, got none; convert the weights")
    if not (path / "tokenizer.json").is_file():
        raise ConfigurationError(f"[policy] model: expected tokenizer.json in {folder}, save a fast tokenizer")
    _check_shape(config, folder, is_cpu=is_cpu, max_model_len=max_model_len)
    try:
        template = read_chat_template(path) if chat_template is None else Path(chat_template).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"[policy] chat_template: cannot read {chat_template}: {error}") from error
    if template is None:
        raise ConfigurationError(
            f"[policy] model: {folder} has no chat template, so chat messages cannot be shown to it; "
            "use its instruct variant or name a template by [policy] chat_template"
        )
    if policy.tools:
        _check_tools(template, _special_tokens(path), folder if chat_template is None else chat_template)


def read_chat_template(folder: Path) -> str | None:
    """The template that vLLM and transformers would use; None when there is none."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text()
    named: Any = None
    for name in ("chat_template.json", "tokenizer_config.json"):
        if named is None and (folder / name).is_file():
            named = _read_json(folder / name, what="a tokenizer").get("chat_template")
    if isinstance(named, list):
        by_name = {item.get("name"): item.get("template") for item in named if isinstance(item, dict)}
        named = by_name.get("tool_use", by_name.get("default"))
    return named if isinstance(named, str) else None


def _check_shape(config: dict[str, Any], folder: str, *, is_cpu: bool, max_model_len: int) -> None:
    text = config.get("text_config", config)
    heads = text.get("num_attention_heads")
    head_dim = text.get("head_dim") or (text["hidden_size"] // heads if heads and "hidden_size" in text else None)
    if is_cpu and head_dim is not None and head_dim not in CPU_HEAD_DIMS:
        raise ConfigurationError(
            f"[policy] model: head_dim {head_dim} of {folder} is unknown to vLLM's CPU attention; "
            f"it has {', '.join(map(str, CPU_HEAD_DIMS))}; use another model or a GPU"
        )
    longest = text.get("max_position_embeddings")
    if isinstance(longest, int) and max_model_len > longest:
        raise ConfigurationError(
            f"[engine] max_model_len: expected at most {longest}, the model's max_position_embeddings, "
            f"got {max_model_len}; set max_model_len = {longest}"
        )


def _check_tools(template: str, tokens: dict[str, str], folder: str) -> None:
    """Renders a conversation with a tool, its call and its result, and looks for each in the prompt."""
    tool = {
        "type": "function",
        "function": {
            "name": f"{_MARK}_tool",
            "description": "probe",
            "parameters": {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]},
        },
    }
    call = {"name": f"{_MARK}_tool", "arguments": {"x": f"{_MARK}_argument"}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "probe"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "call00001", "type": "function", "function": call}]},
        {"role": "tool", "tool_call_id": "call00001", "name": f"{_MARK}_tool", "content": f"{_MARK}_result"},
    ]
    offered = _render(template, messages[:1], [tool], tokens, folder)
    remedy = "use a model whose chat template supports tools, or set [policy] tools = false for an agent without tools"
    if f"{_MARK}_tool" not in offered:
        raise ConfigurationError(
            f"[policy] model: the chat template of {folder} ignores tools: the model would never see them; {remedy}"
        )
    prompt = _render(template, messages, [tool], tokens, folder)
    for what in ("argument", "result"):
        if f"{_MARK}_{what}" not in prompt:
            raise ConfigurationError(
                f"[policy] model: the chat template of {folder} drops the {what} of a tool call; {remedy}"
            )


def _render(
    template: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]], tokens: dict[str, str], folder: str
) -> str:
    from jinja2 import TemplateError

    from tracegrad.producers.llm_gateway.render.local_template import compiled

    try:
        return compiled(template).render(
            messages=messages, tools=tools, add_generation_prompt=True, strftime_now=_now, **tokens
        )
    except (TemplateError, TypeError, ValueError) as error:
        raise ConfigurationError(
            f"[policy] model: the chat template of {folder} cannot render tools: {error}; "
            "use a model whose template supports tools, or set [policy] tools = false"
        ) from error


def _now(form: str) -> str:
    return datetime.datetime.now(datetime.UTC).strftime(form)


def _special_tokens(folder: Path) -> dict[str, str]:
    """bos_token and the like, which templates name."""
    from tracegrad.producers.llm_gateway.render.local_template import special_tokens

    file = folder / "tokenizer_config.json"
    config = _read_json(file, what="a tokenizer") if file.is_file() else {}
    return {"bos_token": "", "eos_token": ""} | special_tokens(config)


def _read_json(file: Path, *, what: str) -> dict[str, Any]:
    try:
        data = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise ConfigurationError(f"[policy] model: expected {what}, got no {file.name} in {file.parent}") from None
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"[policy] model: cannot read {file}: {error}") from error
    if not isinstance(data, dict):
        raise ConfigurationError(f"[policy] model: expected an object in {file}, got {type(data).__name__}")
    return data
