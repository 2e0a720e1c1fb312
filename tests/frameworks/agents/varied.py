"""Four agents of any framework: two at once below a coordinator, one below one of these; all conversations at once.

Each agent's instructions bear the steps that the model takes, so that agents may run at once; their last answers are
equal, and one of them runs a tool twice with equal arguments. RECORDED_FRAMEWORK names the framework.
"""

import asyncio
import os

import harness

from varied_frameworks import FRAMEWORKS

SAY = "say Trip TRIP is planned."
STEPS = {
    "coordinator": f"ask_north(request=Look north on trip TRIP.) + ask_south(request=Look south on trip TRIP.); {SAY}",
    "north": f"get_weather(city=Bergen-TRIP); ask_scout(request=Scout for trip TRIP.); {SAY}",
    "south": f"get_weather(city=Rome-TRIP); get_weather(city=Rome-TRIP); get_time(city=Atlantis-TRIP); {SAY}",
    "scout": f"convert(amount=2TRIP); {SAY}",
}


def instructions(name):
    """Whose they are, and what the model will do."""
    return f"You are the agent {name}. Steps: {STEPS[name]}"


def asks(name, run):
    """A tool by which one agent asks another."""

    async def ask(request: str) -> str:
        harness.executed(f"ask_{name}", request=request)
        return await run(request)

    ask.__name__ = ask.__qualname__ = f"ask_{name}"
    ask.__doc__ = f"Asks {name}.\n\nArgs:\n    request: what"
    return ask


async def main():
    """All conversations at once."""
    make, provider = FRAMEWORKS[os.environ["RECORDED_FRAMEWORK"]]()
    scout = make("scout", instructions("scout"), [harness.convert])
    north = make("north", instructions("north"), [harness.get_weather, asks("scout", scout)])
    south = make("south", instructions("south"), [harness.get_weather, harness.get_time])
    coordinator = make("coordinator", instructions("coordinator"), [asks("north", north), asks("south", south)])
    for answer in await asyncio.gather(*map(coordinator, harness.PROMPTS)):
        print(answer)
    provider.shutdown()


asyncio.run(main())
