"""Where the facts of a captured trace belong, when something says that it is of a conversation with another key.

In: the LinkFacts of a trace, before its facts are forwarded and after. Out: the one key to forward to, and which
forwarded traces join. Invariant: the outcome follows from the set of links. A call's own key, and an id that the
gateway minted, count more than a conversation id that a span bears, that more than a session id, and that more than an
id of what was said before; of the first that are there all must name one key, or the trace links nothing: it stays, and
so does what it named. Facts of a trace that an id alone brought join only where a call bears that id.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Collection, Iterable, Iterator

from tracegrad.schemas.fold import Output
from tracegrad.schemas.keys import episode_key
from tracegrad.schemas.log.made_of import Parts, origin_header
from tracegrad.schemas.records.facts import (
    EPISODE_EVENTS,
    MAX_FACTS_PER_RECORD,
    MAX_LINKS,
    CallEndedFact,
    CallFact,
    CallOpenFact,
    ContextCallFact,
    Fact,
    Facts,
    LinkFact,
    LinkSource,
    SpanFact,
    SpanKind,
    link_order,
)
from tracegrad.schemas.topics import Topic

from .origins import batch_of

MAX_HOPS = 4
"""Facts that were handed on so often go round in a circle."""
_SEVERAL = 2
_RANKS = (
    (LinkSource.ANSWER,),
    (LinkSource.CALL, LinkSource.ID),
    (LinkSource.CONVERSATION,),
    (LinkSource.SESSION,),
    (LinkSource.HISTORY,),
)
_REPEATED = frozenset({LinkSource.ID, LinkSource.HISTORY})
_OF_CONVERSATIONS = (LinkSource.CALL, LinkSource.CONVERSATION, LinkSource.SESSION)
_TELLERS: dict[type, str] = {CallFact: "call", ContextCallFact: "call", CallOpenFact: "open", CallEndedFact: "ended"}


class Links:
    """The links of one open episode: from it, and to it."""

    def __init__(self) -> None:
        self._away: dict[LinkFact, None] = {}
        self._kept: list[LinkFact] = []
        """The same by `link_order`."""
        self.are_cut = False
        """More were named; the first by `link_order` are kept."""
        self._pulled: set[str] = set()
        """Keys whose calls were asked for."""
        self._here: dict[str, set[str | None]] = {}
        """Forwarded trace -> the minted ids that brought it; None: something else did."""

    def __bool__(self) -> bool:
        """Whether anything names another key."""
        return bool(self._away)

    def add_link(self, link: LinkFact, key: str) -> None:
        """Folds one in. `key`: of the episode, as links name it."""
        if link.key == key:
            self._here.setdefault(link.trace_id, set()).add(link.minted_id)
        elif link not in self._away:
            bisect.insort(self._kept, link, key=link_order)
            self._away[link] = None
            if len(self._kept) > MAX_LINKS:
                self.are_cut = True
                del self._away[self._kept.pop()]

    def brought(self, trace: str | None) -> bool:
        """Whether a link has brought the trace here."""
        return trace in self._here

    def are_sure_of(self, key: str) -> bool:
        """Whether anything but repeated history names the key: a span to come may still say better."""
        return any(link.key == key and link.source is not LinkSource.HISTORY for link in self._away)

    def are_asked_for(self, key: str) -> bool:
        """Whether its calls were asked for by that trace."""
        return any(link.key == key and link.source is LinkSource.ANSWER for link in self._away)

    def pulls(self, key: str, answers: Collection[str]) -> list[LinkFact]:
        """Of a trace that names several keys, and each by an answer that its spans repeat: the links by which those
        calls come to it, each once. `answers`: as answers_in."""
        links = [link for link in self._away if link.source in _RANKS[1]]
        if len({link.key for link in links if link.key not in self._pulled}) + len(self._pulled) < _SEVERAL:
            return []
        told = {link.key: link.minted_id for link in links if link.minted_id in answers}
        if any(link.key not in told for link in links):
            return []
        new = {other: minted for other, minted in told.items() if other not in self._pulled}
        self._pulled.update(new)
        return [pull(other, key, minted) for other, minted in sorted(new.items())]

    def target(self, key: str, *, has_calls: bool, answered: Collection[str] = ()) -> tuple[str | None, bool]:
        """(the key to forward to, whether several are named).

        `key`: the trace's own; `has_calls`: whether calls name the trace itself; a span of it that repeats another
        conversation's id, as an evaluator's does, must not carry them there, but may name their own conversation.
        `answered`: its calls that may go to the trace which repeats their ids.
        """
        is_torn = False
        for sources in _RANKS:
            links = [link for link in self._away if link.source in sources and link.key not in self._pulled]
            if LinkSource.ANSWER in sources:
                links = [link for link in links if link.minted_id in answered]
            keys = {link.key for link in links}
            if keys and has_calls and not _REPEATED.isdisjoint(sources):
                if all(link.source in _REPEATED for link in links):
                    is_torn = True
                    continue
                keys.add(key)
            if keys:
                return (keys.pop(), False) if len(keys) == 1 else (None, True)
        return None, is_torn

    @property
    def away(self) -> tuple[LinkFact, ...]:
        """Those from it, in canonical order."""
        return tuple(self._kept)

    def strangers(self, minted: Callable[[], set[str]]) -> set[str]:
        """Forwarded traces that join nothing; `minted` gives the ids of the episode's calls and tool calls."""
        doubted = {trace: ids for trace, ids in self._here.items() if None not in ids}
        known = minted() if doubted else set()
        return {trace for trace, ids in doubted.items() if ids.isdisjoint(known)}


