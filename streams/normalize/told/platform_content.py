"""Products with attributes of their own: MLflow, Langfuse, LangSmith, Vercel's AI SDK 5 and 6, and who adds exact ids.

MLflow writes every value as JSON; request and response stand there whole, as with LangSmith. Langfuse's wrapper of
OpenAI keeps the tools in the input, its handler of LangChain among the messages, with a tool's role (langfuse-python,
`langfuse/openai.py`, `langfuse/langchain/CallbackHandler.py`); the temperature that it tells may be its own default.
Agent Lightning 0.3 writes vLLM's ids and logprobs beside what AgentOps tells of a call (microsoft/agent-lightning,
`agentlightning/instrumentation/agentops.py`); strands-vllm names them after LiteLLM's provider.
Of an object that Vercel's SDK made of an answer nobody knows the text, so it is not told.
"""

from __future__ import annotations

from collections.abc import Iterator

from tracegrad.schemas.text import json_value

from ..reading.span_view import SpanView
from .call_content import CallBodies, Convention

_MLFLOW = ("mlflow.spanInputs", "mlflow.spanOutputs", "mlflow.chat.tools", "mlflow.llm.model")
_LANGFUSE = ("langfuse.observation.input", "langfuse.observation.output", "langfuse.observation.model.name")
_LANGSMITH = ("gen_ai.prompt", "gen_ai.completion")
_VERCEL = "ai."
_VERCEL_REQUEST = {"messages": "prompt.messages", "tools": "prompt.tools", "model": "model.id"}
_VERCEL_ANSWER = {"content": "text", "tool_calls": "toolCalls", "reasoning": "reasoning"}
_LOGPROBS = "logprobs.content"
_ID_PAIRS = tuple((f"{of}prompt_token_ids", f"{of}response_token_ids") for of in ("", "llm.hosted_vllm."))


def _read_mlflow(span: SpanView) -> Iterator[CallBodies]:
    given, said, tools, model = (json_value(span.attributes.get(key)) for key in _MLFLOW)
    yield CallBodies(given, said, is_raw=True)
    yield CallBodies({"tools": tools, "model": model})


def _read_langfuse(span: SpanView) -> Iterator[CallBodies]:
    given, said, model = (span.attributes.get(key) for key in _LANGFUSE)
    items = json_value(given)
    tools = [item for item in items if _is_tool(item)] if isinstance(items, list) else []
    yield CallBodies([item for item in items if not _is_tool(item)] if tools else given, said, is_raw=True)
    yield CallBodies({"tools": [tool["content"] for tool in tools], "model": model})


def _is_tool(item: object) -> bool:
    return isinstance(item, dict) and item.get("role") == "tool" and isinstance(item.get("content"), dict)


def _read_langsmith(span: SpanView) -> Iterator[CallBodies]:
    given, said = (span.attributes.get(key) for key in _LANGSMITH)
    yield CallBodies(given, said)


def _read_vercel(span: SpanView) -> Iterator[CallBodies]:
    told = {key.removeprefix(_VERCEL): value for key, value in span.attributes.items() if key.startswith(_VERCEL)}
    request = {name: told.get(key) for name, key in _VERCEL_REQUEST.items()}
    choice = {"role": "assistant", "finish_reason": told.get("response.finishReason")}
    choice |= {name: told.get(f"response.{key}") for name, key in _VERCEL_ANSWER.items()}
    yield CallBodies(request, {"id": told.get("response.id"), "choices": [choice]})


def _read_ids(span: SpanView) -> Iterator[CallBodies]:
    logprobs = {"content": json_value(span.attributes.get(_LOGPROBS))}
    for pair in _ID_PAIRS:
        prompt, sampled = (json_value(span.attributes.get(key)) for key in pair)
        choice = {"role": "assistant", "token_ids": sampled, "logprobs": logprobs}
        yield CallBodies(None, {"prompt_token_ids": prompt, "choices": [choice]})


PLATFORMS = (
    Convention("mlflow", _MLFLOW, _read_mlflow),
    Convention("langfuse", _LANGFUSE, _read_langfuse),
    Convention("langsmith", _LANGSMITH, _read_langsmith),
    Convention("vercel_ai", (_VERCEL,), _read_vercel),
    Convention("exact_ids", (_LOGPROBS, *(key for pair in _ID_PAIRS for key in pair)), _read_ids),
)
