"""Turns what Langfuse exports to blob storage, in JSONL, into calls and rewards for `tracegrad replay --from files:`.

    python from_langfuse.py EXPORT/observations_v2/*.jsonl.gz > past.calls.jsonl
    python from_langfuse.py EXPORT/scores/*.jsonl.gz > past.rewards.jsonl

A generation is a call if its input and output have OpenAI's chat form, as Langfuse's wrapper of OpenAI writes them. One
without tools may have had some: name them in `[history] tools`. A trace becomes a conversation, because scores rate
traces; the trace's name stands for the agent's. What is left out is counted at the end.
"""

import gzip
import json
import sys
from collections import Counter

FIELDS = {"role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content"}


def decoded(text):
    """Of input and output, which are JSON or what was said."""
    try:
        return json.loads(text) if text[:1] in ("[", "{") else text
    except ValueError:
        return text


def is_message(it):
    """Whether it says nothing for which a call's line has no field."""
    return isinstance(it, dict) and "role" in it and {key for key in it if it[key] not in (None, [], {})} <= FIELDS


def line(row):
    """Of a generation or a score; else why there is none."""
    if "data_type" in row:
        of = {"response_id": row["observation_id"]} if row["observation_id"] else {"conversation": row["trace_id"]}
        is_told = row["data_type"] in ("NUMERIC", "BOOLEAN") and all(of.values())
        return {**of, "name": row["name"], "value": row["value"]} if is_told else "in words, or of a session"
    given, said = decoded(row["input"] or ""), decoded(row["output"] or "")
    asked = given if isinstance(given, dict) else {"messages": given}
    told = asked.get("messages") if asked.keys() <= {"messages", "tools"} else None
    if row["type"] != "GENERATION" or row["level"] == "ERROR" or not row["end_time"] or not said:
        return "no generation" if row["type"] != "GENERATION" else "failed or unfinished"
    if (
        not told
        or not isinstance(told, list)
        or not all(map(is_message, told))
        or not (isinstance(said, str) or is_message(said))
    ):
        return "in another form"
    ids = {"id": row["id"], "conversation": row["trace_id"], "agent": row["trace_name"] or None}
    ids |= {"model": row["provided_model_name"], "started": row["start_time"].replace(" ", "T") + "Z"}
    return {**ids, "messages": told, "tools": asked.get("tools"), "answer": said}


count, seen = Counter(), set()
for file in sys.argv[1:]:
    with (gzip.open if file.endswith(".gz") else open)(file, "rt", encoding="utf-8") as rows:
        for row in sorted(map(json.loads, rows), key=lambda row: row.get("start_time") or row["timestamp"]):
            found = line(row) if row["id"] not in seen else "twice, on the boundary of two exports"
            count["written" if isinstance(found, dict) else found] += 1
            if isinstance(found, dict):
                print(json.dumps(found))
            seen.add(row["id"])
print(", ".join(f"{number} {what}" for what, number in count.items()), file=sys.stderr)
