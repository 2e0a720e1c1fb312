"""Makes Langfuse's fixture of its client's own types, for its server needs what no test has: ClickHouse, Redis, S3.

    python -m venv e && e/bin/pip install langfuse && e/bin/python tests/producers/rewards/sources/made_langfuse.py

In: the package `langfuse` in an environment of its own; nothing of ours is imported. Out: `fixtures/langfuse.json`, in
the form of `replay.py`. Failure: pydantic's, where the types have changed.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
from pathlib import Path
from typing import Any

TRACE, AT = "5e" * 16, "2026-11-24T09:00:00.{}Z"
ANSWER = "chatcmpl-2s4P836vSCTkv6CTgvcbxW000000007"
PATH = "/api/public/v3/scores"
OBSERVATIONS = "/api/public/v2/observations"
QUERY = [
    ["limit", "100"],
    ["fields", "details,subject"],
    ["fromTimestamp", "2020-01-01T00:00:00+00:00"],
    ["name", "thumb,stars,tone"],
]


def score(number: int, name: str, kind: str, value: Any, subject: dict[str, str] | None, ms: int) -> dict[str, Any]:
    """As the API's documentation has it."""
    at = AT.format(f"{ms:03d}")
    found = {"id": f"s-{number}", "projectId": "p", "name": name, "value": value, "dataType": kind, "source": "API"}
    found |= {"timestamp": at, "createdAt": at, "updatedAt": at, "environment": "default", "metadata": {}}
    return found | {"comment": "good" if number == 1 else None} | ({"subject": subject} if subject else {})


def page(scores: list[dict[str, Any]], cursor: str | None) -> Any:
    """An answer, read and written by the client's types."""
    given = {"data": scores, "meta": {"limit": 100} | ({"cursor": cursor} if cursor else {})}
    form = importlib.import_module("langfuse.api.scores.types").GetScoresV3Response
    answer = importlib.import_module("langfuse.api.core.pydantic_utilities").parse_obj_as(form, given)
    return json.loads(answer.json())


def observed(span: str) -> dict[str, Any]:
    """The exchange by which an observation is asked for: what OpenTelemetry's span had is in its metadata."""
    wanted = [{"type": "string", "column": "id", "operator": "=", "value": span}]
    wanted += [{"type": "string", "column": "traceId", "operator": "=", "value": TRACE}]
    query = [["fields", "core,metadata"], ["expandMetadata", "attributes"], ["limit", "1"]]
    query += [["filter", json.dumps(wanted, separators=(",", ":"))]]
    attributes = json.dumps({"gen_ai.request.model": "policy", "gen_ai.response.id": ANSWER})
    one = {"id": span, "traceId": TRACE, "startTime": AT.format("000"), "projectId": "p", "type": "GENERATION"}
    given = {"data": [{**one, "metadata": {"attributes": attributes}}], "meta": {}}
    form = importlib.import_module("langfuse.api.observations.types").ObservationsV2Response
    answer = importlib.import_module("langfuse.api.core.pydantic_utilities").parse_obj_as(form, given)
    return {"path": OBSERVATIONS, "query": query, "body": None, "answer": json.loads(answer.json())}


def main() -> None:
    """Writes it."""
    trace, session = {"kind": "trace", "id": TRACE}, {"kind": "session", "id": "room 7"}
    observation = {"kind": "observation", "id": "00000000000000a2", "traceId": TRACE}
    kept = [
        score(2, "stars", "NUMERIC", 4.0, trace, 2),
        score(3, "tone", "CATEGORICAL", "kind", session, 3),
        score(4, "stars", "NUMERIC", 2.0, {"kind": "experiment", "id": "run"}, 4),
        score(5, "tone", "TEXT", "I do not know", trace, 5),
    ]

    def exchange(answer: Any, cursor: str | None = None) -> dict[str, Any]:
        query = [*QUERY, ["cursor", cursor]] if cursor else QUERY
        return {"path": PATH, "query": query, "body": None, "answer": answer}

    rounds = [
        [
            exchange(page([score(1, "thumb", "BOOLEAN", value, observation, ms)], "next")),
            exchange(page(kept, None), "next"),
            observed(observation["id"]),
        ]
        for value, ms in ((True, 1), (False, 9))
    ]
    version = importlib.metadata.version("langfuse")
    source = {"kind": "langfuse", "url": "http://127.0.0.1:1"}
    recording = {"made_by": f"the types of langfuse {version}", "source": source, "rounds": rounds}
    (Path(__file__).parent / "fixtures" / "langfuse.json").write_text(json.dumps(recording, indent=1) + "\n")


if __name__ == "__main__":
    main()
