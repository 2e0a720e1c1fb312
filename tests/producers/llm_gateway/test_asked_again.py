"""Captured clients that name nothing, give a request up and ask it again while the engine still samples the first."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.producers.llm_gateway.conversing import GO_ON, ask, keys
from tests.producers.llm_gateway.harness import ASK, GENERATE, Rig, until

pytestmark = pytest.mark.slow


async def leave(r: Rig, messages: list[Any]) -> None:
    """Asks as `ask`, and goes away before the engine has answered."""
    num_asked = len(r.asked(GENERATE))
    call = asyncio.create_task(ask(r, messages))
    await until(lambda: len(r.asked(GENERATE)) > num_asked)
    call.cancel()
    await asyncio.wait({call})
    await asyncio.sleep(0.02)  # the gateway sees it


async def test_a_client_that_leaves_and_asks_again_is_still_in_its_conversation(r: Rig) -> None:
    """While what it asked first is sampled, too; of the two answers only the one that it got is gone on from."""
    r.engine.delay_s = 0.2
    said = await ask(r, ASK)
    await leave(r, [*ASK, said, GO_ON])
    again = await ask(r, [*ASK, said, GO_ON])
    await ask(r, [*ASK, said, GO_ON, again, GO_ON])
    assert len(keys(r)) == 4 and len(set(keys(r))) == 1


async def test_an_answer_that_nobody_got_is_nobodys_to_go_on_from(r: Rig) -> None:
    """Of a first request nobody knows that it is one asked again; its equal answer is not mistaken for another's."""
    r.engine.delay_s = 0.2
    await leave(r, ASK)
    said = await ask(r, ASK)
    await ask(r, [*ASK, said, GO_ON])
    first, second, third = keys(r)
    assert first != second == third
