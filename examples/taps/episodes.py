"""Follows `episodes`: the task of each, what it earned, how many tokens it took. Ctrl-C ends it.

    pip install confluent-kafka
    python episodes.py 127.0.0.1:9092 NAME.episodes

Where: the line `kafka` of `tracegrad status NAME`, or `bootstrap_servers` in runs/NAME/endpoints.json; each topic
with its full name: `tracegrad topics list --run NAME`. What a record holds: docs/topics.md.
"""

import json
import signal
import sys
import uuid

from confluent_kafka import Consumer

signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends it as well
signal.signal(signal.SIGINT, signal.SIG_DFL)  # at once: a close may wait for a broker that is away, and has no use here
broker, topic = sys.argv[1:]
# A group of its own that commits nothing: it takes no record from anyone, and begins anew each time.
own = {"group.id": f"tap-{uuid.uuid4()}", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
settings = {"bootstrap.servers": broker, "reconnect.backoff.ms": 1000, **own}
consumer = Consumer(settings)
consumer.subscribe([topic])
while True:
    message = consumer.poll(1.0)
    if message is None:
        continue
    if message.error():  # such as no topic of that name, yet; the client goes on by itself
        print(message.error(), file=sys.stderr)
        continue
    try:
        episode = json.loads(message.value() or b"")
        # Token ids are bytes in base64, four a token.
        tokens = sum(len(call["sampled_ids"].rstrip("=")) * 3 // 16 for call in episode["calls"])
        print(f"task {episode['task_id']}  reward {episode['reward']}  tokens {tokens}", flush=True)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        print(f"left out {topic}/{message.partition()}/{message.offset()}: {error!r}", file=sys.stderr)
