"""What evaluations in spans and log records say, convention by convention, and under which key it is said again."""

from __future__ import annotations

import math
import time
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span

from tests.producers.keys import RUN_HASH
from tests.producers.otlp_gateway.evaluating import (
    ANSWER,
    BY_ID,
    EVENT,
    GOOD,
    KEY,
    NAMES,
    OTHER,
    TOOL,
    TRACE,
    Said,
    attributes,
    log,
    said,
    scored,
    span,
)
from tracegrad.producers.feedback_names import RangeConfig
from tracegrad.producers.otlp_gateway.evaluations import read
from tracegrad.producers.otlp_gateway.evaluations.read import (
    EvaluationsRead,
    may_evaluate,
    num_evaluations,
    read_evaluations,
)
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.ids import WirePrefix, conversation_key, new_call, wire_id
from tracegrad.schemas.otlp.signal import LOGS, TRACES
from tracegrad.schemas.records.rollouts import is_usable


def found(*items: Span | LogRecord, **resource: Any) -> EvaluationsRead:
    """What items say, spans or log records."""
    of_resource = ResourceSpans(resource=Resource(attributes=attributes(resource)))
    signal = TRACES if isinstance(items[0], Span) else LOGS
    return read_evaluations(signal, [(of_resource, None, item) for item in items], NAMES, RUN_HASH, at_ms=5)


def annotated(scope: str, word: str, index: int, **fields: Any) -> dict[str, Any]:
    """Attributes of one of OpenInference's annotations."""
    return {f"{scope}{word}s.{index}.{word}.{field}": value for field, value in fields.items()}


OF_TRACE: Said = ("good", 0.5, None, TRACE, "")
OF_ANSWER: Said = ("good", 0.5, ANSWER, KEY, "")

TABLE: dict[str, tuple[Span | LogRecord, list[Said]]] = {
    "log event in a span": (log(GOOD), [OF_TRACE]),
    "log event of no span": (log(BY_ID, trace=""), [OF_ANSWER]),
    "log event, older": (log({**BY_ID, "event.name": EVENT}, name=""), [OF_ANSWER]),
    "log event on a tool": (log({**GOOD, "gen_ai.tool.call.id": TOOL}), [("good", 0.5, TOOL, KEY, "")]),
    "log event on a conversation": (
        log({**GOOD, "gen_ai.conversation.id": "room 7"}),
        [("good", 0.5, None, conversation_key("room 7"), "")],
    ),
    "explained": (log({**GOOD, "gen_ai.evaluation.explanation": "since"}), [("good", 0.5, None, TRACE, "since")]),
    "explained at length": (
        log({**GOOD, "gen_ai.evaluation.explanation": "x" * 3_000}),
        [("good", 0.5, None, TRACE, "x" * 2_000)],
    ),
    "declared label": (
        log({"gen_ai.evaluation.name": "good", "gen_ai.evaluation.score.label": "pass"}),
        [("good", 1.0, None, TRACE, "pass")],
    ),
    "score before label": (log({**GOOD, "gen_ai.evaluation.score.label": "odd"}), [("good", 0.5, None, TRACE, "odd")]),
    "zero": (log({**GOOD, "gen_ai.evaluation.score.value": 0}), [("good", 0.0, None, TRACE, "")]),
    "error beside a score": (log({**GOOD, "error.type": "Slow"}), [OF_TRACE]),
    "another event": (log(GOOD, name="gen_ai.choice"), []),
    "event of a span": (span({}, events=[(EVENT, GOOD)]), [OF_TRACE]),
    "event of the answer's span": (span({"gen_ai.response.id": ANSWER}, events=[(EVENT, GOOD)]), [OF_ANSWER]),
    "event of the tool's span": (
        span({"gen_ai.tool.call.id": TOOL}, events=[(EVENT, GOOD)]),
        [("good", 0.5, TOOL, KEY, "")],
    ),
    "event that names another": (span({"gen_ai.response.id": new_call(OTHER)}, events=[(EVENT, BY_ID)]), [OF_ANSWER]),
    "span of its own": (span(BY_ID, name=EVENT), [OF_ANSWER]),
    "span that evaluates": (span(BY_ID, name="evaluate good"), [OF_ANSWER]),
    "linked span": (span(GOOD, links=[(OTHER, {})]), [("good", 0.5, None, OTHER, "")]),
    "linked to an answer": (span(GOOD, links=[(OTHER, {"gen_ai.response.id": ANSWER})]), [OF_ANSWER]),
    "linked to two": (span(GOOD, links=[(OTHER, {}), ("ef" * 16, {})]), [OF_TRACE]),
    "annotation": (span(annotated("", "annotation", 0, name="good", score=0.5)), [OF_TRACE]),
    "evaluation": (span(annotated("", "evaluation", 0, name="good", score=0.5)), [OF_TRACE]),
    "annotation of an answer": (
        span(
            annotated("", "annotation", 0, name="good", score=0.5)
            | {"gen_ai.response.id": wire_id(ANSWER, WirePrefix.MESSAGE)}
        ),
        [OF_ANSWER],
    ),
    "annotations": (
        span(
            annotated("", "annotation", 0, name="good", label="fail", explanation="no")
            | annotated("", "annotation", 1, name="stars", score=4, annotator_kind="HUMAN")
        ),
        [("good", 0.0, None, TRACE, "no"), ("stars", 4.0, None, TRACE, "")],
    ),
    "carried annotation": (
        span({**annotated("", "annotation", 0, name="good", score=0.5)}, links=[(OTHER, {})]),
        [("good", 0.5, None, OTHER, "")],
    ),
    "annotation of a trace": (
        span({**annotated("trace.", "annotation", 0, name="good", score=0.5), "gen_ai.response.id": ANSWER}),
        [OF_TRACE],
    ),
    "annotation of a session": (
        span({**annotated("session.", "evaluation", 0, name="good", score=0.5), "session.id": "room 7"}),
        [("good", 0.5, None, conversation_key("room 7"), "")],
    ),
    "plain span": (span({"http.method": "GET", "score": 1, "annotations.x.annotation.score": 1}), []),
}  # fmt: skip


