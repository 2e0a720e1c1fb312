"""docs/topics.md, made of the registry: `python -m tests.reference.topics > docs/topics.md`."""

from __future__ import annotations

import sys

from tracegrad.compose.kafka.client_settings import KafkaConfig
from tracegrad.schemas.attributes import PROVED_BY
from tracegrad.schemas.log.mac import MAC_HEADER, SIGNED, VOUCHED
from tracegrad.schemas.topics import MAX_MESSAGE_BYTES, REGISTRY, Stage, Topic

CO_PARTITIONED = (
    Topic.EPISODE_EVENTS,
    Topic.EPISODES,
    Topic.EPISODE_SCORES,
    Topic.CLOSED_EPISODES,
    Topic.CLOSED_GROUPS,
)
"""A marker lies in the partition number of its input, so these have equal counts."""


def topics_markdown() -> str:
    """The text of docs/topics.md; a test keeps the file equal to it."""
    lines = [
        "# Topics",
        "",
        "Generated from `schemas/topics.py` by `python -m tests.reference.topics`; do not edit.",
        "",
        "Raw topics are shared by all runs and named `<prefix><topic>` (renamable in `[kafka.topics]`); the others",
        "belong to a run, `<prefix><run>.<topic>`. Consumer groups are `<prefix><run>.<stage>`, stages "
        + ", ".join(f"`{stage}`" for stage in Stage)
        + ".",
        f"`max.message.bytes` is {MAX_MESSAGE_BYTES}, or as the last column says; `[kafka.max_message_bytes]` sets it.",
        "Private topics may change between releases. Scripts that read them and import nothing of ours:",
        "[examples/taps](../examples/taps).",
        f"A record of {', '.join(f'`{topic}`' for topic in Topic if topic in SIGNED)} counts only with the header",
        f"`{MAC_HEADER}`: a run's hash, a colon, and in hex the HMAC-SHA256 by its key (`key.json` in its folder)",
        "over `tracegrad/record/1`, the topic's name in this table, the key and the value, each of these three",
        "after its length in 4 bytes, big-endian (`ffffffff` for none). The run is the topic's, on a raw topic that of",
        f"the rollout in the key. On {', '.join(f'`{topic}`' for topic in sorted(VOUCHED))} our gateways' bear it;",
        f"in any other `{PROVED_BY}` on a resource, which says whose its spans are, is text, and no call is one of a",
        "runner's rollout.",
        f"Equal partition counts: {', '.join(f'`{topic}`' for topic in CO_PARTITIONED)}.",
        "",
        "| topic | scope | key | value | written by | read by | partitions | settings |",
        "|---|---|---|---|---|---|---|---|",
    ]
    counts = {"run": f"run's (default {KafkaConfig().partitions})", "policies": "one per policy", "one": "1"}
    for spec in REGISTRY:
        scope = ("raw" if spec.raw else "run") + ("" if spec.public else ", private")
        own = {} if spec.max_message_bytes == MAX_MESSAGE_BYTES else {"max.message.bytes": str(spec.max_message_bytes)}
        settings = ", ".join(f"`{name}={value}`" for name, value in sorted({**own, **spec.settings}.items()))
        key = (spec.key.__doc__ or "").splitlines()[0]
        cells = [f"`{spec.topic}`", scope, key, spec.value, spec.written_by, spec.read_by, counts[spec.partitions]]
        lines.append("| " + " | ".join([*cells, settings]) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(topics_markdown())
