"""A chat server as anyone would write it: LangGraph, one tool, a page with thumbs. It knows nothing of training.

Its model, and where its spans go, are told by the environment; `feedback_client.py` beside it is tracegrad's client,
copied: one file of the standard library.
"""

from __future__ import annotations

from pathlib import Path

from chain import calculate
from feedback_client import send_feedback
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphRecursionError
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route


@tool
def calc(expr: str) -> str:
    """Evaluate one operation on two whole numbers, such as 12+34."""
    return calculate(expr)


model = ChatOpenAI(model="policy", max_tokens=48, timeout=120, max_retries=4).bind_tools([calc])  # type: ignore[call-arg]


async def think(state: MessagesState, config: RunnableConfig) -> MessagesState:
    """One call of the model, which says whose conversation it is of."""
    named = {"x-conversation-id": config["configurable"]["thread_id"]}
    return {"messages": [await model.ainvoke(state["messages"], extra_headers=named)]}


graph = StateGraph(MessagesState).add_node("think", think).add_edge(START, "think")
graph.add_node("tools", ToolNode([calc], handle_tool_errors=lambda error: "error: syntax")).add_edge("tools", "think")
assistant = graph.add_conditional_edges("think", tools_condition).compile(InMemorySaver(), name="assistant")


async def chat(request: Request) -> Response:
    """`{conversation, text}` -> `{text, id}` of the answer."""
    said = await request.json()
    config: RunnableConfig = {"configurable": {"thread_id": said["conversation"]}, "recursion_limit": 7}
    state = await assistant.ainvoke({"messages": [{"role": "user", "content": said["text"]}]}, config)
    answer = state["messages"][-1]
    return JSONResponse({"text": answer.content, "id": answer.response_metadata["id"]})


async def rate(request: Request) -> Response:
    """`{conversation, id, value, rater}`: a thumb, for the answer, or for the conversation that gave none."""
    said = await request.json()
    about = {"response_id": said["id"]} if said["id"] else {"conversation_id": said["conversation"]}
    key = f"{said['rater']}:{said['id'] or said['conversation']}"
    await run_in_threadpool(send_feedback, name="thumb", value=said["value"], idempotency_key=key, **about)
    return JSONResponse({"key": key})


page = Path(__file__).with_name("index.html")
posts = [Route("/chat", chat, methods=["POST"]), Route("/rate", rate, methods=["POST"])]
app = Starlette(routes=[Route("/", lambda _: FileResponse(page)), *posts])
app.add_exception_handler(GraphRecursionError, lambda *_: JSONResponse({"text": None, "id": None}))
app.add_exception_handler(ValueError, lambda _, error: JSONResponse({"error": str(error)}, 400))
