"""How each framework makes an agent of a name, instructions and tools, for varied.py.

Each function sets the SDK up and gives (make, provider); `make(name, instructions, tools)` is a coroutine function from
a request to the agent's last answer. The frameworks are imported within, for each has its own environment.
"""

import functools
import inspect
import os

import harness


def fails_softly(tool, error=ValueError, soften=lambda told: f"Error: {told}"):
    """The tool, answering with its error or raising another."""
    if inspect.iscoroutinefunction(tool):
        return tool

    @functools.wraps(tool)
    def run(*args, **kwargs):
        try:
            return tool(*args, **kwargs)
        except error as told:
            soft = soften(told)
            if isinstance(soft, Exception):
                raise soft from told
            return soft

    return run


def langgraph():
    """create_agent; its own middleware tells errors."""
    from langchain.agents import create_agent
    from langchain.agents.middleware import wrap_tool_call
    from langchain_core.messages import ToolMessage
    from langchain_core.tools import tool as as_tool
    from langchain_openai import ChatOpenAI

    @wrap_tool_call
    async def tell_errors(request, handler):
        try:
            return await handler(request)
        except ValueError as error:
            return ToolMessage(content=f"Tool error: {error}", tool_call_id=request.tool_call["id"], status="error")

    provider = harness.start()
    model = ChatOpenAI(model="policy", streaming=harness.STREAMS)

    def make(name, instructions, tools):
        tools = [as_tool(tool) for tool in tools]
        agent = create_agent(model, tools, system_prompt=instructions, name=name, middleware=[tell_errors])

        async def run(request):
            given = {"messages": [{"role": "user", "content": request}]}
            if harness.STREAMS:
                async for mode, told in agent.astream(given, stream_mode=["messages", "values"]):
                    last = told if mode == "values" else None
                return last["messages"][-1].content
            return (await agent.ainvoke(given))["messages"][-1].content

        return run

    return make, provider


def openai_agents():
    """Runner.run within function tools."""
    from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool
    from openai import AsyncOpenAI

    provider = harness.start()
    model = OpenAIChatCompletionsModel(model="policy", openai_client=AsyncOpenAI())

    def make(name, instructions, tools):
        agent = Agent(name=name, instructions=instructions, model=model, tools=[function_tool(tool) for tool in tools])

        async def run(request):
            if not harness.STREAMS:
                return (await Runner.run(agent, request)).final_output
            result = Runner.run_streamed(agent, request)
            async for _ in result.stream_events():
                pass
            return result.final_output

        return run

    return make, provider


def pydantic_ai():
    """Agent.run within tools; content left out where the recording says so."""
    from pydantic_ai import Agent, InstrumentationSettings, ModelRetry
    from pydantic_ai.models.openai import OpenAIChatModel

    provider = harness.start()
    has_content = os.environ.get("RECORDED_CONTENT") != "0"
    if not os.environ.get("RECORDED_INSTRUMENTORS", "").startswith("openinference"):
        Agent.instrument_all(InstrumentationSettings(include_content=has_content))

    def make(name, instructions, tools):
        tools = [fails_softly(tool, soften=lambda told: ModelRetry(str(told))) for tool in tools]
        agent = Agent(OpenAIChatModel("policy"), name=name, instructions=instructions, tools=tools)

        async def run(request):
            if not harness.STREAMS:
                return (await agent.run(request)).output
            async with agent.run_stream(request) as result:
                return await result.get_output()

        return run

    return make, provider


def agent_framework():
    """Agent.run within tools."""
    from agent_framework import Agent
    from agent_framework.openai import OpenAIChatCompletionClient

    provider = harness.start()

    def make(name, instructions, tools):
        client = OpenAIChatCompletionClient(model="policy")
        agent = Agent(client=client, name=name, instructions=instructions, tools=tools)

        async def run(request):
            if not harness.STREAMS:
                return str(await agent.run(request))
            return "".join([str(part) async for part in agent.run(request, stream=True)])

        return run

    return make, provider


