"""What of a history is meant: whole groups, by their first record, and all that these are made of."""

from __future__ import annotations

from tracegrad.consumers.history.recorded import RecordedEpisode, RecordedEpisodes, RecordRange
from tracegrad.consumers.history.selection import Window, bounds_of, chosen
from tracegrad.schemas.log.protocol import Offsets, TopicPartition

CALLS, SPANS = TopicPartition("llm_calls", 0), TopicPartition("otlp_spans", 0)
KEPT = {CALLS: Offsets(0, 100), SPANS: Offsets(5, 100)}


def episode(id_: str, group: str, *parts: tuple[TopicPartition, int, int]) -> RecordedEpisode:
    """Of the records named."""
    made_of = tuple(RecordRange(where, begin, end, id_) for where, begin, end in parts)
    return RecordedEpisode(id=id_, key=id_, closed_by="complete", group=group, parts=made_of)


RECORDED = RecordedEpisodes(
    [
        episode("a", "g1", (CALLS, 0, 5), (SPANS, 5, 9)),
        episode("b", "g1", (CALLS, 20, 25), (SPANS, 30, 31)),
        episode("c", "g2", (CALLS, 10, 12), (SPANS, 9, 12)),
        episode("d", "g3", (CALLS, 60, 70), (SPANS, 60, 61)),
    ],
    ["g2", "g1", "g2", "g3"],
)


def test_a_group_is_chosen_whole_by_its_first_record() -> None:
    """One that began before the window is not in it, however late its last member came; one that began in it is, though
    it ended behind it."""
    window = Window(begin={CALLS: 8, SPANS: 8}, end={CALLS: 65, SPANS: 65})
    assert [one.id for one in chosen(RECORDED, window).episodes] == ["c", "d"]
    assert [one.id for one in chosen(RECORDED, Window(end={CALLS: 10, SPANS: 9})).episodes] == ["a", "b"]
    assert chosen(RECORDED, Window()) is RECORDED


def test_a_group_is_chosen_whole_by_any_of_its_episodes_that_fits() -> None:
    """Where a window is given too, both must hold."""
    assert [one.id for one in chosen(RECORDED, Window(), {"b", "d", "of another run"}).episodes] == ["a", "b", "d"]
    window = Window(begin={CALLS: 8, SPANS: 8})
    assert [one.id for one in chosen(RECORDED, window, {"b", "d"}).episodes] == ["d"]
    assert [one.id for one in chosen(RECORDED, Window(), set()).episodes] == []
    assert chosen(RECORDED, Window(), {"b", "d"}).order == ("g1", "g3")


def test_nobody_waits_for_a_group_that_is_not_chosen() -> None:
    """Of the order only the chosen are left: what follows one that never comes would be held until the end."""
    window = Window(begin={CALLS: 8, SPANS: 8})
    assert chosen(RECORDED, window).order == ("g2", "g3")
    conversation = episode("a trace", "its conversation", (CALLS, 20, 21))
    captured = RecordedEpisodes([*RECORDED.episodes, conversation], ["g1", "a trace", "g3"])
    assert chosen(captured, window).order == ("a trace", "g3")


def test_as_much_is_read_as_the_episodes_need() -> None:
    """Before the window's begin and behind its end; never what is gone, or was before the run."""
    window = Window(begin={CALLS: 15, SPANS: 15}, end={CALLS: 22, SPANS: 22})
    of_b = RecordedEpisodes([RECORDED.episodes[1]])
    assert bounds_of(of_b, window, KEPT, {}) == {CALLS: Offsets(15, 25), SPANS: Offsets(15, 31)}
    earlier = Window(begin={CALLS: 1, SPANS: 15})
    assert bounds_of(of_b, earlier, KEPT, {CALLS: 3})[CALLS] == Offsets(3, 100)
    unused = TopicPartition("rewards", 0)
    assert bounds_of(of_b, Window(begin={unused: 4}), {unused: Offsets(2, 5)}, {}) == {unused: Offsets(4, 5)}
    assert bounds_of(RECORDED, Window(), KEPT, {CALLS: 3}) == {CALLS: Offsets(3, 100), SPANS: Offsets(5, 100)}


def test_order_is_that_of_first_occurrence() -> None:
    """A group that a killed worker wrote twice counts where it stood first."""
    assert RECORDED.order == ("g2", "g1", "g3")


def test_nobody_waits_for_records_that_are_gone() -> None:
    """They are counted, of each episode."""
    recorded = RecordedEpisodes([episode("a", "g1", (CALLS, 0, 5), (SPANS, 5, 9))])
    assert recorded.give_up({CALLS: Offsets(3, 100), SPANS: Offsets(5, 100)}) == 3
    assert (recorded.episodes[0].num_missing, recorded.episodes[0].num_awaited) == (3, 6)
