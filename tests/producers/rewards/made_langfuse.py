"""Makes Langfuse's fixture of its client's own types, for its server needs what no test has: ClickHouse, Redis, S3.

    python -m venv e && e/bin/pip install langfuse && e/bin/python tests/producers/rewards/made_langfuse.py

In: the package `langfuse` in an environment of its own; nothing of ours is imported. Out: `langfuse.json` beside
this file: the pages of two readings. Failure: pydantic's, where the types have changed.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
from pathlib import Path
from typing import Any

TRACE, AT = "5e" * 16, "2026-11-24T09:00:00.{}Z"


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

    readings = [
        [page([score(1, "thumb", "BOOLEAN", value, observation, ms)], "next"), page(kept, None)]
        for value, ms in ((True, 1), (False, 9))
    ]
    made = {"made_by": f"the types of langfuse {importlib.metadata.version('langfuse')}", "readings": readings}
    (Path(__file__).parent / "langfuse.json").write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
