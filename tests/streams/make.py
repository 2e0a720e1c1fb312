"""Raw records of small episodes, and the three folds wired together without a broker."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status

from tests.versions import sampled_by
from tracegrad.schemas.attributes import COUNTED_SPAN, PROVED_BY
from tracegrad.schemas.credentials import Holder
from tracegrad.schemas.fold import Emission, Output
from tracegrad.schemas.ids import CallId, RunHash, RunName, run_hash_of
from tracegrad.schemas.log.mac import MAC_HEADER
from tracegrad.schemas.log.protocol import Headers, Record
from tracegrad.schemas.records.calls import (
    LLM_CALLS,
    CallOutcome,
    CallRecord,
    CallsClosed,
    LlmCall,
    Purpose,
    SamplingParameters,
    SpliceOutcome,
    ToolCall,
)
from tracegrad.schemas.records.episodes import EPISODES, Episode
from tracegrad.schemas.records.rollouts import REWARDS, ROLLOUT_EVENTS, GroupRef, Reward, RolloutEvent, RolloutState
from tracegrad.schemas.records.tokens import ids_to_bytes, logprobs_to_bytes
from tracegrad.schemas.records.transitions import GroupSummary, SegmentRow, decode_group
from tracegrad.schemas.topics import INPUTS, Topic, Topics
from tracegrad.streams.assemble.air.rules import AirConfig, AirRule
from tracegrad.streams.assemble.fold import Assemble
from tracegrad.streams.config import StreamRules, StreamsConfig
from tracegrad.streams.credit.fold import Credit
from tracegrad.streams.normalize.fold import Normalize
from tracegrad.streams.stage_fold import StageFold

RUN_HASH = RunHash("0123abcd")
GROUP = GroupRef(id=RUN_HASH + "f" * 16, size=1, member=0, index=0)
TOPICS = Topics(run=RunName("test"))
HOST = Holder("rh-" + "0" * 16)
"""The agent host that works on the attempts."""


def config(air: tuple[AirRule, ...] = (), **changes: Any) -> StreamRules:
    """The rules of a run with one policy, `policy`; the rest of the changes are keys of `[streams]`."""
    given: dict[str, Any] = {"run_hash": RUN_HASH, "policies": ("policy",), "reward_sources": ("grader:*",)}
    given |= {name: changes.pop(name) for name in StreamRules.__struct_fields__ if name in changes}
    return StreamRules(**given, air=AirConfig(rules=air), streams=StreamsConfig(**changes))


def rollout(number: int) -> str:
    """A rollout id of the run."""
    return f"{RUN_HASH}{number:020x}"


def call(
    name: str, rollout_id: str | None, prompt: Sequence[int] = (), sampled: Sequence[int] = (7,), **changes: Any
) -> CallRecord:
    """A call whose suffix is its whole prompt, unless `parent_call_id` and `shared_tokens` say otherwise."""
    settings: dict[str, Any] = {
        "attempt_id": "a001" if rollout_id else None,
        "trace_id": None,
        "parent_span_id": None,
        "policy": "policy",
        "purpose": Purpose.TRAIN,
        "parent_call_id": None,
        "shared_tokens": 0,
        "suffix_ids": ids_to_bytes(prompt),
        "sampled_ids": ids_to_bytes(sampled),
        "logprobs": logprobs_to_bytes([-0.5] * len(sampled)),
        "versions": (sampled_by(3),),
        "finish_reason": "stop",
        "content": "ok",
        "sampling_used": SamplingParameters(temperature=1.0),
        "splice": SpliceOutcome(kind="first"),
        "ended_at_ns": 10,
    }
    return CallRecord(call_id=CallId(call_id(name)), rollout_id=rollout_id, **{**settings, **changes})


def call_id(name: str) -> str:
    """A response id as the gateway mints it."""
    return f"chatcmpl-{name.encode().hex():0>32}"


def tool_call(name: str, tool: str = "calc") -> ToolCall:
    """A tool call in an answer."""
    return ToolCall(id=f"call_{name}", name=tool, arguments="{}")


def closed(rollout_id: str, calls: Iterable[CallRecord], **outcomes: CallOutcome) -> CallsClosed:
    """The calls of an attempt, all delivered unless named."""
    named = {call_id(name): outcome for name, outcome in outcomes.items()}
    return CallsClosed(
        rollout_id=rollout_id,
        attempt_id="a001",
        outcomes={str(c.call_id): named.get(c.call_id, CallOutcome.DELIVERED) for c in calls},
    )


def chain(rollout_id: str, num_turns: int) -> list[CallRecord]:
    """Calls that go on from each other: each adds the prompt tokens 1 and 2 and samples 3."""
    names = [f"{rollout_id[-4:]}{number:06}" for number in range(num_turns)]
    return [
        call(name, rollout_id, [1, 2], [3], parent_call_id=call_id(above) if above else None, shared_tokens=3 * number)
        for number, (above, name) in enumerate(zip(["", *names], names, strict=False))
    ]


def reward(rollout_id: str, value: float | None = 1.0, **changes: Any) -> Reward:
    """The grader's reward."""
    settings: dict[str, Any] = {"attempt_id": "a001", "name": "reward", "source": "grader:grade"}
    settings |= {"idempotency_key": f"{rollout_id}/a001/{changes.get('name', 'reward')}"}
    return Reward(rollout_id=rollout_id, value=value, **{**settings, **changes})