@pytest.mark.parametrize(("item", "expected"), TABLE.values(), ids=TABLE.keys())
def test_each_convention(item: Span | LogRecord, expected: list[Said]) -> None:
    """Name, value, what it is about and its reason; nothing is refused."""
    rewards, refused = found(item)
    assert (list(map(said, rewards)), refused) == (expected, Counter())
    assert all((reward.source, reward.at_ms, reward.rollout_id) == ("feedback", 5, "") for reward in rewards)


LABEL, NAME = "gen_ai.evaluation.score.label", "gen_ai.evaluation.name"
REFUSED: dict[str, tuple[Span | LogRecord, str]] = {
    "NaN": (scored(math.nan), "value"),
    "infinite": (scored(math.inf), "value"),
    "too great": (scored(1.5), "value"),
    "no number": (scored("0.5"), "value"),
    "nothing": (log({NAME: "good"}), "value"),
    "not declared": (log({**GOOD, NAME: "mood"}), "name"),
    "undeclared label of no name": (log({NAME: "mood", LABEL: "pass"}), "name"),
    "no name": (scored(0.5, **{NAME: ""}), "name"),
    "a name that is none": (scored(0.5, **{NAME: ["good"]}), "name"),
    "unknown label": (log({NAME: "good", LABEL: "meh"}), "label"),
    "label without declared ones": (log({NAME: "stars", LABEL: "pass"}), "label"),
    "failed": (log({NAME: "good", "error.type": "Timeout"}), "error_type"),
    "failed with a label": (log({NAME: "good", LABEL: "pass", "error.type": "Timeout"}), "error_type"),
    "another's answer": (log({**GOOD, "gen_ai.response.id": "chatcmpl-abc"}), "response_id"),
    "no id": (log({**GOOD, "gen_ai.response.id": 7}), "response_id"),
    "another's tool call": (log({**GOOD, "gen_ai.tool.call.id": "toolu_1"}), "tool_call_id"),
    "about nothing": (log(GOOD, trace=""), "form"),
    "no session": (span(annotated("session.", "annotation", 0, name="good", score=1)), "form"),
    "a key that is none": (log({**GOOD, "log.record.uid": 7}), "idempotency_key"),
}


