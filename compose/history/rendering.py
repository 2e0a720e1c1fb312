"""A call that was told in words, as token ids of the policy that is to learn from it.

In: ToldCall; a model's folder, read once. Out: CallTokens, or why it has none. Pure but for the reading.
The prompt is rendered as the gateway and its engine would (producers/llm_gateway/render/), and the answer is what the
template writes more when it follows:

    prompt    render(messages, with the generation prompt)    <user>..<end> <assistant>
    in full   render(messages + answer)                       <user>..<end> <assistant> the answer <end> \\n
                                                              -> answer ids: the answer <end>

It ends with the first token at which the engine stops; what the template writes behind that is the next prompt's.
Invariant: ids are never guessed: where in full does not begin with the prompt, where the answer's words or its end are
not in it, there are none, and a reason. Ids that are told count if they spell the words that are told with them.
Nobody proves the rendering equal to an engine's; its digests say by what it was made. Failure: ConfigurationError for a
folder whose template or tokenizer cannot be read.
"""

from __future__ import annotations

import datetime
import json
import unicodedata
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from tracegrad.producers.llm_gateway.api.chat_request import ChatRequest, Message, Tool
from tracegrad.producers.llm_gateway.api.reading import with_whole_answers
from tracegrad.producers.llm_gateway.engines.engine import RenderedIds, Waits
from tracegrad.producers.llm_gateway.render.local_template import LocalTemplate, object_of
from tracegrad.producers.llm_gateway.render.normalise import TemplateRefusals, normalised
from tracegrad.schemas.errors import EngineRefusal
from tracegrad.schemas.reasons import Reason
from tracegrad.schemas.records.tokens import CallTokens, ids_from_bytes, logprobs_from_bytes
from tracegrad.schemas.records.told import ChatMessage, ToldCall, ToldSampling, ToolDefinition

_ROLES = ("system", "user", "assistant", "tool")
_MESSAGE_FIELDS = ("content", "tool_calls", "tool_call_id", "name", "reasoning")
_LIMITS = ("length", "max_tokens")
"""As OpenAI, and as Anthropic and Google say that an answer met its limit."""
_NO_WAITS = Waits(sticky="", deadline=0.0)
T = TypeVar("T")


class TextDigests(NamedTuple):
    """What ids are made by, as SHA-256 in hex."""

    template: str
    """Of the template, the special tokens that it may name, and the tokens at which the engine stops."""
    tokenizer: str
    """Of tokenizer.json."""


class ExactIdRules(msgspec.Struct, frozen=True, kw_only=True):
    """What the user says of a history's token ids."""

    temperature: float | None = None
    """Of calls that do not tell theirs."""
    are_processed: bool = False
    """Logprobs are those behind temperature and filters (vLLM's `--logprobs-mode processed_logprobs`)."""


