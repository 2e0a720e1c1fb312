"""A request to a model's API and its response, as instrumentations keep them whole, or conventions spell them.

In: the bodies or their JSON: OpenAI's chat and Responses, Anthropic's messages, LangChain's batches of one. Out:
CallContent. vLLM's response holds exact ids where the request asked for them: `prompt_token_ids`, and `token_ids` and
`logprobs` of a choice. Pure; never raises for odd values.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tracegrad.schemas.reasons import Reason
from tracegrad.schemas.text import json_value

from .call_content import CallBodies, CallContent, finish_of, id_of, ids_of, merged, sampling_of, text_of
from .chat_messages import HIDDEN, MessageReading, in_order, read_answer, read_messages, read_tools, system_message

_ELSEWHERE = ("previous_response_id", "conversation")
"""Where a request names what the provider holds, the prompt is not told."""


def read_bodies(told: Iterable[CallBodies]) -> CallContent:
    """What requests and responses of one call tell, the first being believed first."""
    contents: list[CallContent] = []
    for one in told:
        if _tells(one.request):
            contents.append(_of_request(one.request, is_raw=one.is_raw))
        if _tells(one.response):
            contents.append(_of_response(one.response))
    return merged(contents)


def _tells(body: object) -> bool:
    """Whether anything is told; most conventions find nothing of their own on a span."""
    said = body.values() if isinstance(body, dict) else (body is not None,)
    return any(one or one == 0 for one in said if one is not False)


def _of_request(value: object, *, is_raw: bool) -> CallContent:
    """Of a body; of a bare list the messages alone."""
    body = json_value(value)
    if not isinstance(body, dict):
        return CallContent(prompt=read_messages(value))
    instructions = [system_message(body.get(key)) for key in ("instructions", "system")]
    said = [read_messages(body.get("messages") or None), read_messages(body.get("input") or None, role="user")]
    # Instructions alone are a prompt of which the rest was deleted, as by a Collector, or stands elsewhere.
    model, is_elsewhere = text_of(body.get("model")), any(body.get(key) for key in _ELSEWHERE)
    is_whole = is_raw and model and "functions" not in body and not body.get("tools")
    tools = () if is_whole else read_tools(body.get("tools"), is_raw=is_raw)
    prompt = in_order(instructions + said)
    if prompt.messages and (is_elsewhere or said == [MessageReading()] * 2):
        prompt = MessageReading(None, frozenset({HIDDEN}))
    if tools is None and (body.get("tools") or body.get("functions")):
        prompt = prompt._replace(flaws=prompt.flaws | {Reason.NO_TOOLS_TOLD})
    return CallContent(
        prompt=prompt,
        tools=tools,
        model=model,
        sampling=sampling_of(body),
        is_stream=body.get("stream") in (True, "True") or None,
    )


def _of_response(value: object) -> CallContent:
    """Of a body, a message, or a list of one; a bare text is the answer's."""
    body: Any = json_value(value)
    if isinstance(body, list) and len(body) == 1 and isinstance(body[0], dict):
        body = body[0]
    if not isinstance(body, dict):
        return CallContent(answer=read_answer(value))
    choices = next((body[key] for key in ("choices", "generations") if isinstance(body.get(key), list)), [body])
    choices = choices[0] if len(choices) == 1 and isinstance(choices[0], list) else choices
    choice = choices[0] if len(choices) == 1 and isinstance(choices[0], dict) else {}
    info, logprobs, output = choice.get("generation_info"), choice.get("logprobs"), body.get("output")
    finish = (info if isinstance(info, dict) else choice).get("finish_reason", body.get("stop_reason"))
    return CallContent(
        answer=read_answer(output if isinstance(output, list) else choice or choices),
        finish_reason=finish_of(finish),
        response_id=id_of(body.get("id")),
        model=text_of(body.get("model")),
        ids=ids_of(
            body.get("prompt_token_ids"),
            choice.get("token_ids"),
            logprobs.get("content") if isinstance(logprobs, dict) else None,
        ),
    )
