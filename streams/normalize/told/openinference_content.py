"""OpenInference: the raw request and response where `input.value` and `output.value` are those, else its flat messages.

Instrumentations of an API's client keep both bodies, with whatever a server adds to them, such as vLLM's ids; those of
frameworks write Python's text of their objects there, or a part. Arguments of a call that are `{}` are not written
(openinference-instrumentation-openai, `_request_attributes_extractor.py`). AutoGen's calls a system prompt
`developer`, and tells a tool's result as `function` (openinference-instrumentation-autogen-agentchat 0.1.22). That of
OpenAI Agents has the items of a Responses request in `input.value`; the response repeats instructions and tools
(openinference-instrumentation-openai-agents 2.6).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tracegrad.schemas.text import json_value

from ..reading.span_view import SpanView
from .call_content import CallBodies, Convention, flat_list

_INPUT, _OUTPUT, _MODEL, _PARAMETERS, _FINISH, _MESSAGES, _ANSWERS, _TOOLS = (
    "input.value", "output.value", "llm.model_name", "llm.invocation_parameters", "llm.finish_reason",
    "llm.input_messages.", "llm.output_messages.", "llm.tools.",
)  # fmt: skip
_AUTOGEN = "openinference.instrumentation.autogen_agentchat"


def _read(span: SpanView) -> Iterator[CallBodies]:
    given, said, parameters = (span.attributes.get(key) for key in (_INPUT, _OUTPUT, _PARAMETERS))
    bodies = (body if isinstance(body, str) and body[:1] in ("{", "[") else None for body in (given, said))
    request, response = (json_value(body) or body for body in bodies)
    if isinstance(request, list) and isinstance(response, dict) and response.get("object") == "response":
        request = {**response, "input": request}
    yield CallBodies(request, response, is_raw=True)
    decoded = json_value(parameters)
    asked: dict[str, Any] = decoded if isinstance(decoded, dict) else {}
    prompt, answers = (list(_chat(flat_list(span, prefix), span.scope)) for prefix in (_MESSAGES, _ANSWERS))
    tools = [_inner(_inner(tool, "tool"), "json_schema") for tool in flat_list(span, _TOOLS)] or asked.get("tools")
    told = {"choices": answers, "stop_reason": span.attributes.get(_FINISH)}
    yield CallBodies({**asked, "model": span.text(_MODEL), "messages": prompt, "tools": tools}, told)


def _chat(items: Iterable[Any], scope: str) -> Iterator[Any]:
    """The flat messages as chat completions have them."""
    for item in items:
        message = _inner(item, "message")
        if isinstance(item, dict) and isinstance(item.get("function"), list):
            results = [json_value(one) for one in item["function"]]
            yield from ({"role": "tool", **one} if isinstance(one, dict) else None for one in results)
        elif isinstance(message, dict):
            parts, calls = (message.get(key) for key in ("contents", "tool_calls"))
            texts = [_inner(part, "message_content") for part in (parts if isinstance(parts, list) else ())]
            yield {
                **message,
                "role": "system" if scope == _AUTOGEN and message.get("role") == "developer" else message.get("role"),
                "content": [part for part in texts if _inner(part, "type") != "tool_use"] or message.get("content"),
                "tool_calls": [_call(_inner(call, "tool_call")) for call in (calls if isinstance(calls, list) else ())],
            }
        else:
            yield None


def _call(call: Any) -> Any:
    function = _inner(call, "function")
    is_told = isinstance(function, dict) and function is not call
    return {**call, "function": {"arguments": "{}", **function}} if is_told else call


def _inner(item: Any, key: str) -> Any:
    return item.get(key, item) if isinstance(item, dict) else item


_KEYS = (_INPUT, _OUTPUT, _MODEL, _PARAMETERS, _FINISH, _MESSAGES, _ANSWERS, _TOOLS)
OPENINFERENCE_CONTENT = Convention("openinference", _KEYS, _read)
