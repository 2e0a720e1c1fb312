"""normalize, assemble and credit over what lies on the log already: the workers' own pure folds, in one program.

    raw record --> normalize --> facts, held by episode --> whole: assemble --> episode --> credit --> transitions

In: raw records of a source run, and what that run recorded of its episodes (recorded.py). Out: the records of
`episodes`, `transitions` and `dead_letters` of a new run. Invariants:

- An episode is made when all records have been read that it was made of, and of nothing else. So neither when records
  were read nor how long anything took decides what is in it.
- A group that the source wrote has the members that it had then, and closes behind the last of them.
- Groups leave in the order in which the source trained them; those that it never trained follow.
- What is in no episode of the source is left out: it was late, not selected, or its episode never closed.
- Where nothing was recorded, the folds close as workers' do, by closes that the records' own times propose, never now.
  Where these go far back, as in files that hold one trace behind another, time passes by what is read.
- Feedback that came behind an episode's close counts where the source says that it counted.

Failure: bad input is a dead letter, as the folds make it. An episode that lacks records which are gone is made of the
rest, and counted.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from tracegrad.schemas.fold import Fold, Output
from tracegrad.schemas.keys import group_key
from tracegrad.schemas.log.protocol import Offsets, Position, Record, TopicPartition
from tracegrad.schemas.records.episodes import CLOSED, EPISODE_SCORES, FEEDBACK
from tracegrad.schemas.records.facts import Close, whose_facts
from tracegrad.schemas.topics import Stage, Topic, Topics

from .recorded import Claim, RecordedEpisode, RecordedEpisodes
from .span_account import SpanAccount

RateAgain = Callable[[bytes, Sequence[bytes]], bytes]
"""(an episode's record, feedback that came behind its close) -> the record as credit takes it."""
MakeAgain = Callable[[str, str, str, Sequence[Output]], Sequence[Output]]
"""(episode id, key, why it closed, facts as normalize makes them) -> the records of the episode."""
_TICK_MS = 500
"""Of the records' time: workers look at their clocks twice a second too."""
_TICK_RECORDS = 1000
_IDLE_BYTES = 16 * 1024 * 1024
"""Of records that lie behind the time of others by more than a silence: read besides them, they are one."""
_ROUNDS = 45
"""Beyond the last record, each twice as far as the one before, so that what only falls silent does not close by its
deadline. Closes lead to closes: a trace that is forwarded, the conversation that it goes to, its group."""


@dataclass
class _OpenEpisode:
    """Of an episode whose records have not all been read."""

    facts: list[Output] = field(default_factory=list)
    said: list[bytes] = field(default_factory=list)
    """Feedback that came behind its close."""


class Refold:
    """One pass over a source's records.

    Args:
        folds: of the three stages, empty, by the rules of the new run.
        make_again: of assemble, by the same rules.
        rate_again: of credit.
        topics: the new run's.
        recorded: by the source; with no episodes, all that comes is assembled anew.
        idle_s: the silence that closes an episode, by the rules of the new run.
        clock_rate: of the clock that closes what is assembled anew, below 1 where records are not in the order of time:
            what is read late would find its episode closed.
    """

    def __init__(
        self,
        folds: Mapping[Stage, Fold],
        make_again: MakeAgain,
        rate_again: RateAgain,
        topics: Topics,
        recorded: RecordedEpisodes,
        idle_s: float = 10.0,
        clock_rate: float = 1.0,
    ) -> None:
        self.counts: Counter[str] = Counter()
        """What was made: `episodes`, `groups`; `incomplete` episodes among them, `lost` ones of which nothing is left,
        `gone` records that these lack; `unclaimed` records of facts."""
        self.spans = SpanAccount()
        """Where nothing was recorded."""
        self._normalize, self._assemble, self._credit = (
            folds[stage] for stage in (Stage.NORMALIZE, Stage.ASSEMBLE, Stage.CREDIT)
        )
        self._make_again = make_again
        self._rate_again = rate_again
        self._topics = topics
        self._recorded = recorded
        self._clock_rate = clock_rate
        self._held: defaultdict[int, _OpenEpisode] = defaultdict(_OpenEpisode)
        """Of episodes that are not whole yet."""
        self._order = _InOrder(recorded.order)
        self._num_left = Counter(episode.group for episode in recorded.episodes if episode.is_member)
        """Group -> its members that are still to come."""
        self._members: dict[str, list[Output]] = {}
        """Group -> episodes of those that came, while others are still to come."""
        self._next: dict[TopicPartition, int] = {}
        """Where the next record is expected."""
        self._offsets: Counter[Topic] = Counter()
        self._now_ms = 0
        self._idle_ms = 1000 * idle_s
        self._latest_ms = 0
        self._passed_ms = 0.0
        """Besides what the records' times tell."""

    def give_up(self, kept: Mapping[TopicPartition, Offsets]) -> None:
        """What the log still has, before the first record: nobody waits for the rest."""
        self.counts["gone"] += self._recorded.give_up(kept)
        self._next.update((where, at.begin) for where, at in kept.items())
        for episode in self._recorded.episodes:
            if episode.num_awaited == 0:
                self.counts["lost"] += 1
                self._num_left[episode.group] -= episode.is_member
                outputs = [*self._order.pass_by(episode.id)] if episode.is_captured else []
                assert not outputs  # nothing was made yet

    def fold(self, record: Record) -> Iterator[Output]:
        """The next record of a raw topic; what it leads to."""
        if record.timestamp_ms < self._latest_ms - self._idle_ms and not self._recorded.episodes:
            self._passed_ms += self._idle_ms * len(record.value or b"") / _IDLE_BYTES
        self._latest_ms = max(self._latest_ms, record.timestamp_ms)
        now_ms = int(self._latest_ms * self._clock_rate + self._passed_ms)
        # Without a clock that moves the bounds are looked at, too.
        if now_ms - self._now_ms >= _TICK_MS or record.offset % _TICK_RECORDS == 0:
            yield from self._let_pass(now_ms)
        where = TopicPartition(record.topic, record.partition)
        if self._next.get(where, record.offset) != record.offset:
            yield from self._pass_over(where, record.offset)
        self._next[where] = record.offset + 1
        here = self._recorded.at(record.position)
        for output in self._normalize.fold(record).outputs:
            if output.topic is not Topic.EPISODE_EVENTS:
                yield output
            elif self._recorded.episodes:
                self._hold(output, here)
            else:
                yield from self._assembled(output)
        for claim in here:
            if claim.is_feedback and record.value is not None:
                self._held[claim.episode].said.append(record.value)
            if self._recorded.is_whole_with(claim.episode):
                yield from self._make(claim.episode)

    def finish(self) -> Iterator[Output]:
        """There are no more records: all that is open closes."""
        for number, episode in enumerate(self._recorded.episodes):
            if number in self._held or episode.num_awaited > 0:
                episode.num_missing += max(episode.num_awaited, 0)
                yield from self._make(number)
        for number in range(_ROUNDS):
            yield from self._propose(self._now_ms / 1000 + 2.0**number)
        yield from self._order.rest()

    def _pass_over(self, where: TopicPartition, to: int) -> Iterator[Output]:
        """What readers did not give before this record, since no key of the source vouches for it, nobody awaits."""
        for offset in range(self._next[where], to) if self._recorded.episodes else ():
            for claim in self._recorded.at(Position(*where, offset)):
                episode = self._recorded.episodes[claim.episode]
                episode.num_missing += episode.is_exact
                if self._recorded.is_whole_with(claim.episode):
                    yield from self._make(claim.episode)

    def _hold(self, output: Output, here: Sequence[Claim]) -> None:
        """Facts go to the episode that they were in; to two, where a killed worker's came again when one had closed."""
        key = whose_facts(output.value)
        claims = [claim for claim in here if claim.key == key and not claim.is_feedback]
        # One that names more than it was made of may name what another was made of.
        exact = [claim for claim in claims if self._recorded.episodes[claim.episode].is_exact]
        for claim in exact or claims[:1]:
            self._held[claim.episode].facts.append(output)
        self.counts["unclaimed"] += not claims

    def _make(self, number: int) -> Iterator[Output]:
        episode, held = self._recorded.episodes[number], self._held.pop(number, _OpenEpisode())
        self.counts["incomplete"] += episode.num_missing > 0
        for output in self._make_again(episode.id, episode.key, episode.closed_by, held.facts):
            yield output
            if output.topic is Topic.EPISODES:
                self.counts["episodes"] += 1
                yield from self._credit_again(episode, output, held.said)
        yield from self._pass_by(episode)

    def _pass_by(self, episode: RecordedEpisode) -> Iterator[Output]:
        """Behind its last member a group closes, if in part, as the source's did; and nobody waits for one that does
        not, as by the rules of now: what has to be held of others is bounded."""
        self._num_left[episode.group] -= episode.is_member
        if episode.is_captured:
            yield from self._order.pass_by(episode.id)
        elif episode.is_member and self._num_left[episode.group] == 0 and self._order.awaits(episode.group):
            for output in self._members.pop(episode.group, ()):
                yield from self._credited(self._record(output))
            if self._order.awaits(episode.group):
                yield from self._close(episode.group, episode.key)
            yield from self._order.pass_by(episode.group)

    def _close(self, id_: str, key: str) -> Iterator[Output]:
        """A group that credit waits with, on the source's word."""
        close = EPISODE_SCORES.encode(Close(episode_id=id_, reason=FEEDBACK))
        yield from self._credited(
            self._record(Output(topic=Topic.EPISODE_SCORES, key=group_key(None, key), value=close))
        )

    def _credit_again(self, episode: RecordedEpisode, output: Output, said: Sequence[bytes]) -> Iterator[Output]:
        """A captured one with all that was said of it, behind which nobody is waited for."""
        if not episode.is_member:
            return
        if not episode.is_captured and self._order.awaits(episode.group):
            # Given to credit together: how many others close meanwhile, and what room there is, was the source's.
            self._members.setdefault(episode.group, []).append(output)
            return
        if episode.is_captured:
            output = msgspec.structs.replace(output, value=self._rate_again(output.value, said))
        num_open = self._credit.num_open
        yield from self._credited(self._record(output))
        if episode.is_captured and self._credit.num_open > num_open:
            yield from self._close(episode.id, episode.key)

    def _made(self, output: Output) -> Iterator[Output]:
        yield output
        if output.topic is Topic.EPISODES:
            self.counts["episodes"] += 1
            yield from self._credited(self._record(output))

    def _let_pass(self, to_ms: int) -> Iterator[Output]:
        """The clock of the records, which never goes back. Silence begins where it stood, not where it stands."""
        if not self._recorded.episodes:
            yield from self._propose(self._now_ms / 1000)
            yield from self._propose(to_ms / 1000)
        self._now_ms = to_ms

    def _propose(self, now_s: float) -> Iterator[Output]:
        for output in self._assemble.propose(now_s):
            yield from self._assembled(output)
        for output in self._credit.propose(now_s):
            yield from self._credited(self._record(output))

    def _assembled(self, first: Output) -> Iterator[Output]:
        """A record of `episode_events`, and those that follow from it."""
        waiting = deque([first])
        while waiting:
            is_new = waiting[0] is first
            record = self._record(waiting.popleft())
            self.spans.add_record(record, is_new=is_new)
            emission = self._assemble.fold(record)
            self.spans.settle(emission)
            for output in emission.outputs:
                if output.topic is Topic.EPISODE_EVENTS:
                    waiting.append(output)
                elif output.topic is Topic.EPISODE_SCORES:
                    yield from self._credited(self._record(output))
                else:
                    yield from self._made(output)

    def _credited(self, record: Record) -> Iterator[Output]:
        emission = self._credit.fold(record)
        groups = [output for output in emission.outputs if output.topic is Topic.TRANSITIONS]
        yield from (output for output in emission.outputs if output.topic is not Topic.TRANSITIONS)
        if emission.marker is not None:
            self.counts["groups"] += bool(groups)
            yield from self._order.put(CLOSED.decode(emission.marker.value).id, groups)

    def _record(self, output: Output) -> Record:
        """As the next stage would read it; all keys in one partition, for there is one worker."""
        offset = self._offsets[output.topic]
        self._offsets[output.topic] += 1
        return Record(
            topic=self._topics.name(output.topic),
            partition=0,
            offset=offset,
            key=output.key,
            value=output.value,
            headers=output.headers,
            timestamp_ms=self._now_ms,
        )


class _InOrder:
    """Lets groups out in a given order; those that it does not name last, as they come."""

    def __init__(self, order: Sequence[str]) -> None:
        self._order = order
        self._places = {id_: place for place, id_ in enumerate(order)}
        self._next = 0
        self._waiting: dict[str, Iterable[Output]] = {}

    def put(self, id_: str, outputs: Sequence[Output]) -> Iterator[Output]:
        """A group has closed, with its records, or none."""
        if id_ not in self._places and self._next == len(self._order):
            yield from outputs
        elif outputs or id_ in self._places:
            self._waiting[id_] = outputs
        yield from self._let_go()

    def awaits(self, id_: str) -> bool:
        """Whether it has its place, and has not come."""
        return self._places.get(id_, -1) >= self._next and id_ not in self._waiting

    def pass_by(self, id_: str) -> Iterator[Output]:
        """Nobody waits for this one any more."""
        if self.awaits(id_):
            self._waiting[id_] = ()
        yield from self._let_go()

    def _let_go(self) -> Iterator[Output]:
        while self._next < len(self._order) and self._order[self._next] in self._waiting:
            yield from self._waiting.pop(self._order[self._next])
            self._next += 1

    def rest(self) -> Iterator[Output]:
        """All that is left, whatever is missing between."""
        known = sorted((id_ for id_ in self._waiting if id_ in self._places), key=self._places.__getitem__)
        for id_ in (*known, *(id_ for id_ in self._waiting if id_ not in self._places)):
            yield from self._waiting[id_]
        self._waiting.clear()
        self._next = len(self._order)
