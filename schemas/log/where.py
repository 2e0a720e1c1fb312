"""Which episodes are meant, in words: `service=shop agent=plan* reward>0.5 closed_by!=deadline`. Pure.

In: a text, the fields that the caller knows. Out: terms, all of which are to hold. A term is FIELD OP VALUE, terms are
joined by blanks, a value with blanks or of the characters of OP stands in quotes:

    text     = !=            `*` in a value stands for anything; no other character is special
    number   = != < <= > >=
    flag     = !=            yes, no
    any of them              =none, !=none: the fact is not known, is known; 'none' in quotes is a text

`!=` holds wherever `=` does not, so also where the fact is not known; a comparison holds only where it is. Of a field
with several values (the agents of an episode) `=` asks for one that fits, `!=` for none that does.
Invariant: a text that is not understood chooses nothing; the error says at which character, and what was expected.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from ..errors import ConfigurationError
from ..section import nearest

_TERM = re.compile(
    r"(?P<field>\w[\w.]*)\s*(?P<op>[=!<>]+)\s*"
    r"(?P<value>(?P<quote>[\"'])(?P<quoted>(?:(?!(?P=quote)).)*)(?P=quote)|[^\s\"'=!<>][^\s\"']*)(?=\s|$)",
    re.DOTALL,
)
_COMPARED = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_EQUAL = ("=", "!=")
_FLAGS = {"yes": True, "no": False}


class Kind(StrEnum):
    """What the values of a field are."""

    TEXT = "text"
    """A name or an id."""
    NUMBER = "number"
    """Finite."""
    FLAG = "flag"
    """Yes or no."""


class Term(msgspec.Struct, frozen=True):
    """`reward>0.5` is Term("reward", ">", 0.5)."""

    field: str
    op: str
    value: str | float | bool | None
    """A text may hold `*`. None: the fact is not known."""


def parse(text: str, fields: Mapping[str, Kind], *, by: str = "--where") -> tuple[Term, ...]:
    """The terms of a text, in its order; none of a blank one. `by`: where it was written, for what is said of it.

    Raises:
        ConfigurationError: it is no list of terms, names a field that is none of `fields`, or asks of one what its
            kind does not have.
    """
    try:
        return _terms(text, fields)
    except ConfigurationError as error:
        raise ConfigurationError(f"{by}: {error}") from None


def _terms(text: str, fields: Mapping[str, Kind]) -> tuple[Term, ...]:
    terms, at = [], len(text) - len(text.lstrip())
    while at < len(text):
        found = _TERM.match(text, at)
        if found is None:
            raise _misread(text, at, "FIELD=VALUE, FIELD!=VALUE or FIELD>NUMBER, then a blank")
        terms.append(_term(text, found, fields))
        at = found.end()
        at += len(text[at:]) - len(text[at:].lstrip())
    return tuple(terms)


def _term(text: str, found: re.Match[str], fields: Mapping[str, Kind]) -> Term:
    field, op, word = found.group("field", "op", "value")
    kind = fields.get(field)
    if kind is None:
        raise _misread(text, found.start("field"), f"a fact's name ({nearest(field, sorted(fields))})")
    known = (*_EQUAL, *_COMPARED) if kind is Kind.NUMBER and word != "none" else _EQUAL
    if op not in known:
        raise _misread(text, found.start("op"), f"one of {' '.join(known)} between {field} and {word}")
    return Term(field, op, None if word == "none" else _value(text, found, kind))


def _value(text: str, found: re.Match[str], kind: Kind) -> str | float | bool:
    word, at = found["value"] if found["quote"] is None else found["quoted"], found.start("value")
    if kind is Kind.TEXT:
        return word
    if kind is Kind.FLAG:
        if word not in _FLAGS:
            raise _misread(text, at, f"yes, no or none for {found['field']}")
        return _FLAGS[word]
    try:
        number = float(word)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise _misread(text, at, f"a number or none for {found['field']}")
    return number


def _misread(text: str, at: int, expected: str) -> ConfigurationError:
    got = f"{text[at : at + 40]!r} at character {at + 1} of {text[:200]!r}"
    return ConfigurationError(f"expected {expected}, got {got}")


def matches(term: Term, *facts: str | float | bool | None) -> bool:
    """Whether a term holds of what is known of its field: nothing, one value or several; None counts as nothing."""
    known = [fact for fact in facts if fact is not None]
    value: Any = term.value
    if compare := _COMPARED.get(term.op):
        return any(compare(fact, value) for fact in known)
    is_equal = not known if value is None else any(_is_like(value, fact) for fact in known)
    return is_equal == (term.op == "=")


def _is_like(value: str | float | bool, fact: str | float | bool) -> bool:
    if not isinstance(value, str):
        return fact == value
    return re.fullmatch(".*".join(map(re.escape, value.split("*"))), str(fact), re.DOTALL) is not None