def event(rollout_id: str, state: RolloutState = RolloutState.SUCCEEDED, **changes: Any) -> RolloutEvent:
    """A rollout event; an end is final and awaits `reward`."""
    settings: dict[str, Any] = {
        "attempt_id": "a001",
        "attempt_number": 0,
        "is_final": state.is_end,
        "spans_exported": 0,
        "host": HOST if state.is_end else None,
        "rewards_awaited": ("reward",) if state.is_end and state is not RolloutState.ABORTED else (),
        "group": GROUP,
        "task_id": "task-1",
        "policy": "policy",
        "purpose": Purpose.TRAIN,
    }
    return RolloutEvent(rollout_id=rollout_id, state=state, **{**settings, **changes})


def span(
    trace_id: str,
    span_id: int,
    name: str = "span",
    *,
    parent: int | None = None,
    at: int = 0,
    status: int = 0,
    exception: bool = False,
    **attributes: Any,
) -> Span:
    """An OTLP span that lasts one time unit; dots of attribute names are written as `__`."""
    made = Span(
        trace_id=bytes.fromhex(trace_id),
        span_id=span_id.to_bytes(8),
        parent_span_id=parent.to_bytes(8) if parent is not None else b"",
        name=name,
        start_time_unix_nano=at,
        end_time_unix_nano=at + 1,
        status=Status(code=status),  # type: ignore[arg-type]
        attributes=pairs({key.replace("__", "."): value for key, value in attributes.items()}),
    )
    if exception:
        made.events.add(name="exception")
    return made


def agent_span(trace_id: str, span_id: int, agent: str, **rest: Any) -> Span:
    """An `invoke_agent` span."""
    attributes: dict[str, Any] = {"gen_ai__operation__name": "invoke_agent", "gen_ai__agent__name": agent}
    return span(trace_id, span_id, f"invoke_agent {agent}", **attributes, **rest)


def llm_span(trace_id: str, span_id: int, call_name: str, **rest: Any) -> Span:
    """A `chat` span that names its response."""
    attributes: dict[str, Any] = {"gen_ai__operation__name": "chat", "gen_ai__response__id": call_id(call_name)}
    return span(trace_id, span_id, "chat policy", **attributes, **rest)


def tool_span(trace_id: str, span_id: int, tool: str = "calc", **rest: Any) -> Span:
    """An `execute_tool` span."""
    attributes: dict[str, Any] = {"gen_ai__operation__name": "execute_tool", "gen_ai__tool__name": tool}
    return span(trace_id, span_id, f"execute_tool {tool}", **attributes, **rest)


def pairs(attributes: dict[str, str | int | float | bool]) -> list[KeyValue]:
    """OTLP attributes."""
    return [KeyValue(key=key, value=_any(value)) for key, value in attributes.items()]


