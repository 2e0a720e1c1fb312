"""The registry of span and resource attributes that more than one module writes or reads, and of baggage keys.

OpenTelemetry's `gen_ai.*` conventions are pinned here; the keys of another dialect stay with it
(`streams/normalize/dialects/`).
`producers/runner/hosted/span_ledger.py` runs where we are not installed and spells the first three itself; a test
compares.
"""

from __future__ import annotations

ROLLOUT_ID = "rollout.id"
"""Of a resource or a span, and in baggage: the rollout, 28 hex."""
ATTEMPT_ID = "attempt.id"
"""Likewise the attempt, 4 hex."""
COUNTED_SPAN = "tracegrad.counted"
"""Of a resource, true: an agent host counted its spans in `spans_exported`. Its exporter sets it on each export; the
environment would give it to the agent's child processes too."""
PROVED_BY = "tracegrad.proved_by"
"""Of a resource: the holder of the credential (credentials.py) by which the OTLP gateway let it in; whatever the sender
writes there is taken out. To be believed in a record whose MAC is the run's, and nowhere else."""
AGENTLIGHTNING_ROLLOUT_ID = "agentlightning.rollout_id"
"""The rollout as Agent Lightning's tracers spell it; read, never written."""
AGENTLIGHTNING_ATTEMPT_ID = "agentlightning.attempt_id"
"""Likewise the attempt."""
ROLLOUT_KEYS = (ROLLOUT_ID, AGENTLIGHTNING_ROLLOUT_ID)
"""Each that names the rollout; the first that is there counts."""
ATTEMPT_KEYS = (ATTEMPT_ID, AGENTLIGHTNING_ATTEMPT_ID)
"""Likewise the attempt."""

CONVERSATION_HEADER = "x-conversation-id"
"""Of a request to the LLM gateway: which conversation it goes on with; of agents that no runner starts."""
CONVERSATION_ID = "conversation.id"
"""Likewise in baggage."""
GEN_AI_CONVERSATION_ID = "gen_ai.conversation.id"
"""Of a span or a resource, and in baggage."""
SESSION_ID = "session.id"
"""Likewise; some SDKs set one for a whole process."""
CONVERSATION_KEYS = (CONVERSATION_ID, GEN_AI_CONVERSATION_ID, SESSION_ID)
"""Each that names the conversation; the first that is there counts."""

SERVICE_NAME = "service.name"
"""Of a resource: who emitted its spans."""

ERROR_TYPE = "error.type"
"""The class of an error, or the HTTP status; absent when there was none."""
GEN_AI_OPERATION_NAME = "gen_ai.operation.name"
"""`chat`, `execute_tool`, `invoke_agent`, ..."""
GEN_AI_INPUT_MESSAGES = "gen_ai.input.messages"
GEN_AI_OUTPUT_MESSAGES = "gen_ai.output.messages"
"""The answer."""
GEN_AI_RESPONSE_ID = "gen_ai.response.id"
"""The completion's id, which the LLM gateway mints: the call id."""
GEN_AI_AGENT_NAME = "gen_ai.agent.name"
"""The agent that is invoked, or that calls."""
GEN_AI_TOOL_NAME = "gen_ai.tool.name"
"""The tool that is executed."""
GEN_AI_TOOL_CALL_ID = "gen_ai.tool.call.id"
"""The id under which the model called it."""
GEN_AI_TOOL_RESULT = "gen_ai.tool.call.result"
"""What it returned."""

RECORD_HEADER = "x-tracegrad-record"
"""Of a request to the LLM gateway: `off` leaves it without a record."""
