"""A small engine that speaks vLLM's HTTP API by script: render, generate, derender, health, pause and weight labels.

In: the same requests as vLLM's. Out: answers of the same shapes, decided by a script (`ScriptedEngine.replies`, else
`ScriptedEngine.policy`), over a toy tokenizer whose `encode` merges pairs of digits while sampling spells them one
by one, so that rendering a sampled answer again gives other ids, as with a real tokenizer.
Weights, labels and pauses are those of `weights.py`. Failures are asked for: `delay_s`, `fail_next`, `label`,
`running`. Not for: anything about probabilities.

In a test: `engine = ScriptedEngine(); async with serve(engine.app) as url: ...`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.fake_engine.streaming import EngineFault as EngineFault
from tests.fake_engine.streaming import stream_of
from tests.fake_engine.tokenizer import EOT, ToyTokenizer
from tests.fake_engine.weights import FakeWeights


@dataclass
class Reply:
    """One scripted generation."""

    text: str = "ok"
    ids: list[int] | None = None
    """Instead of `text`: the ids sampled, without the end of turn."""
    ends: bool = True
    """Samples the end-of-turn token after the text; else the finish is `length`."""
    finish_reason: str | None = None
    label: str | None = None
    """Weight version label of this answer alone."""


def tool_call_text(name: str, **arguments: Any) -> str:
    """A tool call as a Hermes-style model samples it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def too_long(num_ids: int, limit: int) -> str:
    """As vLLM says it."""
    return (
        f"This model's maximum context length is {limit} tokens. However, your prompt contains {num_ids} input tokens, "
        "which exceeds this limit even without any output tokens. Please reduce the length of the input prompt."
    )