def _any(value: str | int | float | bool) -> AnyValue:
    if isinstance(value, str):
        return AnyValue(string_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    return AnyValue(bool_value=value) if isinstance(value, bool) else AnyValue(int_value=value)


def otlp(*spans: Span, service: str = "agent", is_counted: bool = False, **resource: Any) -> bytes:
    """A request of one resource and scope; `is_counted`: as an agent host sends it."""
    mark: dict[str, bool] = {COUNTED_SPAN: True} if is_counted else {}
    attributes = pairs(
        {"service.name": service, **mark, **{key.replace("__", "."): value for key, value in resource.items()}}
    )
    value: bytes = ExportTraceServiceRequest(
        resource_spans=[ResourceSpans(resource=Resource(attributes=attributes), scope_spans=[ScopeSpans(spans=spans)])]
    ).SerializeToString()
    return value


def spans_of(requests: Iterable[bytes]) -> list[tuple[str, Span]]:
    """(service, span) of each span in these requests."""
    found: list[tuple[str, Span]] = []
    for value in requests:
        for resource_spans in ExportTraceServiceRequest.FromString(value).resource_spans:
            names = {pair.key: pair.value.string_value for pair in resource_spans.resource.attributes}
            for scope in resource_spans.scope_spans:
                found += [(names.get("service.name", ""), span) for span in scope.spans]
    return found


def let_in(body: bytes, holder: Holder = HOST) -> bytes:
    """A request as the OTLP gateway writes it, which saw a credential of the holder."""
    request = ExportTraceServiceRequest.FromString(body)
    for resource_spans in request.resource_spans:
        resource_spans.resource.attributes.extend(pairs({PROVED_BY: holder}))
    value: bytes = request.SerializeToString()
    return value


def signed_by(run: str) -> Headers:
    """The header of a record that a program of a run wrote, as readers of the run's log get it: verified."""
    return ((MAC_HEADER, f"{run}:{'0' * 64}".encode()),)


Item = bytes | LlmCall | Reward | RolloutEvent
Raw = tuple[Topic, bytes]


def raw(item: Item) -> Raw:
    """The topic and bytes of a raw item; bytes are OTLP."""
    if isinstance(item, bytes):
        return Topic.OTLP_SPANS, item
    if isinstance(item, LlmCall):
        return Topic.LLM_CALLS, LLM_CALLS.encode(item)
    if isinstance(item, Reward):
        return Topic.REWARDS, REWARDS.encode(item)
    return Topic.ROLLOUT_EVENTS, ROLLOUT_EVENTS.encode(item)


class Streams:
    """normalize -> assemble -> credit in memory, one partition each; remembers all that was appended."""

    def __init__(self, settings: StreamRules | None = None, topics: Topics = TOPICS) -> None:
        self.config = settings or config()
        self.normalize = Normalize(self.config, topics)
        self.assemble = Assemble(self.config, topics)
        self.credit = Credit(self.config, topics)
        self.log: dict[Topic, list[Record]] = {}
        self.done: set[tuple[str, int]] = set()

    def append(
        self,
        topic: Topic,
        value: bytes | None,
        key: bytes | None = None,
        offset: int | None = None,
        headers: Headers = (),
    ) -> None:
        """Appends a record and folds whatever follows from it."""
        waiting = deque([self._record(topic, value, key, offset, headers)])
        while waiting:
            record = waiting.popleft()
            fold = self._reader(Topic(record.topic.split(".")[-1]))
            if fold is not None:
                for output in self._outputs(fold.fold(record)):
                    waiting.append(self._record(output.topic, output.value, output.key, headers=output.headers))

    def feed(self, *items: Item, holder: Holder = HOST) -> None:
        """Appends raw items; spans as the run's gateway does when the holder sends them."""
        for item in items:
            if isinstance(item, bytes):
                self.append(Topic.OTLP_SPANS, let_in(item, holder), headers=signed_by(self.config.run_hash))
            else:
                is_call = isinstance(item, LlmCall)
                self.append(*raw(item), headers=signed_by(run_hash_of(item.rollout_id or RUN_HASH)) if is_call else ())

    def tick(self, *seconds: float) -> None:
        """Lets the clocks propose at each of these times."""
        folds: tuple[StageFold[Any], ...] = (self.assemble, self.credit)
        for now_s, fold in itertools.product(seconds, folds):
            for output in fold.propose(now_s):
                self.append(output.topic, output.value, output.key)

    def take_over(self, *inputs: Record) -> None:
        """Another worker assembles: it reads the markers, and then these inputs."""
        self.assemble.reset()
        self.assemble.restore(self.log.get(Topic.CLOSED_EPISODES, []))
        for record in inputs:
            self.assemble.fold(record)

    @property
    def episodes(self) -> list[Episode]:
        """Those that have closed, in their order."""
        return [EPISODES.decode(value) for value in self.values(Topic.EPISODES)]

    @property
    def episode(self) -> Episode:
        """The only one."""
        (episode,) = self.episodes
        return episode

    @property
    def groups(self) -> list[tuple[GroupSummary, list[SegmentRow]]]:
        """What was credited."""
        return [decode_group(value) for value in self.values(Topic.TRANSITIONS)]

    def undone(self, topic: Topic) -> list[Record]:
        """Inputs that come again to whoever takes over."""
        return [record for record in self.log.get(topic, []) if (record.topic, record.offset) not in self.done]

    def values(self, topic: Topic) -> list[bytes]:
        """What was appended to a topic."""
        return [record.value or b"" for record in self.log.get(topic, [])]

    def _record(
        self, topic: Topic, value: bytes | None, key: bytes | None, offset: int | None = None, headers: Headers = ()
    ) -> Record:
        records = self.log.setdefault(topic, [])
        place = len(records) if offset is None else offset
        record = Record(topic=TOPICS.name(topic), partition=0, offset=place, key=key, value=value, headers=headers)
        records.append(record)
        return record

    def _reader(self, topic: Topic) -> StageFold[Any] | None:
        stages: tuple[StageFold[Any], ...] = (self.normalize, self.assemble, self.credit)
        return next((fold for fold in stages if topic in INPUTS[fold.stage]), None)

    def _outputs(self, emission: Emission) -> list[Output]:
        self.done |= {(position.topic, position.offset) for position in emission.done}
        return [*emission.outputs, *([emission.marker] if emission.marker else [])]
