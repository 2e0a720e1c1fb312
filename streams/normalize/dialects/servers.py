"""Spans of model servers and of what lies between: vLLM's server, LiteLLM, MCP.

A span that serves a model's request is not the agent's, whatever it says: the agent's own stands above it. LiteLLM's
span of the raw request knows the response's id, under the provider's name. An MCP `tools/call` executes a tool, once:
the server's side of it is no second execution, and knows how it ended (the client's side within a framework's tool span
is told by the tree).
"""

from __future__ import annotations

import msgspec

from tracegrad.schemas.attributes import GEN_AI_OPERATION_NAME, GEN_AI_TOOL_NAME
from tracegrad.schemas.records.facts import SpanKind

from ..reading.span_view import SpanView
from .dialect import OTHER, WRAPPER, Dialect, SpanReading

_REQUEST_ID = "gen_ai.request.id"
_LLM_OPERATIONS = frozenset({"chat", "text_completion", "generate_content"})
_PROVIDERS = ("hosted_vllm", "openai", "custom_openai", "litellm_proxy", "vllm", "anthropic", "text-completion-openai")
_LITELLM_SPANS = ("litellm_request", "raw_gen_ai_request")
_VLLM_SPAN = "llm_request"
_RAW_IDS = tuple(f"llm.{provider}.id" for provider in _PROVIDERS)
_METHOD = "mcp.method.name"
_RPC = ("rpc.system", "rpc.system.name", "rpc.method")
_CALL = "tools/call"
_SERVED = msgspec.structs.replace(WRAPPER, serves_tool=True)


def _read_vllm(span: SpanView) -> SpanReading | None:
    is_model = span.name == _VLLM_SPAN or _REQUEST_ID in span.attributes
    return WRAPPER if span.is_server and (is_model or span.text(GEN_AI_OPERATION_NAME) in _LLM_OPERATIONS) else None


def _read_litellm(span: SpanView) -> SpanReading:
    response_id = span.text(*_RAW_IDS)
    return OTHER if response_id is None else SpanReading(kind=SpanKind.LLM, response_id=response_id)


def _read_mcp(span: SpanView) -> SpanReading | None:
    method = span.text(_METHOD)
    if method is None and "mcp" in (span.text(_RPC[0]), span.text(_RPC[1])):
        method = span.text(_RPC[2])
    if method is None:
        return None
    if method != _CALL:
        return WRAPPER
    if span.is_server:
        return _SERVED
    name = span.text(GEN_AI_TOOL_NAME)
    _, is_called, target = span.name.partition(f"{_CALL} ")
    return SpanReading(kind=SpanKind.TOOL, is_guess=name is None, tool_name=name or (target if is_called else None))


VLLM = Dialect("vllm", frozenset({_REQUEST_ID, GEN_AI_OPERATION_NAME}), frozenset(), _read_vllm, names=(_VLLM_SPAN,))
LITELLM = Dialect("litellm", frozenset(_RAW_IDS), frozenset(), _read_litellm, names=_LITELLM_SPANS)
MCP = Dialect("mcp", frozenset({_METHOD, *_RPC}), frozenset({GEN_AI_TOOL_NAME}), _read_mcp)
