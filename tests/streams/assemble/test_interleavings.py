"""A conversation of two requests in two traces gives the same episodes in every order, whatever restarts in between.

Records are folded one by one: facts as normalize wrote them, what assemble forwards, and proposals to close, each as
late as chance has it. A restart forgets all but acknowledged markers, drops what was on its way, and folds again what
was not done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from tests.streams.assemble.test_context_calls import answered
from tests.streams.assemble.test_links import ALL, OTHER, TRACE, captured, llm
from tests.streams.make import TOPICS, Item, Streams, agent_span, config, otlp, span, tool_span
from tracegrad.producers.llm_gateway.identity import conversation_of
from tracegrad.schemas.fold import Emission, Output
from tracegrad.schemas.ids import conversation_key, new_tool_call
from tracegrad.schemas.log.protocol import Headers, Record
from tracegrad.schemas.records.calls import CallEnded, CallOpen, CallOutcome, CallRecord, ToolCall
from tracegrad.schemas.records.episodes import EPISODES, Episode
from tracegrad.schemas.records.facts import (
    EPISODE_EVENTS,
    CallEndedFact,
    CallFact,
    CallOpenFact,
    Close,
    ContextCallFact,
    Facts,
)
from tracegrad.schemas.topics import Topic
from tracegrad.streams.assemble.fold import Assemble

pytestmark = pytest.mark.slow
NAMES = ("header", "baggage", "gen_ai.conversation.id", "session.id", "tool-call id")
KEY = conversation_key("c-17")
IDLE_S = 10.0


def conversation(name: str) -> list[Item]:
    """All that comes of the two requests: planner's and critic's, with the tool that the first asked for."""
    said: dict[str, Any] = {}
    if name in ("gen_ai.conversation.id", "session.id"):
        said = {name.replace(".", "__"): "c-17"}
    headers = {"header": {"x-conversation-id": "c-17"}, "baggage": {"baggage": "session.id=c-17"}}
    key = conversation_of(headers.get(name, {}))
    asked = ToolCall(id=new_tool_call(key or TRACE, lambda below: 5), name="calc", arguments="{}")
    calls: dict[str, Any] = {"conversation_key": key, "parent_span_id": f"{2:016x}"}
    first = captured(key or TRACE, "one", trace_id=TRACE, content="one", tool_calls=(asked,), **calls)
    other_model = answered("a", trace_id=TRACE, parent_span_id=f"{1:016x}", conversation_key=key)
    planner = [*told_of(first), other_model, *trace_of("planner", first, said)]
    if name == "tool-call id":
        # The tool has a trace of its own, and the gateway found that the second request goes on from the first.
        second = captured(TRACE, "two", content="two", conversation_key=TRACE, trace_id=None)
        tool = tool_span(OTHER, 4, parent=3, gen_ai__tool__call__id=asked.id)
        model = llm(TRACE, 7, second.call_id, parent=1)
        return [*planner, *told_of(second), otlp(model), otlp(tool, span(OTHER, 5, "serve", parent=4))]
    second = captured(key or OTHER, "two", trace_id=OTHER, content="two", **calls)
    tool = tool_span(OTHER, 4, parent=1, gen_ai__tool__call__id=asked.id, **said)
    return [*planner, *told_of(second), *trace_of("critic", second, said), otlp(tool)]


def told_of(made: CallRecord) -> list[Item]:
    """The records of a call that lasts."""
    names: dict[str, Any] = {"trace_id": made.trace_id, "conversation_key": made.conversation_key}
    ended = CallEnded(call_id=made.call_id, outcome=CallOutcome.DELIVERED, **names)
    return [CallOpen(call_id=made.call_id, **names), made, ended]


def trace_of(agent: str, made: CallRecord, said: dict[str, Any]) -> list[Item]:
    """Its spans: the client's, its instrumentation's, the agent's."""
    trace = str(made.trace_id)
    return [
        otlp(span(trace, 2, "POST", parent=3)),
        otlp(llm(trace, 3, made.call_id, parent=1, **said)),
        otlp(agent_span(trace, 1, agent, **said)),
    ]


