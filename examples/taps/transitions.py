"""Reads `transitions` into pandas, as far as the topic goes now: a row is a segment of one rollout's tokens.

    pip install confluent-kafka pyarrow pandas
    python -i transitions.py 127.0.0.1:9092 NAME.transitions        # then ask `frame`

Where: the line `kafka` of `tracegrad status NAME`, or `bootstrap_servers` in runs/NAME/endpoints.json; each topic
with its full name: `tracegrad topics list --run NAME`. What a record holds: docs/topics.md.
"""

import json
import sys

import pandas as pd
import pyarrow as pa
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

broker, topic = sys.argv[1:]
own = {"group.id": "tap", "enable.auto.commit": False, "enable.partition.eof": True}
consumer = Consumer({"bootstrap.servers": broker, "reconnect.backoff.ms": 1000, **own})
unread = set(consumer.list_topics(topic, timeout=30).topics[topic].partitions)
consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in unread])
frames = [pd.DataFrame()]
while unread:
    message = consumer.poll(1.0)
    if message is None:
        continue
    if message.error():
        if message.error().code() == KafkaError._PARTITION_EOF:
            unread.discard(message.partition())
        continue  # of all else, such as a broker that is away, the client says what it is and goes on by itself
    try:
        group = pa.ipc.open_stream(message.value() or b"").read_all()
        group.validate(full=True)  # bytes that nobody has checked could end this process
        members = json.loads(group.schema.metadata[b"tracegrad.group"])["members"]
        frame = group.to_pandas().assign(offset=message.offset())
        frame["reward"] = frame["rollout_id"].map({member["rollout_id"]: member["reward"] for member in members})
        frames.append(frame.assign(tokens=frame["loss_mask"].map(sum)))
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        print(f"left out {topic}/{message.partition()}/{message.offset()}: {error!r}", file=sys.stderr)
consumer.close()
frame = pd.concat(frames, ignore_index=True)
if not frame.empty:
    print(frame.groupby(["offset", "task_id"]).agg({"segment": "size", "reward": "mean", "tokens": "sum"}).to_string())
