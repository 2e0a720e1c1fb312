"""Posts each record of a topic to a URL, such as each finished step or each dead letter.

    pip install confluent-kafka
    python webhook.py 127.0.0.1:9092 NAME.training_steps http://127.0.0.1:8000/hook        # or NAME.dead_letters

Ctrl-C ends it within ten seconds, a second one at once.
At least once: an offset is committed after its record's post was answered; a post that was not is made again, with the
same `Idempotency-Key`. Where: the line `kafka` of `tracegrad status NAME`, or `bootstrap_servers` in
runs/NAME/endpoints.json; each topic with its full name: `tracegrad topics list --run NAME`.
"""

import http.client
import json
import os
import signal
import sys
import threading
import time
import urllib.error
import urllib.request

from confluent_kafka import Consumer, TopicPartition

broker, topic, url = sys.argv[1:]
own = {"group.id": f"tap-webhook-{topic}", "auto.offset.reset": "earliest", "enable.auto.offset.store": False}
settings = {"bootstrap.servers": broker, "reconnect.backoff.ms": 1000, **own}
wait_s = 1.0
consumer = Consumer(settings)
consumer.subscribe([topic])
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that starts it in the background has it ignored
try:
    while True:
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error():  # such as no topic of that name, yet; the client goes on by itself
            print(message.error(), file=sys.stderr)
            continue
        place = f"{topic}/{message.partition()}/{message.offset()}"
        headers = {name: (value or b"").decode("utf-8", "replace") for name, value in message.headers() or []}
        value = (message.value() or b"").decode("utf-8", "backslashreplace")
        body = json.dumps({"record": place, "headers": headers, "value": value}).encode()
        sent = {"Content-Type": "application/json", "Idempotency-Key": place}
        try:
            urllib.request.urlopen(urllib.request.Request(url, body, sent), timeout=10).close()
        except (OSError, http.client.HTTPException) as error:
            print(f"{place}: {error}", file=sys.stderr)
            # A body that its receiver will never have must not hold up what comes after it; all else is tried again.
            if not (isinstance(error, urllib.error.HTTPError) and error.code in (400, 413, 422)):
                time.sleep(wait_s)
                wait_s = min(2 * wait_s, 60.0)
                consumer.seek(TopicPartition(topic, message.partition(), message.offset()))
                continue
        wait_s = 1.0
        consumer.store_offsets(message=message)  # committed every five seconds, and at the end
except KeyboardInterrupt:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # The close commits, and may wait for ever for a broker that went away. What is not committed is posted again.
    closing = threading.Thread(target=consumer.close, daemon=True)
    closing.start()
    closing.join(10.0)
    os._exit(0)
