"""What the model says in every recording, and what was true of it: a planner with two tools, and an expert with one.

In: the prompt of a call. Out: the next thing to sample, decided by the prompt alone, so that a framework may ask in any
order: two tools at once of which one fails, then the other agent, then its tool, then an answer. Who calls is told by
the first line of the agent's own instructions; what is asked for bears the number of the trip, so that each execution
belongs to one request.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from tests.fake_engine.scripted import Reply, tool_call_text

_TURNS = re.compile(r"<\|im_start\|>(\w+)\n(.*?)(?:<\|im_end\|>|$)", re.DOTALL)
_TRIP = re.compile(r"trip (\d+)", re.IGNORECASE)
_FIELDS = "[[ ## completed ## ]]"
_PLAN = re.compile(r"You are the agent \w+\. Steps: (.*? planned\.)")
_ASKED = re.compile(r"(\w+)\((\w+)=([^)]*)\)")
_AGENT = re.compile(r"You are the agent (\w+)")


def agent_of(prompt: str) -> str | None:
    """Whose instructions the prompt begins with."""
    found = _AGENT.search(prompt)
    return found[1] if found else None


def trip_of(prompt: str) -> int:
    """The conversation."""
    return int(_TRIP.findall(prompt)[-1])


def plain_name(tool: str) -> str:
    """A tool's name without the plug-in before it."""
    return tool.rpartition("-")[2]


def _steps(trip: int, delegations: Mapping[str, Mapping[str, Any]]) -> list[dict[str, dict[str, Any]]]:
    """What is asked for, turn by turn."""
    first = {"get_weather": {"city": f"Oslo-{trip}"}, "get_time": {"city": f"Atlantis-{trip}"}}
    request = {name: json.loads(json.dumps(given).replace("TRIP", str(trip))) for name, given in delegations.items()}
    return [first, *({name: given} for name, given in request.items()), {"convert": {"amount": 100 + trip}}]


def _in_fields(question: str, trip: int) -> str:
    """The next answer for DSPy, which names tools in text."""
    fields = {"reasoning": "enough", "answer": f"Trip {trip} is planned."}
    if "with the field `[[ ## next_thought" in question:
        rows = [(name, given) for step in _steps(trip, {}) for name, given in step.items()]
        left = [row for row in rows if f"]]\n{row[0]}\n" not in question] or [("finish", {})]
        name, given = left[0]
        fields = {"next_thought": "next", "next_tool_name": name, "next_tool_args": json.dumps(given)}
    return "".join(f"[[ ## {name} ## ]]\n{value}\n\n" for name, value in fields.items()) + "[[ ## completed ## ]]"


def _planned(turns: list[tuple[str, str]], steps: str, offered: Mapping[str, str], trip: int) -> Reply:
    """The next of the steps that the agent's instructions bear: what its own turns have not asked for yet."""
    said = "".join(text for role, text in turns if role == "assistant")
    # smolagents forgets what it asked for in a step that failed.
    said += "".join(name for _, text in turns for name in re.findall(r"Error executing tool ('\w+')", text))
    wanted: Counter[str] = Counter()
    for step in steps.replace("TRIP", str(trip)).split("; "):
        asked = _ASKED.findall(step)
        wanted.update(name for name, _, _ in asked)
        if asked and any(len(re.findall(f"[\"'`]{name}[\"'`]", said)) < wanted[name] for name, _, _ in asked):
            given = [(name, {key: int(value) if value.isdecimal() else value}) for name, key, value in asked]
            return Reply("\n".join(tool_call_text(offered.get(name, name), **one) for name, one in given))
    answer = steps.rpartition("say ")[2].replace("TRIP", str(trip))
    if "final_answer" in offered:
        return Reply(tool_call_text(offered["final_answer"], answer=answer))
    return Reply(answer)


def script(prompt: str, delegations: Mapping[str, Mapping[str, Any]]) -> Reply:
    """The next answer; `delegations`: the framework's own tools by which the planner reaches the expert."""
    turns = _TURNS.findall(prompt)
    if _FIELDS in prompt:
        return Reply(_in_fields(turns[-1][1] if turns[-1][1].strip() else turns[-2][1], trip_of(prompt)))
    listed = (line for role, text in turns if role == "system" for line in re.findall(r"^tools: (.*)", text, re.M))
    offered = {plain_name(name.strip()): name.strip() for line in listed for name in line.split(",")}
    said = "".join(text for role, text in turns if role != "system")
    trip = trip_of(prompt)
    if planned := _PLAN.search(prompt):
        return _planned(turns, planned[1], offered, trip)
    for step in _steps(trip, delegations):
        asked = {offered[name]: given for name, given in step.items() if name in offered}
        asked = {name: given for name, given in asked.items() if not re.search(f"[\"'`]{name}[\"'`]", said)}
        if asked:
            return Reply("\n".join(tool_call_text(name, **given) for name, given in asked.items()))
    if "final_answer" in offered:
        return Reply(tool_call_text(offered["final_answer"], answer=f"Trip {trip} is planned."))
    return Reply(f"Trip {trip} is planned.")