class HistoryRenderer:
    """Made by `load_history_renderer`. Not thread-safe."""

    def __init__(
        self, template: LocalTemplate, terminals: Mapping[int, str], digests: TextDigests, rules: ExactIdRules
    ) -> None:
        """`terminals`: the tokens at which the engine stops, and how they are spelled."""
        self.digests = digests
        self._template = template
        self._terminals = terminals
        self._rules = rules
        self._refused = TemplateRefusals()

    def tokens(self, call: ToldCall) -> CallTokens:
        """The ids of a call: those that are told, where they spell its words, else by the template."""
        if reason := _why_untold(call):
            return CallTokens(reason=reason)
        if call.ids is None:
            return self._rendered(call, Reason.TEXT)
        return self._exact(call) or self._rendered(call, Reason.OTHER_TOKENIZER)

    def _exact(self, call: ToldCall) -> CallTokens | None:
        """None: the ids do not spell the words, or there are none to spell."""
        assert call.ids is not None and call.answer is not None
        prompt, answer = ids_from_bytes(call.ids.prompt), ids_from_bytes(call.ids.sampled)
        logprobs = logprobs_from_bytes(call.ids.logprobs) if call.ids.logprobs else None
        both = np.concatenate([prompt, answer])
        if not len(prompt) or not len(answer) or both.min() < 0 or not self._template.text([int(both.max())]):
            return None
        asked = _comparable(self._template.text(prompt.tolist()))
        told = [it.content for it in call.messages or () if it.content]
        is_told = "".join(told).strip() and (call.answer.tool_calls or (call.answer.content or "").strip())
        if not is_told or not all(_spells(asked, it) for it in told) or not self._says(answer.tolist(), call.answer):
            return None
        if (
            not call.answer.tool_calls
            and self._content(answer.tolist()) != _comparable(call.answer.content or "").strip()
        ):
            return None
        temperature = self._rules.temperature if call.sampling.temperature is None else call.sampling.temperature
        masked = ""
        if logprobs is None:
            masked = Reason.NO_LOGPROBS_TOLD
        elif len(logprobs) != len(answer):
            masked = Reason.BAD_LOGPROBS
        elif temperature is None:
            masked = Reason.NO_TEMPERATURE_TOLD
        elif not self._rules.are_processed and (temperature != 1 or _is_filtered(call.sampling)):
            masked = Reason.RAW_LOGPROBS
        return CallTokens(prompt=prompt, answer=answer, logprobs=logprobs, temperature=temperature, masked=masked)

    def _rendered(self, call: ToldCall, masked: str) -> CallTokens:
        """`masked`: why the ids, if there are any, are not those that were sampled."""
        if reason := self._why_unwritable(call):
            return CallTokens(reason=reason)
        assert call.answer is not None
        try:
            prompt, in_full = _result(self._prompt_and_in_full(call))
        except EngineRefusal:
            return CallTokens(reason=Reason.TEMPLATE_REFUSES)
        answer = in_full[len(prompt) :]
        if in_full[: len(prompt)] != prompt:
            return CallTokens(reason=Reason.TEMPLATE_REWRITES)
        end = next((place for place, token in enumerate(answer) if token in self._terminals), None)
        if end is None:
            return CallTokens(reason=Reason.NO_END_OF_MESSAGE)
        if not self._says(answer[:end], call.answer):
            return CallTokens(reason=Reason.ANSWER_DROPPED)
        answer = answer[: end if _finish_of(call) in _LIMITS else end + 1]
        return CallTokens(prompt=np.asarray(prompt, np.int32), answer=np.asarray(answer, np.int32), masked=masked)

    async def _prompt_and_in_full(self, call: ToldCall) -> tuple[list[int], list[int]]:
        """Raises EngineRefusal, as the gateway's renderers do."""
        renderer, request = _DatedTemplate(self._template, call.started_ns), _request(call)
        messages, _ = await normalised(request, self._refused, renderer, _NO_WAITS)
        asked, in_full = (msgspec.structs.replace(request, messages=it) for it in (messages[:-1], messages))
        prompt = await renderer.ids(asked, _NO_WAITS)
        return prompt.ids, (await renderer.ids(in_full, _NO_WAITS, to_generate=False)).ids

    def _why_unwritable(self, call: ToldCall) -> str:
        """Why no template could write the call as it was told; empty: one could."""
        assert call.answer is not None
        if call.messages is None or not _is_whole(call.messages):
            return Reason.NO_PROMPT_TOLD
        if call.tools is None:
            return Reason.NO_TOOLS_TOLD
        if any(role not in _ROLES for role in _roles(call.messages)):
            return Reason.OTHER_ROLE
        asked = call.answer.tool_calls
        if asked and _finish_of(call) in _LIMITS:
            return Reason.TRUNCATED
        if any(object_of(it.arguments or "{}") is None for it in asked):
            return Reason.ODD_ARGUMENTS
        said = (call.answer.content or "", call.answer.reasoning or "", *(it.arguments for it in asked))
        if any(end in text for end in self._terminals.values() for text in said):
            return Reason.SPELLS_END
        # Who called a tool had it, whatever the list says.
        return "" if {it.name for it in asked} <= {it.name for it in call.tools} else Reason.NO_TOOLS_TOLD

    def _content(self, ids: Sequence[int]) -> str:
        """What ids spell behind a model's thoughts, without the end."""
        ids = ids[:-1] if ids and ids[-1] in self._terminals else ids
        return _comparable(self._template.text(ids)).rpartition("</think>")[2].strip()

    def _says(self, ids: Sequence[int], answer: ChatMessage) -> bool:
        """Whether ids spell the answer. Content beside tool calls is not looked for: some templates have no place for
        it (Llama 3), there and in later prompts alike; nor are thoughts, which many leave out."""
        if ids and ids[-1] in self._terminals:
            ids = ids[:-1]
        said = _comparable(self._template.text(ids)).strip()
        if answer.tool_calls:
            return all(
                _spells(said, text) for call in answer.tool_calls for text in (call.name, *_texts(call.arguments))
            )
        # A model's thoughts may stand before it, a stop string behind it.
        content = _comparable((answer.content or "").rpartition("</think>")[2]).strip()
        return said.startswith(content) or said.endswith(content)


