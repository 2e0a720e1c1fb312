"""A history is token ids: a model to which they say something else is refused before anything is written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tracegrad.compose.history.trainable import check_vocabulary
from tracegrad.schemas.errors import ConfigurationError

REAL = Path(__file__).parents[2] / "data" / "tokenizer.json"


def folder_of(path: Path, vocabulary: Any, added: tuple[str, ...] = ()) -> str:
    """A model folder whose tokenizer has these, by their places."""
    path.mkdir()
    listed = [{"id": 100 + number, "content": text} for number, text in enumerate(added)]
    (path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}, "added_tokens": listed}))
    return str(path)


def test_an_id_that_says_something_else_is_named(tmp_path: Path) -> None:
    """With what it is in both; however many there are, the first few."""
    source = folder_of(tmp_path / "source", {"a": 0, "b": 1, "c": 2}, ("<end>",))
    other = folder_of(tmp_path / "other", {"a": 0, "c": 1}, ("<stop>",))
    with pytest.raises(
        ConfigurationError,
        match=r"1 is 'b' there, 'c' here, 2 is 'c' there, None here, 100 is '<end>' there, '<stop>' here, 3 of 4 ids",
    ):
        check_vocabulary(source, other)


def test_a_model_of_the_same_tokenizer_is_taken(tmp_path: Path) -> None:
    """Also one that has more ids, lists them otherwise, or lies elsewhere."""
    source = folder_of(tmp_path / "source", {"a": 0, "b": 1})
    check_vocabulary(source, folder_of(tmp_path / "more", [["a", -1.0], ["b", -2.0], ["c", -3.0]], ("<end>",)))
    check_vocabulary(source, source)
    for name in ("real", "copy"):
        (tmp_path / name).mkdir()
        shutil.copy(REAL, tmp_path / name / "tokenizer.json")
    check_vocabulary(str(tmp_path / "real"), str(tmp_path / "copy"))
    with pytest.raises(ConfigurationError, match="expected the vocabulary of the source's model"):
        check_vocabulary(str(tmp_path / "real"), source)


@pytest.mark.parametrize("content", [None, b"no json", b"[]", b"{}", b'{"model": {"vocab": 3}}', b'{"model": null}'])
def test_what_cannot_be_compared_is_taken(tmp_path: Path, content: bytes | None) -> None:
    """The source's folder may be gone; the trainer still knows how many ids its model has."""
    source = folder_of(tmp_path / "source", {"a": 0})
    own = tmp_path / "own"
    if content is not None:
        own.mkdir()
        (own / "tokenizer.json").write_bytes(content)
    check_vocabulary(source, str(own))
    check_vocabulary(str(own), source)
    check_vocabulary(None, source)
