"""Turns trajectories in ATIF, as Harbor and NeMo Gym's harbor_agent keep them, into calls for `tracegrad replay`.

    python from_atif.py JOBS > past.calls.jsonl    # TRIAL/agent/trajectory*.json below JOBS, TRIAL/result.json

A step of the agent is a call, a trial a conversation. A prompt is made of the steps before, without their reasoning, as
agents send it; what an agent adds or leaves out without a step (Claude Code its system message) nobody knows. Where
ATIF says that something else was sent, the rest is left out, and counted by its reason. An agent without
`tool_definitions` may have had tools: name them in `[history] tools`. Run Terminus with raw_content, or it keeps what
its model did not write.
"""

import json
import sys
from collections import Counter
from pathlib import Path

COUNT = Counter()


def message(step):
    """What the agent's model said, as chat completions have it."""
    asked = [(one["tool_call_id"], one["function_name"], one["arguments"]) for one in step.get("tool_calls") or ()]
    calls = [{"id": id_, "function": {"name": name, "arguments": json.dumps(given)}} for id_, name, given in asked]
    return {"role": "assistant", "content": step["message"] or None, **({"tool_calls": calls} if calls else {})}


def ids(metrics):
    """The exact ones, where prompt and answer are told; logprobs where there is one for each."""
    prompt, sampled, logprobs = (metrics.get(key) for key in ("prompt_token_ids", "completion_token_ids", "logprobs"))
    given = {"logprobs": logprobs} if logprobs and sampled and len(logprobs) == len(sampled) else {}
    return {"ids": {"prompt": prompt, "sampled": sampled, **given}} if prompt and sampled else {}


def lines(told, conversation):
    """Of a trajectory, and of its subagents'."""
    agent, said, lost = told["agent"], [], ""
    is_terminus = agent["name"].startswith("terminus-2")  # has no tools, and sends results as the user's words
    for step in told["steps"]:
        results = (step.get("observation") or {}).get("results", [])
        if step["source"] != "agent":
            if results or (step["source"] == "system" and any(it["role"] != "system" for it in said)):
                lost = lost or "behind a step of the system"
            said.append({"role": step["source"], "content": step["message"]})
            continue
        model = step.get("model_name") or agent.get("model_name")
        is_made_up = is_terminus and (step.get("tool_calls") or step["message"].startswith(("Analysis: ", "Plan: ")))
        if not (said and model) or is_made_up or step.get("llm_call_count") not in (None, 1):
            lost = lost or "behind or at what is not one answer of a model"
        if step.get("is_copied_context") or lost:
            COUNT[lost or "of another trajectory"] += 1
        else:
            COUNT["written"] += 1
            stamp = step.get("timestamp") or ""
            line = {"conversation": conversation, "agent": agent["name"], "model": model}
            line |= {"started": stamp} if stamp.endswith("Z") or "+" in stamp else {}
            tools = [] if is_terminus else agent.get("tool_definitions")
            line |= {"messages": said[:], "tools": tools, **ids(step.get("metrics") or {})}
            yield line | {"answer": message(step) | {"reasoning_content": step.get("reasoning_content")}}
        said.append(message(step))
        asked = [one["tool_call_id"] for one in step.get("tool_calls") or ()]
        called = [None] * len(results) if is_terminus else asked
        if called != [one.get("source_call_id") if one.get("content") is not None else "" for one in results]:
            lost = lost or "behind results of which nobody knows how they were sent"
        for id_, one in zip(called, results, strict=False):
            by = {"role": "user"} if is_terminus else {"role": "tool", "tool_call_id": id_}
            said.append({**by, "content": one.get("content")})
    for inner in told.get("subagent_trajectories") or ():
        yield from lines(inner, conversation)


trials = {}
for file in sorted(Path(sys.argv[1]).rglob("trajectory*.json")):
    trials.setdefault(file.parent.parent, []).append(json.loads(file.read_text()))
for folder, told in trials.items():
    made = [line for one in told for line in lines(one, folder.name)]
    if made and (result := folder / "result.json").exists():
        made[-1]["rewards"] = (json.loads(result.read_text()).get("verifier_result") or {}).get("rewards") or {}
    sys.stdout.writelines(f"{json.dumps(line)}\n" for line in made)
print(", ".join(f"{number} {what}" for what, number in COUNT.items()), file=sys.stderr)
