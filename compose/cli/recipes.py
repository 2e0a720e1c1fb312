"""`tracegrad recipes`: the points that have a name on the axes of the loss. It reads the trainer's data alone."""

from __future__ import annotations

import json
from typing import Annotated

import msgspec
import typer

from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.section import nearest
from tracegrad.trainer.algorithm.recipes import RECIPES

from .common import JsonFlag, echo


def recipes(
    name: Annotated[str | None, typer.Argument(help="Explain this one; without it all are listed.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """List the training recipes that `algorithm.recipe` can name, or explain one.

    Example: tracegrad recipes grpo
    """
    if name is not None and name not in RECIPES:
        raise ConfigurationError(f"no recipe {name!r}; {nearest(name, RECIPES)}")
    shown = RECIPES if name is None else {name: RECIPES[name]}
    for one, known in shown.items():
        told = known._asdict() | {"recipe": msgspec.to_builtins(known.recipe), "needs": sorted(known.recipe.needs)}
        if as_json:
            echo(msgspec.json.encode({"name": one} | told).decode())
        elif name is None:
            echo(f"{one:22}{known.formula}")
        else:
            texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in told.items()}
            echo("\n".join(f"{key:10}{text}" for key, text in texts.items()))
