"""DSPy: a ReAct module, which asks in text of its own and knows no agents."""

import os

import harness

import dspy


def get_time(city: str) -> str:
    """The local time in a city."""
    try:
        return harness.get_time(city)
    except ValueError as error:
        return f"Error: {error}"  # DSPy would show the model a stack trace, with the paths of this machine


def main():
    """Each conversation."""
    harness.start()
    given = {"api_base": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"]}
    dspy.configure(lm=dspy.LM("openai/policy", cache=False, **given))
    solve = dspy.ReAct("question -> answer", tools=[harness.get_weather, get_time, harness.convert])
    for prompt in harness.PROMPTS:
        print(solve(question=prompt).answer)


main()