def strands():
    """invoke_async within tools, which run at once."""
    from strands import Agent, tool as as_tool
    from strands.models.openai import OpenAIModel

    provider = harness.start()
    given = {"base_url": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"]}

    def make(name, instructions, tools):
        tools = [as_tool(tool) for tool in tools]

        async def run(request):
            model = OpenAIModel(client_args=given, model_id="policy")
            agent = Agent(model, tools=tools, system_prompt=instructions, name=name, callback_handler=None)
            return str(await agent.invoke_async(request))

        return run

    return make, provider


def adk():
    """A runner for each agent, by LiteLLM."""
    from google.adk.agents import LlmAgent
    from google.adk.models.lite_llm import LiteLlm
    from google.adk.runners import InMemoryRunner
    from google.genai import types

    provider = harness.start()
    given = {"api_base": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"]}

    def make(name, instructions, tools):
        tools = [fails_softly(tool, soften=lambda told: {"status": "error", "error": str(told)}) for tool in tools]
        model = LiteLlm(model="openai/policy", **given)
        runner = InMemoryRunner(LlmAgent(name=name, instruction=instructions, model=model, tools=tools), app_name=name)

        async def run(request):
            session = await runner.session_service.create_session(app_name=name, user_id="somebody")
            message = types.Content(role="user", parts=[types.Part(text=request)])
            events = runner.run_async(user_id="somebody", session_id=session.id, new_message=message)
            told = [event.content async for event in events]
            return told[-1].parts[-1].text

        return run

    return make, provider


def autogen():
    """AssistantAgent.run within tools."""
    from autogen_agentchat.agents import AssistantAgent
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    provider = harness.start()
    info = dict.fromkeys(("vision", "json_output", "structured_output"), False)
    info |= {"function_calling": True, "family": "unknown"}

    def make(name, instructions, tools):
        async def run(request):
            client = OpenAIChatCompletionClient(model="policy", model_info=info)
            given = {"system_message": instructions, "max_tool_iterations": 9, "model_client_stream": harness.STREAMS}
            agent = AssistantAgent(name, client, tools=tools, **given)
            result = await agent.run(task=request)
            await client.close()
            return result.messages[-1].content

        return run

    return make, provider


def smolagents():
    """ToolCallingAgent in threads, for it is not asynchronous."""
    import asyncio
    import contextvars

    from smolagents import OpenAIServerModel, ToolCallingAgent, tool as as_tool

    provider = harness.start()
    given = {"api_base": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"]}

    def blocking(tool):
        def run(request: str) -> str:
            return asyncio.run(tool(request))

        if not inspect.iscoroutinefunction(tool):
            return tool
        run.__name__ = run.__qualname__ = tool.__name__
        run.__doc__ = tool.__doc__
        return run

    def make(name, instructions, tools):
        tools = [as_tool(blocking(tool)) for tool in tools]

        def solve(request):
            model = OpenAIServerModel("policy", **given)
            given_too = {"stream_outputs": harness.STREAMS, "verbosity_level": 0}
            return ToolCallingAgent(tools, model, name=name, instructions=instructions, **given_too).run(request)

        async def run(request):
            return str(await asyncio.to_thread(contextvars.copy_context().run, solve, request))

        return run

    return make, provider


def crewai():
    """A crew of one agent and one task each."""
    os.environ |= {"CREWAI_DISABLE_TELEMETRY": "true", "CREWAI_TRACING_ENABLED": "false", "OTEL_SDK_DISABLED": "false"}
    from crewai import LLM, Agent, Crew, Task
    from crewai.tools import tool as as_tool

    provider = harness.start()
    given = {"base_url": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"]}

    def make(name, instructions, tools):
        tools = [as_tool(tool.__name__)(tool) for tool in tools]

        async def run(request):
            llm = LLM(model="openai/policy", stream=harness.STREAMS, **given)
            agent = Agent(role=name, goal="plan", backstory=instructions, tools=tools, llm=llm)
            task = Task(description=request, expected_output="a plan", agent=agent)
            return (await Crew(agents=[agent], tasks=[task]).kickoff_async()).raw

        return run

    return make, provider


FRAMEWORKS = {
    one.__name__: one
    for one in (
        langgraph,
        openai_agents,
        pydantic_ai,
        agent_framework,
        strands,
        adk,
        autogen,
        smolagents,
        crewai,
    )
}
