"""Templates to text. In: a template's name and a model. Out: HTML, in which every text of others is escaped: there is
no way around it but `|safe`, which page.html alone says, of the part that another template made. Failure: a name that a
model lacks is an error.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tracegrad.schemas.reasons import reason_text
from tracegrad.schemas.text import printable

from ..index.show import time_text

_HERE = Path(__file__).parent
STATIC = _HERE / "static"

_WORD = re.compile(r"[a-z_]{1,60}")
"""Of ours, such as why a group did not train: what may stand in a link."""


def render(template: str, model: dict[str, Any]) -> str:
    """HTML of `templates/<template>`."""
    return _environment().get_template(template).render(model)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_seen,
    )
    environment.filters |= {"num": _num, "count": _count, "short": _short, "when": time_text, "reason": reason_text}
    environment.tests["word"] = lambda text: _WORD.fullmatch(text) is not None
    environment.globals["asset"] = _asset
    return environment


def _seen(value: Any) -> Any:
    """What is printed, with an escape for each control character, of a terminal or of bidirectional text, that would
    hide what is there."""
    return printable(value) if type(value) is str else value


def _short(value: float | None) -> str:
    """A number in as few digits as tell it, or a dash."""
    return "-" if value is None else f"{value:.4g}"


def _num(value: float | None, digits: int = 3) -> str:
    """A number, or a dash where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


def _count(value: float | None) -> str:
    """With thousands apart."""
    return "-" if value is None else f"{value:,.0f}"


@cache
def _asset(name: str) -> str:
    """Its URL, another one for other bytes, so that it may be kept."""
    return f"/static/{name}?{hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]}"