def pull(key: str, to: str, minted: str | None) -> LinkFact:
    """By which the calls of a key go to the trace that repeats the id of one of them."""
    return LinkFact(trace_id=key, key=to, source=LinkSource.ANSWER, minted_id=minted)


def answers_in(spans: Iterable[SpanFact]) -> set[str]:
    """The ids of answers, and of tool calls that answers ask for, which models' spans repeat, and of those that were
    executed: some frameworks' models repeat neither."""
    return {id_ for span in spans for id_ in _repeated(span) if id_}


def _repeated(span: SpanFact) -> tuple[str | None, ...]:
    if span.kind is SpanKind.LLM:
        return (span.response_id, *span.requested_tool_call_ids)
    return (span.tool_call_id,) if span.kind is SpanKind.TOOL else ()


def asked_of(links: Collection[LinkFact], facts: Collection[Fact]) -> Iterator[Facts]:
    """The records by which calls of other keys follow a trace that has gone elsewhere, whose models' spans repeat their
    ids. They are asked to the trace, as before it went: a key that were asked to two places would go to neither."""
    answers = answers_in(fact for fact in facts if isinstance(fact, SpanFact))
    for link in links:
        if link.source is LinkSource.ID and link.minted_id in answers:
            yield Facts(episode_id=link.key, facts=(pull(link.key, link.trace_id, link.minted_id),))


def forwarded(
    trace: str, key: str, links: Collection[LinkFact], facts: Collection[Fact], *, hops: int = 1
) -> Iterator[Facts]:
    """The records by which a trace's facts go to a key, each with the links that say why."""
    why = tuple(link for link in links if link.key == key)
    batches: dict[str, list[Fact]] = {}
    for fact in facts:
        batches.setdefault(batch_of(fact), []).append(fact)
    for batch in batches.values():
        for start in range(0, len(batch), MAX_FACTS_PER_RECORD):
            piece = batch[start : start + MAX_FACTS_PER_RECORD]
            yield Facts(episode_id=key, facts=(*piece, *why), forwarded_from=trace, hops=hops)


def is_of_conversation(facts: Facts) -> bool:
    """Whether facts are for certain of the conversation that their key names: a call says so, or the link by which they
    came does. Nobody finds a conversation's id for the key of somebody's trace."""
    key = facts.episode_id
    for fact in facts.facts:
        told = getattr(fact, _TELLERS.get(type(fact), ""), None)
        if told is not None and told.conversation_key == key != told.trace_id:
            return True
        if isinstance(fact, LinkFact) and fact.key == key and fact.source in _OF_CONVERSATIONS:
            return True
    return False


def may_complete(fact: Fact) -> bool:
    """Whether a linked trace may be whole by it: a root, which comes last as a rule, the link, or a call."""
    is_root = isinstance(fact, SpanFact) and (fact.parent_span_id is None or fact.parent_is_remote)
    return is_root or isinstance(fact, LinkFact | CallFact | ContextCallFact)


def moved(facts: Facts, parts: Parts) -> Output:
    """To the partition of its key, which this worker may not hold. `parts`: of which raw records the facts are; a link
    that asks for others' calls is of none."""
    key = episode_key(None, facts.episode_id)
    value = EPISODE_EVENTS.encode(facts)
    return Output(topic=Topic.EPISODE_EVENTS, key=key, value=value, headers=origin_header(parts))
