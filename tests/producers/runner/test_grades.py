"""What a grader's process makes of what the user's function returns, of single calls above all."""

from __future__ import annotations

from typing import Any

import pytest

from tracegrad.producers.runner.hosted.grader_host import judge

ASKED: dict[str, Any] = {"task": {}, "output": None, "attempt": {}}


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (0.5, {"rewards": {"reward": 0.5}}),
        ({"a": 1, "b": None}, {"rewards": {"a": 1.0, "b": None}, "calls": {}}),
        ({"a": 1, "step": {"c1": -1, "c2": None}}, {"rewards": {"a": 1.0}, "calls": {"step": {"c1": -1.0}}}),
        ({"step": {}}, {"rewards": {}, "calls": {"step": {}}}),
        ({"step": {7: 1.0}}, {"unscored": "grader returned no number: expected ids of calls"}),
        ({"step": {"": 1.0}}, {"unscored": "grader returned no number: expected ids of calls"}),
        ({"step": {"c" * 201: 1.0}}, {"unscored": "grader returned no number: expected ids of calls"}),
        ({"step": [1.0]}, {"unscored": "grader returned no number: float() argument must be .*"}),
        ({"step": {"c1": {"c2": 1}}}, {"unscored": "grader returned no number: float() argument must be .*"}),
    ],
)
def test_a_name_may_have_rewards_of_calls(returned: Any, said: dict[str, Any]) -> None:
    """Beside those of the whole; what is neither is unscored."""
    got = judge(lambda *_: returned, ASKED)
    if str(said.get("unscored", "")).endswith(".*"):
        assert got.keys() == {"unscored"} and got["unscored"].startswith(said["unscored"][:-2])
    else:
        assert got == said
