"""A simulated crowd: people who talk to the server, know what is right, and rate some of it, as people do.

    PYTHONPATH=../calculator python crowd.py http://127.0.0.1:8000 --conversations 500 --out crowd.jsonl

A third of the conversations have two questions. Half of the people rate (`--by-outcome`: one in five of those who got
it right, three in five of the others): most at once, some when the conversation has long closed, some too late, some
change their mind, some are contradicted by another. In the file stands all that was asked, answered and said.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
import uuid
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from chain import draw_task
from tqdm import tqdm

TWO = 1 / 3
RATES, RATES_RIGHT, RATES_WRONG = 0.5, 0.2, 0.6
KINDS = {"at once": 85, "late": 6, "too late": 3, "revised": 3, "contradicted": 3}
FORGED = 0.02
PAUSES_S = (0.0, 0.1, 0.3, 4.0)
"""Before the second question; after the last the first one's episode has closed."""
TOO_LATE_S = 8.0
"""Behind the window: commits and clocks take a few seconds."""


class Crowd:
    """Everyone who talks to one server."""

    def __init__(self, given: argparse.Namespace, client: httpx.AsyncClient, write: Callable[[Any], None]) -> None:
        self._given, self._client, self._write = given, client, write
        self._nonce = uuid.uuid4().hex[:8]
        self._turn = asyncio.Semaphore(given.at_once)
        self._outcomes: deque[float] = deque(maxlen=64)
        self._later: set[asyncio.Task[None]] = set()

    async def talk(self, number: int) -> None:
        """One conversation, and what is said of it at once."""
        chance = random.Random(f"{self._given.seed}-{number}")
        conversation = f"{self._nonce}-{number}"
        rates = chance.random()
        async with self._turn:
            for turn in range(1 + (chance.random() < TWO)):
                if turn:
                    await asyncio.sleep(chance.choice(PAUSES_S))
                question, expected = draw_task(chance)
                answer = await self._post("chat", {"conversation": conversation, "text": question})
                right = float(answer["text"] is not None and answer["text"].strip() == expected)
                self._write({"conversation": number, "turn": turn, "at": time.time(), "right": right, **answer})
                self._think(number, conversation, answer["id"], right, rates, chance)
                if answer["text"] is None:
                    return

    def _think(
        self, number: int, conversation: str, answer: str | None, right: float, rates: float, chance: random.Random
    ) -> None:
        """Whether and what this person says of an answer."""
        value = chance.choice(self._outcomes or (0.0,)) if self._given.permuted else right
        self._outcomes.append(right)
        share = (RATES_RIGHT if right else RATES_WRONG) if self._given.by_outcome else RATES
        thumb = {"conversation": conversation, "id": answer, "rater": f"{conversation}-a"}
        kind = chance.choices([*KINDS], [*KINDS.values()])[0]
        if rates < share:
            task = asyncio.create_task(self._rate(number, kind, thumb, value, chance))
            self._later.add(task)
            task.add_done_callback(self._later.discard)
        if chance.random() < FORGED:
            task = asyncio.create_task(self._forge(number, thumb, chance))
            self._later.add(task)
            task.add_done_callback(self._later.discard)

    async def _rate(self, number: int, kind: str, thumb: dict[str, Any], value: float, chance: random.Random) -> None:
        if kind == "late":
            await asyncio.sleep(self._given.idle_s + chance.uniform(0.2, 0.5) * self._given.wait_s)
        elif kind == "too late":
            await asyncio.sleep(self._given.idle_s + self._given.wait_s + TOO_LATE_S)
        elif kind == "revised":
            await self._thumb(number, "mistaken", thumb, 1 - value)
        elif kind == "contradicted":
            await self._thumb(number, "contrary", {**thumb, "rater": f"{thumb['conversation']}-b"}, 1 - value)
        await self._thumb(number, kind, thumb, value)

    async def _thumb(self, number: int, kind: str, thumb: dict[str, Any], value: float) -> None:
        said = await self._post("rate", {**thumb, "value": value})
        self._write({"conversation": number, "rated": kind, "at": time.time(), "value": value, **said})

    async def _forge(self, number: int, thumb: dict[str, Any], chance: random.Random) -> None:
        """Somebody without the token, and somebody who invents an answer."""
        said = await self._post("rate", {**thumb, "id": f"chatcmpl-{chance.randrange(10**9)}", "value": 1.0})
        self._write({"conversation": number, "forged": "invented", **said})
        if self._given.rewards_url:
            body = {"conversation_id": thumb["conversation"], "name": "thumb", "value": 1.0}
            key = chance.choice([{}, {"authorization": "Bearer rf-" + "0" * 43}])
            url = f"{self._given.rewards_url}/v1/rewards"
            status = (await self._client.post(url, json=body, headers=key)).status_code
            self._write({"conversation": number, "forged": "no token", "status": status})

    async def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Asked again, as people do, where the server does not answer."""
        for left in reversed(range(5)):
            try:
                answer = await self._client.post(f"{self._given.url}/{path}", json=body)
                if answer.status_code < 500:
                    return dict(answer.json())
                answer.raise_for_status()
            except httpx.HTTPError as error:
                if not left:
                    return {"text": None, "id": None, "error": repr(error)}
            await asyncio.sleep(1.0)
        raise AssertionError("not reached")

    async def all(self) -> None:
        """Every conversation, so many at once, and what is said of them later."""
        talks = [asyncio.create_task(self.talk(number)) for number in range(self._given.conversations)]
        for done in tqdm(asyncio.as_completed(talks), total=len(talks), unit=" conversations", smoothing=0.05):
            await done
        while self._later:
            await asyncio.wait(self._later)


async def visit(given: argparse.Namespace) -> None:
    """The crowd comes and goes."""
    with given.out.open("w", buffering=1) as out:
        async with httpx.AsyncClient(timeout=180, limits=httpx.Limits(max_connections=256)) as client:
            await Crowd(given, client, lambda line: print(json.dumps(line), file=out)).all()


def main() -> int:
    """Returns 130 when it was interrupted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="where the server is")
    parser.add_argument("--conversations", type=int, default=500)
    parser.add_argument("--at-once", type=int, default=24, help="conversations at a time")
    parser.add_argument("--seed", type=int, default=0, help="of what is asked, and of who rates")
    parser.add_argument("--permuted", action="store_true", help="a control: each rates what another got")
    parser.add_argument("--by-outcome", action="store_true", help="who got it wrong rates more often")
    parser.add_argument("--rewards-url", help="where forged feedback goes; none is forged without it")
    parser.add_argument("--idle-s", type=float, default=2.0, help="[streams] idle_s of the run")
    parser.add_argument("--wait-s", type=float, default=8.0, help="[feedback] wait_s of the run")
    parser.add_argument("--out", type=Path, default=Path("crowd.jsonl"))
    try:
        asyncio.run(visit(parser.parse_args()))
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
