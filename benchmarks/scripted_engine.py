"""An engine that samples nothing: vLLM's routes as far as the LLM gateway asks them, answered at once.

    python benchmarks/scripted_engine.py --port 8000 --model DIR --label LABEL

It renders and parses by the gateway's own template code, so that the gateway finds its work proved equal and does it
itself, as with the model's real engine. Every generation is the same tool call of a calculator.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tracegrad.producers.llm_gateway.api.openai_chat import OPENAI_CHAT
from tracegrad.producers.llm_gateway.render.local_render import parse
from tracegrad.producers.llm_gateway.render.local_template import LocalTemplate, load

SAID = '<tool_call>\n{"name": "calc", "arguments": {"expr": "12+34"}}\n</tool_call>'
MAX_TOKENS = 2048


def application(template: LocalTemplate, label: str) -> Starlette:
    """The routes."""
    ids = template.encode(SAID + "<|im_end|>")
    logprobs = [{"token_id": token, "token": f"token_id:{token}", "logprob": -0.125} for token in ids]
    choice = {"index": 0, "token_ids": ids, "logprobs": {"content": logprobs}, "finish_reason": "stop"}
    generated = msgspec.json.encode({"choices": [choice | {"weight_versions": [{"version": label, "start": 0}]}]})

    async def render_chat(request: Request) -> Response:
        body = msgspec.json.decode(await request.body())
        to_generate = body.pop("add_generation_prompt", True)
        found = template.ids(OPENAI_CHAT.read(body), to_generate=to_generate)
        return _json({"token_ids": found}, 400 if found is None else 200)

    async def derender(request: Request) -> Response:
        body = msgspec.json.decode(await request.body())
        said, asked = body["generate_response"], OPENAI_CHAT.read(body["chat_request"])
        parsed = parse(template, asked, said["prompt_token_ids"], said["choices"][0]["token_ids"])
        calls = [{"function": {"name": name, "arguments": text}} for name, text in parsed.tool_calls]
        return _json({"choices": [{"message": {"content": parsed.content, "tool_calls": calls}}]})

    async def generate(request: Request) -> Response:
        await request.body()
        return Response(generated, media_type="application/json")

    async def models(request: Request) -> Response:
        return _json({"data": [{"max_model_len": MAX_TOKENS}]})

    async def health(request: Request) -> Response:
        return Response()

    posts = (
        ("/v1/chat/completions/render", render_chat),
        ("/v1/chat/completions/derender", derender),
        ("/inference/v1/generate", generate),
    )
    routes = [Route(path, handler, methods=["POST"]) for path, handler in posts]
    return Starlette(routes=[*routes, Route("/v1/models", models), Route("/health", health)])


def _json(body: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, media_type="application/json")


def main() -> None:
    """Serves until a signal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", type=Path, required=True, help="whose tokenizer and template it answers by")
    parser.add_argument("--label", required=True, help="the weight version that its answers bear")
    given = parser.parse_args()
    template = load(given.model)
    if template is None:
        parser.error(f"{given.model} has no tokenizer and template that the gateway reads")
    app = application(template, given.label)
    # Without a keep-alive time-out of its own: the client's is what is measured.
    uvicorn.run(app, host="127.0.0.1", port=given.port, log_level="warning", timeout_keep_alive=math.inf)


if __name__ == "__main__":
    main()
