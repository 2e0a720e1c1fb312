"""How the agents of these tests ask their gateway. Runs beside them, and imports nothing of ours."""

from __future__ import annotations

import json
import os
import urllib.request
from typing import Any


def answer(text: str, **more: Any) -> Any:
    """A chat completion, in the trace in which this is called."""
    from opentelemetry import propagate

    headers = {"content-type": "application/json", "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    propagate.inject(headers)
    body = json.dumps({"model": "policy", "messages": [{"role": "user", "content": text}], **more}).encode()
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


def ask(text: str, **more: Any) -> Any:
    """What it says."""
    return answer(text, **more)["choices"][0]["message"]["content"]