class Worker:
    """The assembler on a log of its own, as the shell drives it, one record or acknowledgement after the other."""

    def __init__(self) -> None:
        self.fold = self._new()
        self.log: list[Record] = []
        self.markers: list[Record] = []
        self.episodes: list[bytes] = []
        self.headers: list[Headers] = []
        """Of each of them."""
        self._done: set[int] = set()
        self._under_way: list[tuple[list[Callable[[], None]], list[Callable[[], None]]]] = []
        """Of each emission what is still to come: its outputs; its marker and its inputs' end."""
        self._stale: list[Output] = []

    def _new(self) -> Assemble:
        return Assemble(config(select=ALL, idle_s=IDLE_S), TOPICS)

    def append(self, key: bytes | None, value: bytes, headers: Headers = ()) -> None:
        """A record lies on `episode_events`, and is folded."""
        record = Record(topic="events", partition=0, offset=len(self.log), key=key, value=value, headers=headers)
        self.log.append(record)
        self._take(self.fold.fold(record))

    def _take(self, emission: Emission) -> None:
        ends = [self._mark(emission.marker)] if emission.marker is not None else []
        ends.append(lambda: self._done.update(position.offset for position in emission.done))
        self._under_way.append(([self._put(output) for output in emission.outputs], ends))

    def _put(self, output: Output) -> Callable[[], None]:
        if output.topic is Topic.EPISODES:
            return lambda: self._write(output)
        assert output.topic is Topic.EPISODE_EVENTS
        return lambda: self.append(output.key, output.value, output.headers)

    def _write(self, output: Output) -> None:
        self.episodes.append(output.value)
        self.headers.append(output.headers)

    def _mark(self, output: Output) -> Callable[[], None]:
        def mark() -> None:
            name, place = TOPICS.name(output.topic), len(self.markers)
            self.markers.append(Record(topic=name, partition=0, offset=place, key=output.key, value=output.value))

        return mark

    def go_on(self, random: Random) -> bool:
        """The next output, or marker or end of an emission whose outputs are there; whether there was any."""
        self._under_way = [(outputs, ends) for outputs, ends in self._under_way if outputs or ends]
        first = next((outputs for outputs, _ in self._under_way if outputs), None)
        steps = [ends for outputs, ends in self._under_way if not outputs]
        steps += [first] if first is not None else []
        if steps:
            random.choice(steps).pop(0)()
        return bool(steps)

    def settle(self) -> None:
        """All that is under way."""
        while self.go_on(Random(0)):
            pass

    def restart(self) -> None:
        """As by SIGKILL."""
        self._under_way.clear()
        self._stale.clear()
        self.fold = self._new()
        self.fold.restore(self.markers)
        first = next((record.offset for record in self.log if record.offset not in self._done), len(self.log))
        for record in self.log[first:]:
            self._take(self.fold.fold(record))

    def propose(self, *, is_silent: bool, is_over: bool = False) -> None:
        """The clock proposes all; only forwarding is obeyed, and the rest when it is void, unless all `is_silent`."""
        self.fold.propose(0.0)
        for episode in self.fold._open.values():
            episode.next_proposal_s = 0.0
        for output in self.fold.propose(1e9 if is_over else IDLE_S):
            close = EPISODE_EVENTS.decode(output.value)
            assert isinstance(close, Close)
            if is_silent or self.fold._target(self.fold._open[close.episode_id])[0] is not None:
                self.append(output.key, output.value)
            else:
                self._stale.append(output)
        for episode in self.fold._open.values():
            episode.silent_since_s, episode.first_seen_s, episode.next_proposal_s = None, None, 0.0

    def propose_late(self) -> None:
        """What was proposed before more came."""
        for output in self._stale:
            close = EPISODE_EVENTS.decode(output.value)
            assert isinstance(close, Close)
            episode = self.fold._open.get(close.episode_id)
            if episode is None or len(episode.positions) != close.num_records:
                self.append(output.key, output.value)
        self._stale.clear()