def chain_policy(prompt: str, draw: int) -> Reply:
    """Answers `what is 12 plus 30?`: a calculator call, then the tool's result; one draw in four goes wrong."""
    turns = re.findall(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>", prompt, re.DOTALL)
    role, text = turns[-1] if turns else ("user", "")
    if role == "tool":
        return Reply(text if draw % 4 else "unknown")
    numbers = re.findall(r"\d+", text)
    if len(numbers) < 2:
        return Reply(f"echo {text[:40]}")
    operator = {"plus": "+", "minus": "-", "times": "*", "over": "/"}
    verbs = [word for word in text.split() if word in operator]
    sign = operator[verbs[0]] if verbs and draw % 4 else "/"
    return Reply(tool_call_text("calc", expr=f"{numbers[0]}{sign}{numbers[1]}"))


@dataclass
class ScriptedEngine(FakeWeights):
    """The engine's state; change it at any time from the same event loop."""

    policy: Callable[[str, int], Reply] = chain_policy
    """(prompt text, a number drawn from the prompt and the count of its askings) -> what is sampled."""
    replies: deque[Reply] = field(default_factory=deque)
    """Used up first, in order."""
    delay_s: float = 0.0
    fail_next: int = 0
    """So many of the next generate requests answer 503."""
    model: str = "policy"
    max_model_len: int = 4096
    num_slots: int = 8
    """That it says it has; it answers all at once."""
    has_nan_weights: bool = False
    """Every logprob is then NaN, which vLLM spells -9999."""
    forgetful: bool = False
    """The template then drops the content of every assistant turn but the last."""
    reasons: bool = False
    """Derender then takes `<think>..</think>` at a text's beginning for reasoning."""
    forces_auto: bool = False
    """Render derives a grammar from tools alone, as with vLLM's parser of GLM-4.7."""
    broken_parser: bool = False
    """Derender then answers 500."""
    before_token: Callable[[int], Awaitable[None]] | None = None
    """Awaited with the index of each token of a streamed answer, before that is sent; EngineFault of status 0 breaks
    the stream off, of another one ends it with an error as vLLM words it."""

    def __post_init__(self) -> None:
        self.tokenizer = ToyTokenizer()
        self.running = asyncio.Event()
        self.running.set()
        self._asked: dict[str, int] = {}
        self._num_running = self._num_sampled = 0
        posts = {
            "/v1/chat/completions/render": self._render,
            "/inference/v1/generate": self._generate,
            "/v1/chat/completions/derender": self._derender,
            "/tokenize": self._tokenize,
            "/detokenize": self._detokenize,
        }
        routes = [Route(path, endpoint, methods=["POST"]) for path, endpoint in posts.items()]
        # As vLLM answers them; else the catch-all below would take these paths by other methods.
        routes += [Route(path, _not_allowed) for path in posts]
        routes += [Route("/metrics", self._metrics), Route("/server_info", self._server_info)]
        routes += [Route("/v1/models", self._models), Route("/{path:path}", self._weights, methods=["GET", "POST"])]
        self.app = Starlette(routes=routes)

    def render(self, messages: list[dict[str, Any]], tools: Any, *, generation_prompt: bool) -> list[int]:
        """The prompt's ids by a ChatML template with a `tools:` line."""
        end = "<|im_end|>\n"
        text = ""
        if tools:
            names = ", ".join(tool["function"]["name"] for tool in tools)
            text = f"<|im_start|>system\ntools: {names}{end}"
        last = max((i for i, message in enumerate(messages) if message["role"] == "assistant"), default=-1)
        for i, message in enumerate(messages):
            body = "" if self.forgetful and message["role"] == "assistant" and i != last else _body(message)
            text += f"<|im_start|>{message['role']}\n{body}{end}"
        if generation_prompt:
            text += "<|im_start|>assistant\n"
        return self.tokenizer.encode(text)

    def sample(self, prompt_ids: list[int], parameters: dict[str, Any]) -> tuple[list[int], str, str | None, str]:
        """(ids, finish reason, stop reason, label) of the next scripted answer, cut as vLLM cuts it."""
        reply = self._next_reply(prompt_ids)
        ids = list(reply.ids) if reply.ids is not None else self.tokenizer.encode(reply.text, merge=False)
        finish = reply.finish_reason or ("stop" if reply.ends else "length")
        if reply.ends:
            ids.append(EOT)
        label = reply.label or self.label
        for length in range(1, len(ids) + 1):
            text = self.tokenizer.decode(ids[:length])
            for stop in parameters.get("stop") or ():
                if stop in text:
                    return ids[:length], "stop", stop, label
        limit = parameters.get("max_tokens") or self.max_model_len
        if len(ids) > limit:
            return ids[:limit], "length", None, label
        return ids, finish, None, label

    def _next_reply(self, prompt_ids: list[int]) -> Reply:
        if self.replies:
            return self.replies.popleft()
        prompt = self.tokenizer.decode(prompt_ids)
        asked = self._asked[prompt] = self._asked.pop(prompt, 0) + 1
        if len(self._asked) > 1000:
            self._asked.pop(next(iter(self._asked)))
        draw = int.from_bytes(hashlib.sha256(f"{asked}/{prompt}".encode()).digest()[:4], "big")
        return self.policy(prompt, draw)

    async def _body(self, request: Request) -> Any:
        body = json.loads(await request.body() or b"{}")
        self.requests.append((request.url.path, body))
        del self.requests[:-10_000]
        return body

    async def _render(self, request: Request) -> Response:
        body = await self._body(request)
        try:
            ids = self.render(
                body["messages"], body.get("tools"), generation_prompt=body.get("add_generation_prompt", True)
            )
        except (KeyError, TypeError) as error:
            return _error(400, f"bad messages: {error!r}")
        if len(ids) > self.max_model_len:
            return _error(400, too_long(len(ids), self.max_model_len))
        constraint = _grammar(body, forces_auto=self.forces_auto)
        return JSONResponse({"token_ids": ids, "sampling_params": {"structured_outputs": constraint, "top_p": 0.8}})

    async def _generate(self, request: Request) -> Response:
        body = await self._body(request)
        if self.fail_next > 0:
            self.fail_next -= 1
            return _error(503, "scripted failure")
        await self.running.wait()
        before = self.label
        self._num_running += 1
        try:
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
                await self.running.wait()
        finally:
            self._num_running -= 1
        try:
            ids, finish, stop, label = self.sample(body["token_ids"], body["sampling_params"])
        except EngineFault as fault:
            return _error(fault.status, "scripted fault")
        self._num_sampled += len(ids)
        spans = [{"version": label, "start": 0, "end": len(ids)}]
        if before != self.label and label == self.label and len(ids) > 1:
            half = len(ids) // 2
            spans = [{"version": before, "start": 0, "end": half}, {"version": label, "start": half, "end": len(ids)}]
        content = [
            {"token_id": token, "logprob": -9999.0 if self.has_nan_weights else -0.1 * (1 + token % 7)} for token in ids
        ]
        choice = {
            "index": 0,
            "token_ids": ids,
            "logprobs": {"content": content},
            "finish_reason": finish,
            "stop_reason": stop,
            "weight_versions": spans,
        }
        if body.get("stream"):
            return StreamingResponse(stream_of(choice, self.before_token), media_type="text/event-stream")
        return JSONResponse({"request_id": body.get("request_id", ""), "choices": [choice]})

    async def _derender(self, request: Request) -> Response:
        body = await self._body(request)
        if self.broken_parser:
            return _error(500, "scripted fault")
        choice = body["generate_response"]["choices"][0]
        if not choice["token_ids"]:
            return _error(400, "choice 0 has empty or null token_ids")
        text = self.tokenizer.decode(choice["token_ids"])
        thought = re.match(r"<think>(.*?)</think>", text, re.DOTALL) if self.reasons else None
        text = text[thought.end() :] if thought else text
        message = _parse(text, tools=bool((body.get("chat_request") or {}).get("tools")))
        if thought:
            message["reasoning"] = thought[1]
        return JSONResponse({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})

    async def _tokenize(self, request: Request) -> Response:
        body = await self._body(request)
        if "messages" in body:
            ids = self.render(body["messages"], body.get("tools"), generation_prompt=body["add_generation_prompt"])
            return JSONResponse({"tokens": ids})
        return JSONResponse({"tokens": self.tokenizer.encode(body["prompt"])})

    async def _detokenize(self, request: Request) -> Response:
        return JSONResponse({"prompt": self.tokenizer.decode((await self._body(request))["tokens"])})

    async def _metrics(self, request: Request) -> Response:
        """As vLLM spells them; whoever finds no running slot waits for one."""
        slots = min(self._num_running, self.num_slots)
        figures = {
            "num_requests_running": slots,
            "num_requests_waiting": self._num_running - slots,
            "generation_tokens_total": self._num_sampled,
        }
        text = "".join(f'vllm:{name}{{engine="0"}} {value}\n' for name, value in figures.items())
        return Response(text, media_type="text/plain; version=0.0.4")

    async def _server_info(self, request: Request) -> Response:
        return JSONResponse({"vllm_config": {"scheduler_config": {"max_num_seqs": self.num_slots}}})

    async def _models(self, request: Request) -> Response:
        model = {"id": self.model, "object": "model", "max_model_len": self.max_model_len}
        return JSONResponse({"object": "list", "data": [model]})

    async def _weights(self, request: Request) -> Response:
        status, answer = self.answer(request.url.path, await self._body(request))
        self.running.clear() if self.is_paused else self.running.set()
        return JSONResponse(answer, status)


def _body(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    if not isinstance(content, str):
        content = "".join(part.get("text", "") for part in content)
    for call in message.get("tool_calls") or ():
        function = call["function"]
        content += tool_call_text(function["name"], **_arguments(function["arguments"]))
    return content


def _grammar(body: dict[str, Any], *, forces_auto: bool) -> dict[str, Any] | None:
    """As vLLM 0.32 (`DelegatingParser._apply_structural_tag`): a structural tag where a tool must be called or is
    strict, or one call alone may be made; else what the format asks for."""
    tools, choice = body.get("tools") or (), body.get("tool_choice", "auto")
    is_strict = any(tool["function"].get("strict") for tool in tools)
    is_single = body.get("parallel_tool_calls") is False
    if tools and choice != "none" and (choice != "auto" or is_strict or is_single or forces_auto):
        return {"structural_tag": json.dumps({"tool_choice": choice})}
    asked = (body.get("response_format") or {}).get("type")
    return {"json_object": True} if asked in ("json_object", "json_schema") else None


def _arguments(given: Any) -> dict[str, Any]:
    """vLLM takes what is no object for an empty one, that a conversation which holds such a call may go on."""
    try:
        value = json.loads(given or "{}") if isinstance(given, str) else given
    except ValueError:
        value = {}
    return value if isinstance(value, dict) else {}


def _parse(text: str, *, tools: bool) -> dict[str, Any]:
    """Like vLLM's Hermes parser: all calls parse, or the text stays as it is."""
    found = re.findall(r"<tool_call>(.*?)</tool_call>|<tool_call>(.*)", text, re.DOTALL) if tools else []
    calls = []
    try:
        for closed, open_ in found:
            call = json.loads(closed or open_)
            calls.append({"name": call["name"], "arguments": json.dumps(call["arguments"], ensure_ascii=False)})
    except (ValueError, KeyError, TypeError):
        calls = []
    if not calls:
        return {"role": "assistant", "content": text, "tool_calls": []}
    content = text[: text.find("<tool_call>")] or None
    items = [{"id": "unused", "type": "function", "function": call} for call in calls]
    return {"role": "assistant", "content": content, "tool_calls": items}


async def _not_allowed(request: Request) -> Response:
    return _error(405, "Method Not Allowed")


def _error(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": {"message": message, "type": "BadRequestError", "code": status}}, status)
