"""The requests that recorded agents sent, as token ids of the policy: by them told calls are judged.

In: a recording whose requests were kept, a chat template. Out: of each call the prompt as the gateway builds it of the
body that the agent sent, and the answer as the template writes it behind that. Invariant: no span is read, and the
template is rendered by other code than a history's is.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import msgspec

from tests.frameworks.fixture import Recording, TrueCall
from tests.producers.llm_gateway.real_templates import NOW
from tracegrad.producers.llm_gateway.api.chat_request import ChatRequest, Message, TextPart
from tracegrad.producers.llm_gateway.api.messages.write import MESSAGES
from tracegrad.producers.llm_gateway.api.openai_chat import OPENAI_CHAT
from tracegrad.producers.llm_gateway.api.reading import with_whole_answers
from tracegrad.producers.llm_gateway.api.responses.write import RESPONSES
from tracegrad.producers.llm_gateway.render.answer_end import EndOfMessage
from tracegrad.producers.llm_gateway.render.normalise import TemplateRefusals, normalised
from tracegrad.producers.llm_gateway.render.splice import SpliceHistory, build_prompt
from tracegrad.producers.llm_gateway.sampling import without_strict
from tracegrad.schemas.records.calls import LLM_CALLS, CallRecord
from tracegrad.schemas.records.told import ToolDefinition
from tracegrad.streams.assemble.told_calls import AgentTools

Ids = tuple[tuple[int, ...], tuple[int, ...]]
"""Of a call: its prompt and its answer, with the end of the message."""
_APIS = {api.path.removeprefix("/v1"): api for api in (OPENAI_CHAT, MESSAGES, RESPONSES)}


def true_calls(recording: Recording) -> list[CallRecord]:
    """As the gateway recorded them."""
    found = (LLM_CALLS.decode(raw.value) for raw in recording.records if raw.topic == "llm_calls")
    return [call for call in found if isinstance(call, CallRecord)]


def true_request(call: TrueCall) -> ChatRequest | None:
    """As the gateway read it; a content of several texts is one, as vLLM joins them for a template that knows texts.
    None: the body holds a part of the prompt, for the provider has the rest."""
    if '"previous_response_id"' in call.request:
        return None
    request: ChatRequest = with_whole_answers(without_strict(_APIS[call.path].read(json.loads(call.request))))
    return msgspec.structs.replace(request, messages=tuple(map(_in_one, request.messages)))


def _in_one(message: Message) -> Message:
    if message.content is None or isinstance(message.content, str):
        return message
    texts = [part.text for part in message.content if isinstance(part, TextPart)]
    assert len(texts) == len(message.content)
    return msgspec.structs.replace(message, content="\n".join(texts))


def true_tools(recording: Recording) -> AgentTools:
    """Of each agent, as it sent them; what a user would write into a file. Empty where no request was kept."""
    requests = ((call.agent or "*", true_request(call)) for call in recording.calls if call.path)
    return {agent: tuple(_definitions(request)) for agent, request in requests if request is not None}


def _definitions(request: ChatRequest) -> Iterator[ToolDefinition]:
    for tool in request.tools or ():
        schema = None if tool.parameters is None else json.dumps(tool.parameters, ensure_ascii=False)
        yield ToolDefinition(name=tool.name, description=tool.description, parameters=schema)


def true_ids(recording: Recording, template: Any, ends: tuple[str, ...]) -> set[Ids]:
    """Of all its calls, by a template; `ends`: the tokens at which its model stops."""
    stops = {template.special(end) for end in ends}
    records = {str(call.call_id): call for call in true_calls(recording)}
    requests = ((records[call.call_id], true_request(call)) for call in recording.calls if call.path)
    return {asyncio.run(_ids(sent, call, template, stops)) for call, sent in requests if sent is not None}


async def _ids(request: ChatRequest, call: CallRecord, template: Any, stops: set[int]) -> Ids:
    prompt, _ = await build_prompt(template, EndOfMessage(), SpliceHistory(), request, NOW)
    answer = Message(role="assistant", content=call.content, tool_calls=call.tool_calls, reasoning=call.reasoning)
    answered = msgspec.structs.replace(request, messages=(*request.messages, answer))
    messages, _ = await normalised(answered, TemplateRefusals(), template, NOW)
    in_full = await template.ids(msgspec.structs.replace(request, messages=messages), NOW, to_generate=False)
    said = in_full.ids[len(prompt.ids) :]
    end = next(place for place, token in enumerate(said) if token in stops)
    return tuple(prompt.ids), tuple(said[: end + 1])
