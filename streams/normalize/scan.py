"""One OTLP request, item by item: the episode that each belongs to, and what is set aside by reason.

In: the bytes of a request of spans or log records, from our gateway or any Collector. Out: a Scan, which whoever reads
the items fills. Invariants: each item that is read is placed or refused by itself, so that one bad item does not harm
its neighbours; claims to an episode that disagree are refused, never guessed; a record's facts are of one sender; what
came with the reward token is of no episode, and counted. Of a request that is damaged what can be read is read; of one
of which nothing can, UndecodableError (`undecodable`) is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import msgspec
from google.protobuf.message import Message  # type: ignore[import-untyped]

from tracegrad.schemas.attributes import ATTEMPT_KEYS, PROVED_BY, ROLLOUT_KEYS
from tracegrad.schemas.credentials import feedback_holder
from tracegrad.schemas.errors import RecordError
from tracegrad.schemas.ids import (
    RunHash,
    attempt_of,
    episode_id,
    is_lightning,
    parse_attempt_id,
    parse_rollout_id,
    parse_trace_id,
    run_hash_of,
    split_episode_id,
)
from tracegrad.schemas.log.mac import is_by_own_run
from tracegrad.schemas.metrics import NOT_SELECTED, OF_EVALUATORS, Metrics
from tracegrad.schemas.otlp.read import read_request
from tracegrad.schemas.otlp.salvage import damaged
from tracegrad.schemas.otlp.signal import Signal
from tracegrad.schemas.otlp.values import AttributeValue, attributes_of
from tracegrad.schemas.reasons import Reason
from tracegrad.schemas.records.facts import CallFact, LinkFact, LogFact, SpanFact, told_fact
from tracegrad.schemas.records.told import ToldCall

from ..config import HistoryConfig

IDENTITY_KEYS = frozenset((*ROLLOUT_KEYS, *ATTEMPT_KEYS))
"""The attributes of an item or its resource that say which episode it is of."""
RESOURCE_KEYS = IDENTITY_KEYS | {PROVED_BY}
"""Those of a resource that place its items; whoever reads items may want others besides."""


TOLD = "told"
"""Beside the senders of spans: calls that spans tell, for kinds of facts are not mixed in a record."""


class RefusedItems(NamedTuple):
    """Items of one request that were refused for one reason: the first error, and a request with just them."""

    error: RecordError
    item: int
    request: Any


class Placement(NamedTuple):
    """Where an item belongs."""

    episode: str
    proved_by: str
    """As in SpanFact."""
    is_captured: bool
    """Its episode is no attempt of these runs."""


class ItemSource(NamedTuple):
    """Where items come from: a resource, and the instrumentation that made them."""

    resource: Mapping[str, AttributeValue]
    """Its wanted attributes."""
    scope: str
    places: dict[bytes, Placement | None]
    """Of traces whose items name no episode themselves; None: of no run that is taken."""


class Scan:
    """What one request holds.

    Args:
        signal: what it is of.
        value: its bytes.
        signer: the run whose OTLP gateway wrote it; only then is it known whose credential the gateway saw.
        runs: those whose attempts are taken.
        metrics: where items of other runs are counted.
    Raises:
        UndecodableError: it does not parse.
    """

    def __init__(
        self, signal: Signal, value: bytes, *, signer: str | None, runs: Container[str], metrics: Metrics
    ) -> None:
        self.facts: dict[tuple[str, str], list[SpanFact | LogFact | CallFact]] = {}
        """By episode and sender, or TOLD."""
        self.links: dict[str, dict[LinkFact, None]] = {}
        """By captured trace, in the order of their items."""
        self.refused: dict[str, RefusedItems] = {}
        """Reason -> its items."""
        self._refused_of: dict[str, tuple[Any, Any]] = {}
        """Reason -> resource and scope of the last item."""
        self._signal = signal
        self._signer = signer
        self._runs = runs
        self._metrics = metrics
        self._request, lost = read_request(signal, value)
        self.damage = damaged(lost)
        """Some of the request cannot be read, and is neither facts nor refused."""

    def read(self, read: Callable[[Any, ItemSource, Scan], None], wanted: frozenset[str]) -> Scan:
        """Has every item read, with the wanted attributes of its resource; one that raises RecordError is refused."""
        number = 0
        for of_resource in getattr(self._request, self._signal.resources):
            resource, places = attributes_of(of_resource.resource.attributes, wanted), dict[bytes, Placement | None]()
            if self._is_evaluators(resource):
                scopes = getattr(of_resource, self._signal.scopes)
                num = sum(len(getattr(of_scope, self._signal.fields)) for of_scope in scopes)
                self._metrics.add(OF_EVALUATORS, self._signal.items, num=num)
                number += num
                continue
            for of_scope in getattr(of_resource, self._signal.scopes):
                source = ItemSource(resource, of_scope.scope.name, places)
                for item in getattr(of_scope, self._signal.fields):
                    try:
                        read(item, source, self)
                    except RecordError as error:
                        self._refuse(error, number, of_resource, of_scope, item)
                    number += 1
        return self

    def _is_evaluators(self, resource: Mapping[str, AttributeValue]) -> bool:
        """Whether the run's gateway saw the reward token with these items. Who judges is not the agent: what it did is
        none of the agent's tools and agents, and a span that it sends again is to displace none that the agent sent."""
        return self._signer is not None and resource.get(PROVED_BY) == feedback_holder(RunHash(self._signer))

    def place(self, trace_id: bytes, attributes: Mapping[str, AttributeValue], source: ItemSource) -> Placement | None:
        """Where an item belongs, by its trace, its own attributes and its source; None: to none of these runs, counted.

        Raises:
            RecordError: as `episode_of`.
        """
        if not IDENTITY_KEYS.isdisjoint(attributes):
            place = self._placed(trace_id, attributes, source.resource)
        elif trace_id in source.places:
            place = source.places[trace_id]
        else:
            place = source.places[trace_id] = self._placed(trace_id, source.resource)
        if place is None:
            self._metrics.add(NOT_SELECTED, self._signal.items)
        return place

    def _placed(self, trace_id: bytes, *said: Mapping[str, AttributeValue]) -> Placement | None:
        rollout, attempt = _claim_of(ROLLOUT_KEYS, *said), _claim_of(ATTEMPT_KEYS, *said)
        episode = episode_of(rollout, attempt, trace_id.hex(), self._runs)
        if episode is None:
            return None
        # Which credential it came with matters to a runner's episode alone, and to that of the gateway's own run.
        is_attempt = attempt_of(episode, self._runs) is not None
        is_seen = is_attempt and is_by_own_run(self._signer, episode)
        return Placement(episode, str(said[-1].get(PROVED_BY, "")) if is_seen else "", not is_attempt)

    def add_told(self, place: Placement, told: ToldCall | None, history: HistoryConfig) -> None:
        """Takes what an item tells of a call, if it may be one of those that are to be learned."""
        if told is None or (told.model and not any(fnmatchcase(told.model, glob) for glob in history.models)):
            return
        num_bytes = len(msgspec.msgpack.encode(told))
        if num_bytes > history.max_call_bytes:
            lacks = (Reason.HISTORY_CUT, *told.lacks)
            told = msgspec.structs.replace(told, messages=None, tools=None, answer=None, ids=None, lacks=lacks)
        self.facts.setdefault((place.episode, TOLD), []).append(told_fact(told))

    def add_fact(self, place: Placement, fact: SpanFact | LogFact, links: Iterable[LinkFact]) -> None:
        """Takes what was made of an item."""
        self.facts.setdefault((place.episode, place.proved_by), []).append(fact)
        if links:
            self.links.setdefault(place.episode, {}).update(dict.fromkeys(links))

    def _refuse(self, error: RecordError, number: int, of_resource: Any, of_scope: Any, item: Message) -> None:
        """Keeps the item, with its resource and scope, in a request that can be sent again once mended."""
        signal = self._signal
        refused = self.refused.setdefault(error.reason, RefusedItems(error, number, signal.request()))
        last_resource, last_scope = self._refused_of.get(error.reason, (None, None))
        self._refused_of[error.reason] = of_resource, of_scope
        resources = getattr(refused.request, signal.resources)
        if last_resource is not of_resource:
            resources.add(schema_url=of_resource.schema_url).resource.CopyFrom(of_resource.resource)
        scopes = getattr(resources[-1], signal.scopes)
        if last_scope is not of_scope:
            scopes.add(schema_url=of_scope.schema_url).scope.CopyFrom(of_scope.scope)
        getattr(scopes[-1], signal.fields).add().CopyFrom(item)


