"""Posts the scores that people gave in Langfuse to the run, each under its own id. Run it again, by cron or in a loop.

    eval "$(tracegrad env --feedback --shell)"      # TRACEGRAD_REWARDS_URL, TRACEGRAD_REWARD_TOKEN
    LANGFUSE_HOST=https://cloud.langfuse.com LANGFUSE_PUBLIC_KEY=pk-.. LANGFUSE_SECRET_KEY=sk-.. \\
        python from_elsewhere.py user-feedback=thumb --hours 2

The agent exports its spans to Langfuse as before, and to tracegrad. A score counts once: its id is the idempotency key,
and a score whose receipt has the same value is not posted again. A changed score revises. A score has to come within
`[feedback] wait_s` of its conversation's end. Text scores and scores of experiments are left out, and counted.

Another source needs another `scores`; what it yields stays:
Phoenix: GET /v1/projects/{project}/traces, then /v1/projects/{project}/trace_annotations?trace_ids=..; trace_id is
    `trace_id`, value `result.score`, reason `result.explanation`, key `id`. Sessions: session_annotations.
MLflow: POST /api/3.0/mlflow/traces/search; of each trace's `assessments` trace_id is `trace_id` without `tr-`, value
    `feedback.value`, reason `rationale`, key `assessment_id`, or the one in `overrides`. The conversation stands in
    the trace's metadata `mlflow.trace.session`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx

from tracegrad.producers.client.feedback import REWARD_TOKEN, REWARDS_URL, send_feedback


def scores(langfuse: httpx.Client, since: datetime) -> Iterator[dict[str, Any]]:
    """Each score given since then, by GET /api/public/v3/scores (Langfuse Cloud, self-hosted from 3.179)."""
    query = {"limit": "100", "fields": "details,subject", "fromTimestamp": since.isoformat()}
    while True:
        page = langfuse.get("/api/public/v3/scores", params=query).raise_for_status().json()
        yield from page["data"]
        if not page["meta"].get("cursor"):
            return
        query["cursor"] = page["meta"]["cursor"]


def about(score: dict[str, Any]) -> dict[str, str]:
    """What it rates: the trace of an observation, whose id is OpenTelemetry's, or a conversation."""
    match score.get("subject"):
        case {"kind": "trace", "id": id_} | {"kind": "observation", "traceId": id_}:
            return {"trace_id": id_}
        case {"kind": "session", "id": id_}:
            return {"conversation_id": id_}
    return {}


def post(score: dict[str, Any], name: str, gateway: httpx.Client) -> str:
    """What became of it: posted, known or left out."""
    target, value, key = about(score), score["value"], f"langfuse/{score['id']}"
    if not target or not isinstance(value, int | float):
        return "left out"
    receipt = gateway.get(f"/v1/rewards/{key}")
    if receipt.status_code == 200 and receipt.json()["pieces"][-1]["value"] == value:
        return "known"
    reason = (score.get("comment") or "")[:2_000] or None
    send_feedback(value=value, name=name, reason=reason, idempotency_key=key, **target)
    return "posted"


def main() -> int:
    """0, or 1 when a score was refused."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", metavar="THEIRS=OURS", help="a score's name = one of [feedback.names]")
    parser.add_argument("--hours", type=float, default=2.0, help="how far back it reads")
    given = parser.parse_args()
    names = dict(one.split("=", 1) for one in given.names)
    keys = os.environ["LANGFUSE_PUBLIC_KEY"], os.environ["LANGFUSE_SECRET_KEY"]
    token = {"authorization": f"Bearer {os.environ[REWARD_TOKEN]}"}
    became: Counter[str] = Counter()
    with (
        httpx.Client(base_url=os.environ["LANGFUSE_HOST"], auth=keys, timeout=30) as langfuse,
        httpx.Client(base_url=os.environ[REWARDS_URL], headers=token, timeout=30, trust_env=False) as gateway,
    ):
        for score in scores(langfuse, datetime.now(UTC) - timedelta(hours=given.hours)):
            if score["name"] not in names:
                continue
            try:
                became[post(score, names[score["name"]], gateway)] += 1
            except ValueError as error:
                became["refused"] += 1
                print(f"{score['id']}: {error}", file=sys.stderr)
    print(", ".join(f"{number} {what}" for what, number in sorted(became.items())) or "no scores")
    return 1 if became["refused"] else 0


if __name__ == "__main__":
    sys.exit(main())
