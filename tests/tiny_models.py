"""Tiny random models on disk that both transformers and vLLM open: Qwen3 untied, Qwen2 tied; a byte-level tokenizer.

In: a folder and a kind. Out: config, safetensors, tokenizer with a ChatML template that shows tools. Not trained:
what they say is noise, but every id, logprob and weight is real. torch and transformers are imported when called.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

Kind = Literal["qwen3", "qwen2"]

CHAT_TEMPLATE = (
    "{% if tools %}<|im_start|>system\ntools:{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}<|im_end|>\n"
    "{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content or '' }}"
    "{% for call in message.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>")
_VOCABULARY = 261


def _write_tokenizer(folder: Path) -> None:
    """256 bytes and the special tokens; no merges, so each byte is a token."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {symbol: index for index, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in _SPECIAL[:3]])
    tokenizer.add_tokens([AddedToken(text, special=False) for text in _SPECIAL[3:]])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "eos_token": "<|im_end|>",
                "pad_token": "<|endoftext|>",
                "model_max_length": 512,
                "chat_template": CHAT_TEMPLATE,
            }
        )
    )


def small_model(kind: Kind, **config: Any) -> Any:
    """A model of two layers and random weights."""
    from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

    settings: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "bos_token_id": None,
        **config,
    }
    qwen3: Any = Qwen3ForCausalLM
    qwen2: Any = Qwen2ForCausalLM
    return qwen3(Qwen3Config(**settings, head_dim=32)) if kind == "qwen3" else qwen2(Qwen2Config(**settings))


def make_model(folder: Path, kind: Kind = "qwen3", *, seed: int = 0) -> Path:
    """Writes the model and its tokenizer; returns the folder."""
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    _write_tokenizer(folder)
    torch.manual_seed(seed)
    model = small_model(
        kind,
        vocab_size=_VOCABULARY,
        max_position_embeddings=512,
        tie_word_embeddings=kind == "qwen2",
        eos_token_id=258,
        pad_token_id=256,
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    model.save_pretrained(folder)
    return folder


def save_version(source: Path, folder: Path, state_dict: dict[str, Any]) -> None:
    """A version folder: the source's configuration and tokenizer, and these weights as they are."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    for file in source.iterdir():
        if file.suffix == ".json":
            (folder / file.name).write_bytes(file.read_bytes())
    save_file(
        {name: tensor.detach().clone().contiguous() for name, tensor in state_dict.items()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