def episode_of(rollout: str | None, attempt: str | None, trace: str | None, runs: Container[str]) -> str | None:
    """The episode of these claims; None: the rollout is of none of these runs, so not selected.

    Raises:
        RecordError: `bad_identity` (not an id), `no_attempt` (a rollout alone), `identity_conflict` (the
            trace id names another attempt), `no_identity` (nothing at all).
    """
    try:
        own = parse_trace_id(trace) if trace is not None else None
        parsed = parse_rollout_id(rollout) if rollout is not None else None
        claimed = parse_attempt_id(attempt) if parsed is not None and attempt is not None else None
    except ValueError as error:
        raise RecordError(str(error), reason=Reason.BAD_IDENTITY) from error
    if parsed is None:
        if own is None:
            raise RecordError("expected a rollout id or a trace id, got neither", reason=Reason.NO_IDENTITY)
        return own
    if claimed is None and own is not None and split_episode_id(own)[0] == parsed:
        claimed = split_episode_id(own)[1]
    if run_hash_of(parsed) not in runs:
        return None
    if claimed is None:
        raise RecordError(f"expected an attempt id beside rollout {parsed}, got none", reason=Reason.NO_ATTEMPT)
    episode: str = episode_id(parsed, claimed)
    # A trace id that names no attempt of ours is a framework's own, and no claim.
    if own is not None and own != episode and attempt_of(own, runs):
        raise RecordError(
            f"expected one episode, got {episode} by attributes and {own} by trace id", reason=Reason.IDENTITY_CONFLICT
        )
    return episode


def _claim_of(keys: tuple[str, ...], *sources: Mapping[str, Any]) -> str | None:
    """What a span or log record and its resource say under these keys, which must be one thing; an empty text says
    nothing, and another system's name claims no rollout.

    Raises:
        RecordError: `identity_conflict`.
    """
    said = (str(source[key]) for source in sources for key in keys if source.get(key) is not None)
    claims = {claim for claim in said if claim and not is_lightning(claim)}
    if len(claims) > 1:
        raise RecordError(f"expected one {keys[0]}, got {len(claims)} that differ", reason=Reason.IDENTITY_CONFLICT)
    return claims.pop() if claims else None