def facts_of(items: list[Item]) -> list[Record]:
    """What normalize makes of them."""
    run = Streams(config(select=ALL))
    run.assemble.fold = lambda record: Emission()  # type: ignore[method-assign]
    run.feed(*items)
    return run.log[Topic.EPISODE_EVENTS]


def is_of_calls(record: Record) -> bool:
    """Whether it comes of `llm_calls`, which keeps the order of a key."""
    event = EPISODE_EVENTS.decode(record.value)
    return isinstance(event, Facts) and isinstance(
        event.facts[0], CallFact | ContextCallFact | CallOpenFact | CallEndedFact
    )


def shuffled(facts: list[Record], random: Random, *, keeps_calls: bool) -> list[Record]:
    """In any order, the last one first; `keeps_calls`: what `llm_calls` told of a key keeps its own."""
    mixed = random.sample(facts, len(facts))
    if keeps_calls:
        for key in {record.key for record in mixed}:
            places = [place for place, record in enumerate(mixed) if record.key == key and is_of_calls(record)]
            own = sorted((mixed[place] for place in places), key=lambda record: -record.offset)
            for place, record in zip(places, own, strict=True):
                mixed[place] = record
    return mixed


def drive(worker: Worker, facts: list[Record], random: Random, *, is_silent: bool) -> None:
    """Everything in some order; `is_silent`: an agent may fall silent at any time."""
    facts = shuffled(facts, random, keeps_calls=is_silent)
    while facts:
        match random.randrange(10):
            case 0:
                worker.restart()
            case 1:
                worker.propose(is_silent=is_silent)
            case 2:
                worker.propose_late()
            case 3 | 4 | 5:
                worker.go_on(random)
            case _:
                fact = facts.pop()
                worker.append(fact.key, fact.value or b"", fact.headers)
    for _ in range(4):
        worker.settle()
        worker.propose(is_silent=False)
    for is_over in (False, False, True, True):
        worker.settle()
        worker.propose(is_silent=True, is_over=is_over)
    worker.settle()


def written(worker: Worker) -> Iterator[Episode]:
    """Those with calls."""
    return (episode for value in worker.episodes if (episode := EPISODES.decode(value)).calls)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(0, 200, 50))
def test_every_order_gives_one_result(name: str, seed: int) -> None:
    """Two calls in one episode, each with its agent, of equal bytes, also where it was written twice."""
    facts = facts_of(conversation(name))
    undisturbed = Worker()
    for fact in facts:
        undisturbed.append(fact.key, fact.value or b"")
        undisturbed.settle()
    drive(undisturbed, [], Random(0), is_silent=False)
    (episode,) = written(undisturbed)
    second = "planner" if name == "tool-call id" else "critic"
    assert [(made.agent, made.outcome.value) for made in episode.calls] == [
        ("planner", "delivered"),
        (second, "delivered"),
    ]
    assert [tool.status.value for tool in episode.calls[0].tools] == ["succeeded"]
    assert [one.agent for one in episode.context_calls] == ["planner"]
    for number in range(seed, seed + 50):
        worker = Worker()
        drive(worker, facts, Random(number), is_silent=False)
        assert {*worker.episodes} == {*undisturbed.episodes}, number
        assert worker.fold.num_open == 0


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(0, 200, 50))
def test_silence_at_any_time_loses_no_call(name: str, seed: int) -> None:
    """Each call stands in one episode, however many they are; equal ids, equal bytes."""
    facts = facts_of(conversation(name))
    for number in range(seed, seed + 50):
        worker = Worker()
        drive(worker, facts, Random(number), is_silent=True)
        by_id = {EPISODES.decode(value).episode_id: value for value in worker.episodes}
        assert {*by_id.values()} == {*worker.episodes}, number
        calls = [made for value in by_id.values() for made in EPISODES.decode(value).calls]
        assert sorted(str(made.content) for made in calls) == ["one", "two"], number
        assert sum(len(EPISODES.decode(value).context_calls) for value in by_id.values()) == 1, number
        assert worker.fold.num_open == 0
