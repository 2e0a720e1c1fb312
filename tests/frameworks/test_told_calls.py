"""Calls as the recorded spans tell them are those that the gateway recorded, or say why not."""

from __future__ import annotations

import pytest

from tests.frameworks.fixture import fixtures, load
from tests.frameworks.told_calls import JudgedCall, judged
from tracegrad.schemas.reasons import Reason


@pytest.fixture(scope="module")
def calls() -> list[JudgedCall]:
    """Of all recordings."""
    return [one for path in fixtures() for one in judged(load(path))]


def test_a_call_that_lacks_nothing_is_a_true_call(calls: list[JudgedCall]) -> None:
    """In prompt, answer and tools; so no recorded call would train in other words than were said."""
    whole = [one for one in calls if not one.call.lacks]
    assert [one.call.scope for one in whole if not one.is_true] == []
    assert len(whole) >= 583


def test_a_call_that_lacks_tools_alone_has_its_true_prompt(calls: list[JudgedCall]) -> None:
    """So that a file of tools makes it whole."""
    without_tools = [one for one in calls if set(one.call.lacks) <= {Reason.NO_TOOLS_TOLD}]
    assert [one.call.scope for one in without_tools if not one.is_true_prompt] == []
    assert len(without_tools) >= 976


def test_each_recorded_model_span_says_what_it_lacks(calls: list[JudgedCall]) -> None:
    """Its model is told even without content, and what is absent has a reason."""
    assert len(calls) == 1614
    for one in calls:
        absent = (one.call.messages, one.call.answer, one.call.tools)
        reasons = (Reason.NO_PROMPT_TOLD, Reason.NO_ANSWER_TOLD, Reason.NO_TOOLS_TOLD)
        assert [reason in one.call.lacks for reason in reasons] == [told is None for told in absent]
