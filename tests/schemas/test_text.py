"""Text that UTF-8 cannot hold."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracegrad.schemas.text import clean, decode_json

ANY_TEXT = st.text(st.characters())
VALUES = st.recursive(
    ANY_TEXT | st.integers() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(ANY_TEXT, inner)
)


@pytest.mark.slow
@given(VALUES)
def test_clean_values_can_be_encoded(value: Any) -> None:
    """Whatever it held before; what is encoded is the clean value."""
    assert json.loads(msgspec.json.encode(clean(value))) == clean(value)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_text_that_can_be_encoded_stays_as_it_is(text: str) -> None:
    """Accents, other planes, control characters: only lone surrogates are replaced."""
    assert clean({text: [text]}) == {text: [text]}


@pytest.mark.slow
@given(VALUES)
def test_decoded_json_is_clean(value: Any) -> None:
    """Escaped or not, bytes or text; what was clean stays as it was."""
    text = json.dumps(value)
    assert decode_json(text) == decode_json(text.encode()) == clean(json.loads(text))
    assert clean(clean(value)) == clean(value)
