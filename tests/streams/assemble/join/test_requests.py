"""What an episode's answers ask of tools: arguments that nothing can read, and requests that were made before."""

from __future__ import annotations

from tracegrad.schemas.records.calls import ToolCall
from tracegrad.streams.assemble.join.requests import repeated, unparsable


def asked(id_: str, arguments: str, name: str = "calc") -> ToolCall:
    """One request."""
    return ToolCall(id=id_, name=name, arguments=arguments)


def test_arguments_that_are_no_json_object_are_unparsable() -> None:
    """A list, a number, half an object, nothing; nested too deep to be read."""
    bad = ["[1]", "3", '{"a": 1', "", "null", '{"a": ' * 5_000]
    assert unparsable([asked("good", ' {"a": 1} '), asked("empty", "{}")]) == ()
    assert unparsable(asked(str(number), text) for number, text in enumerate(bad)) == tuple("012345")


def test_a_request_repeats_one_of_its_agent_with_equal_arguments() -> None:
    """However they are written; another agent's, tool's or arguments' are none."""
    answers = [
        [asked("1", '{"a": 1, "b": 2}')],
        [asked("2", '{"b":2,"a":1}')],
        [asked("3", '{"a": 1, "b": 2}', name="search")],
        [asked("4", '{"a": 1, "b": 3}')],
        [asked("5", '{"a": 1, "b": 2}')],
        [asked("6", "{bad"), asked("7", "{bad")],
    ]
    agents = ["solver", "solver", "solver", "solver", None, "solver"]
    assert repeated(answers, agents, [True] * 6) == [(), ("2",), (), (), (), ("7",)]


def test_an_answer_that_nobody_took_asked_for_nothing() -> None:
    """A client that asks again gets the same answer, which repeats nothing."""
    answers = [[asked("1", "{}")], [asked("2", "{}")], [asked("3", "{}")]]
    assert repeated(answers, ["a", "a", "a"], [False, True, True]) == [(), (), ("3",)]
