"""A tokenizer of bytes, five special tokens and the pairs of digits, for the scripted engine."""

from __future__ import annotations

import re
from typing import Any

from tokenizers import Tokenizer, decoders
from tokenizers.models import WordLevel

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>")
EOT = 2
BYTES = 10
PAIRS = 300
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
                    ids.append(PAIRS + int(atom) if len(atom) == 2 else BYTES + atom[0])
            else:
                ids.extend(BYTES + byte for byte in part.encode())
        return ids

    def decode(self, ids: list[int]) -> str:
        """The text of ids, special tokens included."""
        pieces = b""
        for token in ids:
            if token < len(SPECIALS):
                pieces += SPECIALS[token].encode()
            elif token >= PAIRS:
                pieces += b"%02d" % (token - PAIRS)
            else:
                pieces += bytes([(token - BYTES) % 256])
        return pieces.decode(errors="replace")


def toy_decoder() -> Any:
    """A tokenizer of Hugging Face's that decodes as the toy does."""
    vocabulary = {special: i for i, special in enumerate(SPECIALS)}
    vocabulary |= {f"<0x{byte:02X}>": BYTES + byte for byte in range(256)}
    vocabulary |= {f"{pair:02d}": PAIRS + pair for pair in range(100)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token=SPECIALS[0]))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(list(SPECIALS))
    return tokenizer
