"""What the model says in every recording, and what was true of it: a planner with two tools, and an expert with one.

In: the prompt of a call. Out: the next thing to sample, decided by the prompt alone, so that a framework may ask in any
order: two tools at once of which one fails, then the other agent, then its tool, then an answer. Who calls is told by
the first line of the agent's own instructions; what is asked for bears the number of the trip, so that each execution
belongs to one request.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from tests.fake_engine.scripted import Reply, tool_call_text

__all__ = ["agent_of", "script", "trip_of"]

_TURNS = re.compile(r"<\|im_start\|>(\w+)\n(.*?)(?:<\|im_end\|>|$)", re.DOTALL)
_TRIP = re.compile(r"trip (\d+)", re.IGNORECASE)
_AGENT = re.compile(r"You are the agent (\w+)")


def agent_of(prompt: str) -> str | None:
    """Whose instructions the prompt begins with."""
    found = _AGENT.search(prompt)
    return found[1] if found else None


def trip_of(prompt: str) -> int:
    """The conversation."""
    return int(_TRIP.findall(prompt)[-1])


def _steps(trip: int, delegations: Mapping[str, Mapping[str, Any]]) -> list[dict[str, dict[str, Any]]]:
    """What is asked for, turn by turn."""
    first = {"get_weather": {"city": f"Oslo-{trip}"}, "get_time": {"city": f"Atlantis-{trip}"}}
    request = {name: json.loads(json.dumps(given).replace("TRIP", str(trip))) for name, given in delegations.items()}
    return [first, *({name: given} for name, given in request.items()), {"convert": {"amount": 100 + trip}}]


def script(prompt: str, delegations: Mapping[str, Mapping[str, Any]]) -> Reply:
    """The next answer; `delegations`: the framework's own tools by which the planner reaches the expert."""
    turns = _TURNS.findall(prompt)
    offered = {
        name.strip() for role, text in turns if role == "system" for line in re.findall(r"^tools: (.*)", text, re.M)
        for name in line.split(",")
    }  # fmt: skip
    said = "".join(text for role, text in turns if role != "system")
    trip = trip_of(prompt)
    for step in _steps(trip, delegations):
        asked = {name: given for name, given in step.items() if name in offered and f'"{name}"' not in said}
        if asked:
            return Reply("\n".join(tool_call_text(name, **given) for name, given in asked.items()))
    if "final_answer" in offered:
        return Reply(tool_call_text("final_answer", answer=f"Trip {trip} is planned."))
    return Reply(f"Trip {trip} is planned.")
