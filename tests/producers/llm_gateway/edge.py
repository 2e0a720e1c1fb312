"""What the tests of every API's reader and writer say: one question, and the events of an answer to it."""

from __future__ import annotations

from hypothesis import strategies as st

from tracegrad.producers.llm_gateway.api.events import Finished, Started, ToolCalled
from tracegrad.schemas.ids import new_call
from tracegrad.schemas.records.calls import ToolCall

ASK = {"role": "user", "content": "what is 12 plus 30?"}
CALL_ID = new_call("0" * 32)
STARTED = Started(call_id=CALL_ID, model="m", created_s=7, prompt_tokens=3)
TEXT = st.text(max_size=8)


def finished(reason: str = "stop", stop: str | None = None) -> Finished:
    """The last event."""
    return Finished(reason=reason, prompt_tokens=3, sampled_tokens=2, stop=stop)


def called(arguments: str = '{"a": 1.50}') -> ToolCalled:
    """A tool call."""
    return ToolCalled(ToolCall(id="call_1", name="f", arguments=arguments))
