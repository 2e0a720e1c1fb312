"""A tokenizer of bytes, five special tokens and the pairs of digits, for the scripted engine."""

from __future__ import annotations

import re

__all__ = ["EOT", "SPECIALS", "ToyTokenizer"]

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
