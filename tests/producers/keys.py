"""The key and the topics of the test runs, and the headers of those who show a credential of it."""

from __future__ import annotations

from tests.streams.make import HOST as HOST
from tracegrad.schemas.credentials import Holder, credential, runner_holder
from tracegrad.schemas.ids import RunHash, RunName
from tracegrad.schemas.topics import Topics

RUN_HASH = RunHash("ab12cd34")
KEY = bytes(range(32))
TOPICS = Topics(run=RunName("test"))


def bearer(holder: Holder, key: bytes = KEY) -> dict[str, str]:
    """As clients of model APIs send it."""
    return {"authorization": f"Bearer {credential(key, holder)}"}


def by_host(holder: Holder = HOST) -> dict[str, str]:
    """As exporters of an agent host send it."""
    return {"x-api-key": credential(KEY, holder)}


def by_runner(run: RunHash = RUN_HASH) -> dict[str, str]:
    """As the runner sends it."""
    return bearer(runner_holder(run))
