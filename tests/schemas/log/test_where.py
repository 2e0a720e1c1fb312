"""Which episodes are meant, in words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.log.where import Kind, Term, matches, parse

FIELDS = {"agent": Kind.TEXT, "reward": Kind.NUMBER, "captured": Kind.FLAG}


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("", ()),
        ("  ", ()),
        ("agent=planner", (Term("agent", "=", "planner"),)),
        ("  agent!=plan*   reward>=-1.5e0 ", (Term("agent", "!=", "plan*"), Term("reward", ">=", -1.5))),
        ("reward < 2\tcaptured = no", (Term("reward", "<", 2.0), Term("captured", "=", False))),
        ("agent='two words' agent=\"it's\"", (Term("agent", "=", "two words"), Term("agent", "=", "it's"))),
        ("agent='' agent=a=b", (Term("agent", "=", ""), Term("agent", "=", "a=b"))),
        ('agent="a=b\'"', (Term("agent", "=", "a=b'"),)),
        ("agent!=none agent='none'", (Term("agent", "!=", None), Term("agent", "=", "none"))),
    ],
)
def test_terms_are_read_in_their_order(text: str, terms: tuple[Term, ...]) -> None:
    """Blanks join them, and may stand around an operator; quotes hold blanks."""
    assert parse(text, FIELDS) == terms


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("agent", "FIELD=VALUE.*'agent' at character 1"),
        ("reward>1 agent=", "FIELD=VALUE.*'agent=' at character 10"),
        ("agent='open", "FIELD=VALUE.*at character 1"),
        ("agent='a'b", "FIELD=VALUE.*at character 1"),
        ("reward>1 step=3", "valid are agent, captured, reward., got 'step=3' at character 10"),
        ("agent>a", "one of = != between agent and a.*at character 6"),
        ("reward==1", "one of = != < <= > >= between.*at character 7"),
        ("reward>none", "one of = != between reward and none.*at character 7"),
        ("reward>high", "a number or none for reward.*at character 8"),
        ("reward>nan", "a number or none for reward"),
        ("captured=true", "yes, no or none for captured.*at character 10"),
        ("1; drop table episodes", "FIELD=VALUE.*at character 1"),
    ],
)
def test_what_is_not_understood_is_named_with_its_place(text: str, said: str) -> None:
    """And with what was expected there."""
    with pytest.raises(ConfigurationError, match=said):
        parse(text, FIELDS)


@pytest.mark.parametrize(
    ("text", "facts", "holds"),
    [
        ("agent=plan*", ("planner",), True),
        ("agent=plan*", ("critic", "planner"), True),
        ("agent!=plan*", ("critic", "planner"), False),
        ("agent=p[l]?n", ("plan",), False),
        ("agent=*a*b", ("xa\nyb",), True),
        ("agent!=planner", (None,), True),
        ("agent=none", (), True),
        ("agent!=none", ("x",), True),
        ("reward>0", (None,), False),
        ("reward>0", (0.1,), True),
        ("reward!=1", (1.0,), False),
        ("captured=yes", (True,), True),
    ],
)
def test_a_term_holds_of_what_is_known(text: str, facts: tuple[str | float | bool | None, ...], holds: bool) -> None:
    """`!=` also of what is not known; of several values one has to fit."""
    (term,) = parse(text, FIELDS)
    assert matches(term, *facts) == holds


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    """Nothing else is raised."""
    try:
        parse(text, FIELDS)
    except ConfigurationError as error:
        assert "expected" in str(error)
