"""`chat`: ask the policy that a run trained, by the agent and the tools that it was trained with."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from tracegrad.schemas.errors import ConfigurationError

from ..run.wiring import Wiring
from .common import RUNS, JsonFlag, RunArgument, RunsDirOption, echo, find_run

if TYPE_CHECKING:
    from ..chat.talk import Side


def chat(
    run: RunArgument = None,
    question: Annotated[
        str | None, typer.Argument(help="The question; without it you ask several, until Ctrl-D.")
    ] = None,
    version: Annotated[
        int | None,
        typer.Option(min=0, help="The version to ask; without it the best of the held-out passes, or the newest."),
    ] = None,
    before: Annotated[
        bool, typer.Option("--before", help="Ask the model from before training too, and show both answers.")
    ] = False,
    as_json: JsonFlag = False,
    runs_dir: RunsDirOption = RUNS,
) -> None:
    """Ask the trained model a question, through its own agent and tools.

    In a run that is up, the version that serves now answers. For any other run, and with --version or --before, an
    engine is started.

    Example: tracegrad chat demo-1 "what is 12 by 7 minus 5?" --before
    """
    from ..chat.agent import ChatAgent
    from ..chat.relay import Relay
    from ..chat.talk import Talk

    wiring = find_run(run, runs_dir)
    agent = wiring.settings.agent
    if agent is None:
        raise ConfigurationError(
            f"run {wiring.record.name} has no [agent] that could be asked; speak to its gateway: `tracegrad env`"
        )
    with ExitStack() as open_:
        sides, url, token, is_ours = _sides(wiring, version, before, open_)
        relay = open_.enter_context(Relay(url, token, lambda turn: talk.show_turn(turn), greedy=is_ours))
        asked = ChatAgent(agent, relay.base_url, relay.key, os.environ)
        talk = Talk(asked, relay, sides, echo, is_json=as_json)
        is_answered = True
        for text in [question] if question is not None else _questions(" and ".join(one.name for one in sides)):
            is_answered = talk.ask(text)
    raise typer.Exit(0 if is_answered or question is None else 1)


def _sides(
    wiring: Wiring, version: int | None, before: bool, open_: ExitStack
) -> tuple[list[Side], str, str | None, bool]:
    """Who is asked; URL and token of who answers; whether it is an engine of ours."""
    from ..chat.engine import ChatEngine
    from ..chat.talk import Side
    from ..run.report import served_folder

    if wiring.run_dir.is_locked() and version is None and not before:
        if wiring.settings.select.train:
            echo("this run learns from what people say of its answers: yours count among them", is_error=True)
        side = Side(name=f"run {wiring.record.name}, the version that serves now", version=None, choose=lambda: None)
        return [side], wiring.endpoints.llm_url, wiring.runner().llm_token, False
    folder, number = served_folder(wiring, version)
    start = served_folder(wiring, 0)[0] if before else folder
    echo(f"starting an engine from {start}; with a small model half a minute", is_error=True)
    engine = open_.enter_context(ChatEngine(wiring, start))
    sides = (
        [Side(name="before training (version 0)", version=0, choose=partial(engine.load, start, 0))] if before else []
    )
    name = f"after (version {number})" if before else f"run {wiring.record.name}, version {number}"
    sides.append(Side(name=name, version=number, choose=partial(engine.load, folder, number)))
    return sides, engine.url, engine.token, True


def _questions(whom: str) -> Iterator[str]:
    """From a person, with a prompt, or from a pipe, a line each."""
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        echo(f"You ask {whom}. Each question is a task of its own; Ctrl-D ends.")
    while True:
        if is_terminal:
            sys.stdout.write("> ")
            sys.stdout.flush()
        line = sys.stdin.readline()
        if not line:
            return
        if line.strip():
            yield line.strip()