class _DatedTemplate:
    """A PromptRenderer on the day of a call, which some templates write into the prompt (Llama 3, gpt-oss); of a call
    without a time they know no day, and write one of their own or refuse."""

    def __init__(self, template: LocalTemplate, started_ns: int) -> None:
        self._template = template
        self._variables: dict[str, Any] = {}
        if started_ns > 0:
            day = datetime.datetime.fromtimestamp(started_ns // 1_000_000_000, datetime.UTC)
            self._variables["strftime_now"] = day.strftime

    async def ids(self, request: ChatRequest, waits: Waits, *, to_generate: bool = True) -> RenderedIds:
        """See PromptRenderer."""
        ids = self._template.render(request, to_generate=to_generate, **self._variables)
        if ids is None:
            raise EngineRefusal("the template refuses it")
        return RenderedIds(ids=ids)


def _why_untold(call: ToldCall) -> str:
    """Why what is told of a call is not enough; tools are needed only to render it."""
    if lacks := [reason for reason in call.lacks if reason != Reason.NO_TOOLS_TOLD]:
        return lacks[0]
    if _finish_of(call) == "content_filter":
        return Reason.UNFINISHED
    if call.answer is None or (call.answer.content is None and not call.answer.tool_calls):
        return Reason.NO_ANSWER_TOLD
    if any(message.num_other_parts for message in (*(call.messages or ()), call.answer)):
        return Reason.CONTENT_NOT_TEXT
    return ""


def _finish_of(call: ToldCall) -> str:
    """In OpenAI's spelling; Semantic Kernel tells `FinishReason.LENGTH`."""
    return (call.finish_reason or "").rpartition(".")[2].lower()


def _is_whole(messages: Sequence[ChatMessage]) -> bool:
    """Whether each answer of a prompt says something, and each tool's result has a call before it: an instrumentation
    that leaves calls out tells a prompt that nobody sent."""
    was_called = False
    for message in messages:
        says = message.content is not None or message.tool_calls
        if (message.role == "tool" and not was_called) or (message.role == "assistant" and not says):
            return False
        was_called = bool(message.tool_calls) or (was_called and message.role == "tool")
    return True


def _request(call: ToldCall) -> ChatRequest:
    """As the gateway would have it of this conversation, its answer last."""
    assert call.messages is not None and call.answer is not None
    roles = (*_roles(call.messages), "assistant")
    messages = (
        Message(role=role, **{name: getattr(it, name) for name in _MESSAGE_FIELDS})
        for role, it in zip(roles, (*call.messages, call.answer), strict=True)
    )
    tools = (_tool(it) for it in call.tools or ())
    return with_whole_answers(ChatRequest(messages=tuple(messages), tools=tuple(tools) or None))


def _tool(told: ToolDefinition) -> Tool:
    """As the gateway renders it, which lets no tool be strict."""
    parameters = None if told.parameters is None else json.loads(told.parameters)
    return Tool(name=told.name, description=told.description, parameters=parameters)


def _roles(messages: Sequence[ChatMessage]) -> list[str]:
    """OpenAI's later name of a system that comes first is one that few templates know; vLLM writes it so too."""
    roles = [message.role for message in messages]
    return ["system" if role == "developer" and place == 0 else role for place, role in enumerate(roles)]


def _is_filtered(sampling: ToldSampling) -> bool:
    return (sampling.top_p or 1) < 1 or (sampling.top_k or 0) > 0 or (sampling.min_p or 0) > 0


def _comparable(text: str) -> str:
    """Some tokenizers compose what a client sent decomposed."""
    return unicodedata.normalize("NFC", text)


def _spells(text: str, piece: str) -> bool:
    """Whether a comparable text holds a piece, as it is or as JSON writes it; white space around it does not count."""
    piece = _comparable(piece).strip()
    return piece in text or any(json.dumps(piece, ensure_ascii=flag)[1:-1] in text for flag in (False, True))


def _texts(arguments: str) -> list[str]:
    """Those of a tool call's arguments that are texts or numbers."""
    found = (object_of(arguments) or {}).values()
    return [value if isinstance(value, str) else json.dumps(value) for value in found if isinstance(value, str | int)]


def _result(work: Coroutine[Any, Any, T]) -> T:
    """Of a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise AssertionError("expected a coroutine that waits for nothing")
