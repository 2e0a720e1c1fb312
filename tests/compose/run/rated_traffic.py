"""A run that trains on ratings, asked and rated from outside."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

from tracegrad.compose.kafka.log import KafkaLog
from tracegrad.compose.run.wiring import Wiring
from tracegrad.schemas.log.follow import read_to_end
from tracegrad.schemas.records.episodes import EPISODES, Episode
from tracegrad.schemas.records.training import TRAINING_STEPS, TrainingStep
from tracegrad.schemas.topics import Topic

RATED = """
streams.idle_s = {idle_s}
feedback.names.thumb = {{ low = 0.0, high = 1.0 }}
"""
TRAINING = """
select.train = true
feedback.wait_s = 20.0
algorithm.recipe = "rloo_batch"
trainer.steps = 2
trainer.groups_per_step = 4
"""


def receipt(url: str, token: str, key: str) -> str:
    """What the gateway says became of a piece."""
    request = urllib.request.Request(f"{url}/v1/rewards/{key}", headers={"authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=10) as response:
        (piece,) = json.load(response)["pieces"]
    return str(piece["state"])


def steps_of(wiring: Wiring, broker: str) -> list[TrainingStep]:
    """What the trainer did."""
    records = read_to_end(KafkaLog(broker), wiring.topics.name(Topic.TRAINING_STEPS))
    decoded = (TRAINING_STEPS.decode(record.value) for record in records)
    return [step for step in decoded if isinstance(step, TrainingStep)]


def asked(url: str) -> str | None:
    """The id of an answer; None while the gateway is not there."""
    body = {"model": "policy", "messages": [{"role": "user", "content": "what is 12 plus 30?"}]}
    request = urllib.request.Request(f"{url}/chat/completions", json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return str(json.load(response)["id"])
    except OSError:
        return None


def episodes(wiring: Wiring, broker: str) -> list[Episode]:
    """Those that have closed."""
    return [
        EPISODES.decode(record.value) for record in read_to_end(KafkaLog(broker), wiring.topics.name(Topic.EPISODES))
    ]