@pytest.mark.parametrize(("item", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_what_says_nothing_usable_is_refused_by_reason(item: Span | LogRecord, reason: str) -> None:
    """And never read as zero; a good neighbour counts."""
    assert found(item) == ((), Counter({reason: 1}))
    neighbour = span({}, events=[(EVENT, GOOD)], number=9) if isinstance(item, Span) else log(GOOD, span=9)
    rewards, refused = found(neighbour, item, neighbour)
    assert (list(map(said, rewards)), refused) == ([OF_TRACE], Counter({reason: 1}))


def keys(*items: Span | LogRecord) -> list[str]:
    """Under what they are said."""
    return [reward.idempotency_key for item in items for reward in found(item).rewards]


IDENTIFIED = annotated("", "annotation", 0, name="good", score=0.5, identifier="judge-2", annotator_kind="LLM")
BY_ANN = {**BY_ID, "user.id": "ann"}
BY_HUMAN = {**BY_ID, "gen_ai.evaluation.evaluator.source": "human"}
WORSE = {"gen_ai.evaluation.score.value": 0.0}
SAME: dict[str, tuple[Span | LogRecord, Span | LogRecord]] = {
    "sent again": (log(BY_ID), log(BY_ID)),
    "another score": (log(BY_ID), log({**BY_ID, "gen_ai.evaluation.score.value": 1.0}, at_ns=9)),
    "another explanation": (log(BY_ID), log({**BY_ID, "gen_ai.evaluation.explanation": "well"})),
    "another API's spelling": (log(BY_ID), log({**BY_ID, "gen_ai.response.id": wire_id(ANSWER, WirePrefix.RESPONSE)})),
    "its own id": (log({**GOOD, "log.record.uid": "u1"}), log({**GOOD, "log.record.uid": "u1"}, span=9)),
    "both words": (
        span(annotated("", "annotation", 0, name="good", score=0.5)),
        span(annotated("", "evaluation", 3, name="good", score=0.5)),
    ),
    "another carrier": (span(IDENTIFIED, links=[(OTHER, {})]), span(IDENTIFIED, links=[(OTHER, {})], number=9)),
    "trace told by two spans": (
        span(annotated("trace.", "annotation", 0, name="good", score=0.5)),
        span(annotated("trace.", "annotation", 0, name="good", score=0.5), number=9),
    ),
    "of nobody, sent again": (log(BY_ID, span=0, at_ns=7), log(BY_ID, span=0, at_ns=7)),
    "of a person, of no span": (log(BY_ANN, span=0, at_ns=7), log({**BY_ANN, **WORSE}, span=0, at_ns=8)),
}
APART: dict[str, tuple[Span | LogRecord, Span | LogRecord]] = {
    "name": (log(BY_ID), log({**BY_ID, NAME: "stars", "gen_ai.evaluation.score.value": 2})),
    "answer": (log(BY_ID), log({**BY_ID, "gen_ai.response.id": new_call(KEY)})),
    "where it was judged": (log(BY_ID), log(BY_ID, span=9)),
    "of nobody, at another time": (log(BY_ID, span=0, at_ns=7), log(BY_ID, span=0, at_ns=8)),
    "of nobody, of no time": (log(BY_ID, trace="", at_ns=0), log({**BY_ID, **WORSE}, trace="", at_ns=0)),
    "of nobody, by one kind of judge": (log(BY_HUMAN, span=0, at_ns=7), log(BY_HUMAN, span=0, at_ns=8)),
    "person": (log({**BY_ID, "user.id": "ann"}), log({**BY_ID, "user.id": "bob"})),
    "evaluator": (log(BY_ID), log({**BY_ID, "gen_ai.evaluation.evaluator.source": '{"name":"b"}'})),
    "its own id": (log({**BY_ID, "log.record.uid": "u1"}), log({**BY_ID, "log.record.uid": "u2"})),
    "kind of judge": (
        span(annotated("", "annotation", 0, name="good", score=0.5, annotator_kind="HUMAN")),
        span(annotated("", "annotation", 0, name="good", score=0.5, annotator_kind="LLM")),
    ),
}


@pytest.mark.parametrize(("one", "other"), SAME.values(), ids=SAME.keys())
def test_what_is_the_same_evaluation_is_said_under_one_key(one: Span | LogRecord, other: Span | LogRecord) -> None:
    """So that a retry counts once and a correction revises; within one request the later one is said alone."""
    first, second = keys(one, other)
    assert first == second
    assert len(found(one, other).rewards) == 1


@pytest.mark.parametrize(("one", "other"), APART.values(), ids=APART.keys())
def test_different_evaluations_have_different_keys(one: Span | LogRecord, other: Span | LogRecord) -> None:
    """They are ratings of their own, of which several of one thing are their mean."""
    first, second = keys(one, other)
    assert first != second


def test_an_own_id_is_the_key() -> None:
    """By which its sender can ask for the receipt."""
    assert keys(log({**GOOD, "log.record.uid": "u1"})) == ["u1"]


@pytest.mark.parametrize("is_turned", [False, True])
def test_of_one_request_the_later_value_counts(is_turned: bool) -> None:
    """By the sender's clock, whatever the order in which they lie."""
    items = [log(BY_ID, at_ns=1), log({**BY_ID, "gen_ai.evaluation.score.value": 1.0}, at_ns=2)]
    (reward,) = found(*(reversed(items) if is_turned else items)).rewards
    assert reward.value == 1.0


def test_what_is_beyond_the_most_of_a_request_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small body of many takes no more memory, or work, than that; what is refused, or revises, is work too."""
    monkeypatch.setattr(read, "_MAX_FOUND", 2)
    rewards, refused = found(*(log(GOOD, span=number) for number in range(1, 6)))
    assert (len(rewards), refused) == (2, Counter({"too_many": 3}))
    rewards, refused = found(log({**GOOD, NAME: "unknown"}), log(GOOD, at_ns=1), log(GOOD, span=8), log(GOOD, span=9))
    assert (len(rewards), refused) == (1, Counter({"name": 1, "too_many": 2}))


@pytest.mark.parametrize("long", ["user.id", "gen_ai.response.id", "session.id", "gen_ai.tool.call.id"])
@pytest.mark.parametrize("nested", [False, True], ids=["text", "list"])
def test_a_long_text_that_many_evaluations_share_costs_once(long: str, nested: bool) -> None:
    """Each of a span's evaluations has its target and its giver."""
    text: Any = "u" * 2_000_000
    many = {f"annotations.{index}.annotation.name": "good" for index in range(3_000)}
    shared = span({long: [text] if nested else text, **many})
    began = time.process_time()
    assert found(shared).refused.total() == 3_000
    assert num_evaluations(TRACES, [(ResourceSpans(), None, shared)]) == 3_000
    assert time.process_time() - began < 1.5


def test_a_resource_that_many_spans_share_is_read_once() -> None:
    """Also where those of another lie between them."""
    large = Resource(attributes=attributes(dict.fromkeys(map(str, range(3_000)), 1)))
    resources = ResourceSpans(resource=large), ResourceSpans(resource=large)
    items = [(resource, None, span({"user.id": "x"})) for _ in range(1_000) for resource in resources]
    began = time.process_time()
    assert num_evaluations(TRACES, items) == 0
    assert time.process_time() - began < 0.5


def test_those_without_the_token_are_counted_no_further_than_the_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body of nothing else would hold up all others."""
    monkeypatch.setattr(read, "_MAX_FOUND", 3)
    many = span({}, events=[(EVENT, GOOD)] * 9)
    assert num_evaluations(TRACES, [(ResourceSpans(), None, many)]) == 3


def test_a_look_at_the_body_spares_the_rest() -> None:
    """What holds an evaluation is told by its bytes; what nobody let in is counted, whatever it says."""
    for item, expected in TABLE.values():
        signal = TRACES if isinstance(item, Span) else LOGS
        num = num_evaluations(signal, [(ResourceSpans(), None, item)])
        assert num >= len(expected)
        assert not num or may_evaluate(item.SerializeToString())
    assert not may_evaluate(span({"http.method": "GET"}).SerializeToString())


VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=20)
    | st.sampled_from([ANSWER, TOOL, TRACE, "good", "pass"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip
ALL_KEYS = sorted(
    {pair.key for item, _ in TABLE.values() for pair in item.attributes}
    | {"log.record.uid", "error.type", "user.id", "annotations.0.annotation.identifier", "session.id", "event.name"}
)
SAID = st.dictionaries(st.sampled_from(ALL_KEYS), VALUES, max_size=8)


@given(SAID, SAID, SAID, st.sampled_from([EVENT, "step"]))
def test_any_values_are_read_without_raising(own: Any, inner: Any, linked: Any, name: str) -> None:
    """What comes out is a usable value of a declared name; all else is counted."""
    for item in (span(own, name=name, events=[(EVENT, inner)], links=[(OTHER, linked)]), log(inner)):
        for reward in found(item, **own).rewards:
            limits = NAMES[reward.name]
            assert is_usable(reward.value) and limits.low <= (reward.value or 0.0) <= limits.high
            assert 0 < len(reward.idempotency_key) <= 200


def test_a_label_is_worth_what_its_name_may_have() -> None:
    """Said where the settings are read, not where an evaluation comes."""
    with pytest.raises(ConfigurationError, match=r"labels: expected values in \[0, 1\], got 'pass' = 2"):
        RangeConfig(low=0.0, high=1.0, labels={"pass": 2.0})
