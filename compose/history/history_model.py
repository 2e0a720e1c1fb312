"""What turns a history's calls into the policy's: `[history]`, `[policy]` and a model's folder, read once.

In: settings, a folder. Out: HistoryRenderer, ToldCalls. Failure: ConfigurationError for a folder whose template or
tokenizer cannot be read, and for a file of tools that is none.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from tracegrad.producers.llm_gateway.render.local_template import LocalTemplate, load
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.ids import RunHash
from tracegrad.schemas.records.told import ToolDefinition
from tracegrad.streams.assemble.told_calls import ToldCalls
from tracegrad.streams.normalize.told.chat_messages import read_tools
from tracegrad.streams.normalize.told.read_call import joined

from ..engine.model_folder import read_chat_template
from ..run.settings import RunSettings
from .rendering import ExactIdRules, HistoryRenderer, TextDigests


def load_history_renderer(folder: Path, rules: ExactIdRules, *, chat_template: Path | None = None) -> HistoryRenderer:
    """Reads a model's folder.

    Args:
        chat_template: a file whose template is used instead of the folder's.
    Raises:
        ConfigurationError: its template or its tokenizer cannot be read.
    """
    try:
        source = read_chat_template(folder) if chat_template is None else chat_template.read_text()
        template = None if source is None else load(folder, source)
        tokenizer = (folder / "tokenizer.json").read_bytes()
        terminals = {} if template is None else _terminals(folder, template)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"[policy] model: cannot read {folder}: {error}") from error
    if template is None:
        raise ConfigurationError(
            f"[policy] model: expected a chat template and a tokenizer that can be read in {folder}, since this run "
            "turns words into its token ids; name an instruct model, or a template by [policy] chat_template"
        )
    made_by = json.dumps([source, template.special_tokens, sorted(terminals)], sort_keys=True).encode()
    digests = TextDigests(hashlib.sha256(made_by).hexdigest(), hashlib.sha256(tokenizer).hexdigest())
    return HistoryRenderer(template, terminals, digests, rules)


def load_told_calls(settings: RunSettings, sampler: RunHash) -> ToldCalls:
    """What makes calls of a history's spans, by `[history]` and `[policy]`. Raises ConfigurationError."""
    history = settings.history
    assert history is not None
    tools = _read_tools(Path(history.tools)) if history.tools is not None else {}
    return ToldCalls(history, settings.policy.name, sampler, tools, load_renderer(settings).tokens, joined)


def load_renderer(settings: RunSettings) -> HistoryRenderer:
    """By `[history]` and the folder that `[policy]` names. Raises ConfigurationError."""
    history, policy = settings.history, settings.policy
    assert history is not None and policy.model is not None
    rules = ExactIdRules(temperature=history.temperature, are_processed=history.logprobs == "processed")
    template = Path(policy.chat_template) if policy.chat_template is not None else None
    return load_history_renderer(Path(policy.model), rules, chat_template=template)


def _read_tools(path: Path) -> dict[str, tuple[ToolDefinition, ...]]:
    """Raises ConfigurationError."""
    try:
        listed: Any = json.loads(path.read_bytes())
        told = {
            str(glob): () if found == [] else read_tools(found, is_raw=True) for glob, found in dict(listed).items()
        }
    except (OSError, ValueError, TypeError) as error:
        raise ConfigurationError(f"[history] tools: cannot read {path}: {error}") from error
    for glob, tools in told.items():
        if tools is None:
            raise ConfigurationError(f"[history] tools: {path}: expected a list of OpenAI's definitions of {glob!r}")
    return {glob: tools for glob, tools in told.items() if tools is not None}


def _terminals(folder: Path, template: LocalTemplate) -> dict[int, str]:
    """The tokens at which vLLM ends an answer: the tokenizer's end, and those that the model's generation names."""
    files = [file for name in ("generation_config.json", "config.json") if (file := folder / name).is_file()]
    named = json.loads(files[0].read_bytes()).get("eos_token_id") if files else None
    own = template.encode(template.special_tokens.get("eos_token", ""))
    found = [*(own if len(own) == 1 else ()), *(named if isinstance(named, list) else (named,))]
    return {token: text for token in found if token is not None and (text := template.text([token]))}
