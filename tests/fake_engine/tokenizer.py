"""A tokenizer of bytes, five special tokens and the pairs of digits, for the scripted engine."""

from __future__ import annotations

import re
from typing import Any

from tokenizers import Tokenizer, decoders
from tokenizers.models import WordLevel

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>")
EOT = 2
_BYTES = 10
_PAIRS = 300
_SPLIT = re.compile("(" + "|".join(re.escape(special) for special in SPECIALS) + ")")
_ATOMS = re.compile(rb"\d\d|.", re.DOTALL)


class ToyTokenizer:
    """Bytes, five special tokens and the pairs of digits 00 to 99."""

    def encode(self, text: str, *, merge: bool = True) -> list[int]:
        """Ids of a text; without `merge`, digits stay single, as the scripted model samples them."""
        ids: list[int] = []
        for part in _SPLIT.split(text):
            if part in SPECIALS:
                ids.append(SPECIALS.index(part))
            elif merge:
                for atom in _ATOMS.findall(part.encode()):
                    ids.append(_PAIRS + int(atom) if len(atom) == 2 else _BYTES + atom[0])
            else:
                ids.extend(_BYTES + byte for byte in part.encode())
        return ids

    def decode(self, ids: list[int]) -> str:
        """The text of ids, special tokens included."""
        pieces = b""
        for token in ids:
            if token < len(SPECIALS):
                pieces += SPECIALS[token].encode()
            elif token >= _PAIRS:
                pieces += b"%02d" % (token - _PAIRS)
            else:
                pieces += bytes([(token - _BYTES) % 256])
        return pieces.decode(errors="replace")


def toy_decoder() -> Any:
    """A tokenizer of Hugging Face's that decodes as the toy does."""
    vocabulary = {special: i for i, special in enumerate(SPECIALS)}
    vocabulary |= {f"<0x{byte:02X}>": _BYTES + byte for byte in range(256)}
    vocabulary |= {f"{pair:02d}": _PAIRS + pair for pair in range(100)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token=SPECIALS[0]))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(list(SPECIALS))
    return tokenizer
