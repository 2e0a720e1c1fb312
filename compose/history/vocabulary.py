"""Whether a model reads the token ids of a history as the model did that sampled them.

In: two model folders. Out: nothing, or ConfigurationError before anything is written. Invariant: nothing but what text
an id stands for is compared; another model with the same vocabulary is trained. Failure: a folder that is gone, or has
no tokenizer.json, cannot be compared, and is taken: the trainer still refuses ids that its model does not have.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from tracegrad.schemas.errors import ConfigurationError

__all__ = ["check_vocabulary"]

_FILE = "tokenizer.json"
_TOLD = 3
"""Ids named of those that differ."""


def check_vocabulary(source: str | None, own: str | None) -> None:
    """Raises ConfigurationError where an id of the source's model is another text, or none, in the new run's."""
    if source is None or own is None or Path(source) == Path(own):
        return
    was, now = _texts(Path(source)), _texts(Path(own))
    if not was or not now:
        return
    changed = sorted(id_ for id_, text in was.items() if now.get(id_) != text)
    if changed:
        told = ", ".join(f"{id_} is {was[id_]!r} there, {now.get(id_)!r} here" for id_ in changed[:_TOLD])
        raise ConfigurationError(
            f"[policy] model: expected the vocabulary of the source's model in {source}, since a history is token ids, "
            f"got another in {own}: {told}, {len(changed)} of {len(was)} ids in all; name a model of the same tokenizer"
        )


def _texts(folder: Path) -> dict[int, str]:
    """Id -> text; nothing where that is not told so."""
    try:
        found: Any = msgspec.json.decode((folder / _FILE).read_bytes())
        listed: Any = found["model"]["vocab"]
        ids = listed.items() if isinstance(listed, dict) else ((text, id_) for id_, (text, *_) in enumerate(listed))
        texts = {int(id_): str(text) for text, id_ in ids}
        return texts | {int(one["id"]): str(one["content"]) for one in found.get("added_tokens", ())}
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError, ValueError, AttributeError):
        return {}
