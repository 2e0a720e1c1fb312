"""Turns a day of a Phoenix project's model spans into calls for `tracegrad replay --from files:`.

    PHOENIX_HOST=http://localhost:6006 python from_phoenix.py PROJECT 2026-03-01 > past.calls.jsonl

A call without tools may have had some, since not every instrumentation tells them: name them in `[history] tools`. A
trace becomes a conversation, and a span's id the call's. A file for `--rewards` has of each item of GET
/v1/projects/PROJECT/span_annotations?span_ids=.. its `span_id` as response_id, its `name`, and `result.score` as value.
What is left out is counted at the end. PHOENIX_API_KEY is sent where it is set.
"""

import json
import os
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta

import httpx

FIELDS = {"role", "content", "name", "tool_calls", "tool_call_id"}
WRAPPERS = {"message", "message_content", "tool_call", "tool"}
SDK_LIMIT = 128
"""Attributes of a span, by default. An SDK drops the first ones beyond it, and Phoenix closes the gap in silence."""


def pages(phoenix, path, **query):
    """The items of all pages."""
    while query.get("cursor", path):
        page = phoenix.get(path, params=query).raise_for_status().json()
        yield from page["data"]
        query["cursor"] = page["next_cursor"]


def told(span, name):
    """Items that are spelt flat, as `llm.input_messages.0.message.role`."""
    tree = {}
    for key in span["attributes"]:
        if key.startswith(f"llm.{name}."):
            *path, last = (part for part in key.split(".")[2:] if part not in WRAPPERS)
            place = tree
            for part in path:
                place = place.setdefault(part, {})
            place[last] = span["attributes"][key]
    return [*tree.values()]


def message(it):
    """One of those, as chat completions have it; arguments that are `{}` are not told."""
    calls = [{**one, "function": {"arguments": "{}", **one["function"]}} for one in it.pop("tool_calls", {}).values()]
    parts = [part for part in it.pop("contents", {}).values() if part.get("type") != "tool_use"]
    return {**it, **({"content": parts} if parts else {}), **({"tool_calls": calls} if calls else {})}


def line(span, around):
    """A span's, or why there is none."""
    attributes, ids = span["attributes"], span["context"]
    if span["span_kind"] != "LLM" or ids["span_id"] in around:
        return "no calls, or around another"
    try:
        asked, said = ([message(it) for it in told(span, name)] for name in ("input_messages", "output_messages"))
        tools = [json.loads(tool["json_schema"]) for tool in told(span, "tools")]
    except (AttributeError, KeyError, TypeError, ValueError):
        return "in another form"
    if span["status_code"] == "ERROR" or not asked or len(said) != 1:
        return "without a prompt and one answer"
    if len(attributes) + 1 == SDK_LIMIT or "__REDACTED__" in str((asked, said)):
        return "cut or hidden"
    if not all({"role"} <= it.keys() <= FIELDS and it.keys() & {"content", "tool_calls"} for it in asked + said):
        return "in another form"
    call = {"id": ids["span_id"], "conversation": ids["trace_id"], "started": span["start_time"], "messages": asked}
    call |= {"model": attributes.get("llm.model_name", ""), "answer": said[0]}
    return call | {"tools": tools if tools and all("function" in tool for tool in tools) else None}


def spans(project, day):
    """Those that began on a day, the first first."""
    begin = datetime.fromisoformat(day).replace(tzinfo=UTC)
    times = {"start_time": begin.isoformat(), "end_time": (begin + timedelta(days=1)).isoformat()}
    headers = {"authorization": f"Bearer {key}"} if (key := os.environ.get("PHOENIX_API_KEY")) else {}
    with httpx.Client(base_url=os.environ["PHOENIX_HOST"], headers=headers, timeout=60) as phoenix:
        found = pages(phoenix, f"/v1/projects/{project}/spans", limit=1000, **times)
        return sorted(found, key=lambda span: span["start_time"])


count, of_a_day = Counter(), spans(*sys.argv[1:])
around = {span["parent_id"] for span in of_a_day if span["span_kind"] == "LLM"}
for found in (line(span, around) for span in of_a_day):
    count[found if isinstance(found, str) else "written"] += 1
    if isinstance(found, dict):
        print(json.dumps(found))
print(", ".join(f"{number} {what}" for what, number in count.items()), file=sys.stderr)
