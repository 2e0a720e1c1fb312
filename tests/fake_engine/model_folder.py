"""The scripted engine's template and tokenizer as files: by them messages become the ids that it would render."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from tests.fake_engine.tokenizer import BYTES, EOT, PAIRS, SPECIALS

CHAT_TEMPLATE = """\
{%- if tools %}<|im_start|>system
tools: {{ tools | map(attribute="function.name") | join(", ") }}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}<tool_call>
{{ {"name": call.function.name, "arguments": call.function.arguments} | tojson(ensure_ascii=true) }}
</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def toy_tokenizer() -> Any:
    """ToyTokenizer as one of Hugging Face's."""
    vocabulary = {letter: BYTES + byte for byte, letter in _letters().items()}
    pairs = [f"{pair:02d}" for pair in range(100)]
    vocabulary |= {pair: PAIRS + place for place, pair in enumerate(pairs)}
    vocabulary |= {special: place for place, special in enumerate(SPECIALS)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[(pair[0], pair[1]) for pair in pairs]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex("[0-9]{2}"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(special, special=True) for special in SPECIALS])
    return tokenizer


def write_model_folder(folder: Path) -> Path:
    """What rendering needs of a model."""
    folder.mkdir(exist_ok=True)
    toy_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": SPECIALS[EOT]}))
    return folder


def _letters() -> dict[int, str]:
    """How byte-level tokenizers spell each byte: printable ones as they are, others from 256 on."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + place) for place, byte in enumerate(others)}
