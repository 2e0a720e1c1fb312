"""OTLP as JSON, as a Collector writes it."""

from __future__ import annotations

import base64
import json
from typing import Any

from google.protobuf import json_format  # type: ignore[import-untyped]
from google.protobuf.message import Message  # type: ignore[import-untyped]


def otlp_json(request: Message) -> bytes:
    """A request as a Collector's Kafka exporter writes it under `encoding: otlp_json`: ids in hex."""

    def in_hex(value: Any) -> Any:
        if isinstance(value, list):
            return [in_hex(one) for one in value]
        if not isinstance(value, dict):
            return value
        return {
            key: base64.b64decode(one).hex() if key in ("traceId", "spanId", "parentSpanId") else in_hex(one)
            for key, one in value.items()
        }

    return json.dumps(in_hex(json_format.MessageToDict(request))).encode()
