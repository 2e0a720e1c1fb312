"""AgentOps: classes decorated as agents and functions as tools around the openai client; the planner's tool asks the
expert. AgentOps exports by itself, to the endpoint that it is told."""

import json
import os

os.environ |= {
    "AGENTOPS_EXPORTER_ENDPOINT": os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] + "/v1/traces",
    "AGENTOPS_API_ENDPOINT": "http://127.0.0.1:9",
    "AGENTOPS_LOG_SESSION_REPLAY_URL": "false",
    "AGENTOPS_LOGGING_TO_FILE": "false",
}

import agentops
import harness
from agentops.sdk.decorators import agent, tool

agentops.init(api_key="00000000-0000-4000-8000-000000000000", auto_start_session=False, fail_safe=True)

from openai import OpenAI
from opentelemetry import trace


class Worker:
    """A loop of calls and tools."""

    def __init__(self, instructions, tools):
        self.instructions = instructions
        self.tools = {one.__name__: one for one in tools}
        self.schemas = [{"type": "function", "function": harness.schema(one)} for one in tools]

    def solve(self, prompt):
        """Until the model asks for no more tools."""
        messages = [{"role": "system", "content": self.instructions}, {"role": "user", "content": prompt}]
        while True:
            told = OpenAI().chat.completions.create(model="policy", messages=messages, tools=self.schemas)
            message = told.choices[0].message.model_dump(exclude_none=True)
            messages.append(message)
            if not message.get("tool_calls"):
                return message["content"]
            for call in message["tool_calls"]:
                name = call["function"]["name"]
                try:
                    result = tool(name=name)(self.tools[name])(**json.loads(call["function"]["arguments"]))
                except ValueError as error:
                    result = f"Error: {error}"
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


@agent(name="expert")
class Expert(Worker):
    """It knows money."""

    def __init__(self):
        super().__init__(harness.EXPERT, [harness.convert])


def ask_expert(request: str) -> str:
    """Asks the expert for money."""
    harness.executed("ask_expert", request=request)
    return Expert().solve(request)


@agent(name="planner")
class Planner(Worker):
    """It asks the expert."""

    def __init__(self):
        super().__init__(harness.PLANNER, [harness.get_weather, harness.get_time, ask_expert])


def main():
    """Each conversation in a trace of its own, as AgentOps has them."""
    provider = harness.start(trace.get_tracer_provider())
    for prompt in harness.PROMPTS:
        session = agentops.start_trace("trip")
        print(Planner().solve(prompt))
        agentops.end_trace(session, "Success")
    provider.force_flush()


main()
