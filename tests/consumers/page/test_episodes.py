"""An episode, a group, the list of groups: what records tell is shown, and nothing that none tells."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.consumers.audit.small_run import long_run, memory_log
from tests.consumers.index.indexing import index_of
from tests.consumers.page.looking import board_over, draw, elements_of, long_board, words
from tests.streams.make import RUN_HASH, TOPICS
from tracegrad.consumers.episode_facts import KINDS
from tracegrad.consumers.index.group_facts import groups_where
from tracegrad.consumers.index.lineage import Lineage
from tracegrad.consumers.index.query import Question, find
from tracegrad.consumers.index.subject import Kind
from tracegrad.consumers.page.board import Board
from tracegrad.consumers.page.episodes.episode import COLORS, EpisodeView, view_of
from tracegrad.consumers.page.episodes.group_list import find_groups
from tracegrad.consumers.page.episodes.records import facts_of_group, read_episodes, read_spans, read_trained
from tracegrad.consumers.page.episodes.transcript import call_transcripts
from tracegrad.consumers.page.render import render
from tracegrad.schemas.errors import RequestError
from tracegrad.schemas.ids import RunHash
from tracegrad.schemas.log.where import parse
from tracegrad.schemas.reasons import reason_text
from tracegrad.schemas.records.episodes import AppliedReward
from tracegrad.schemas.records.tokens import ids_to_bytes, logprobs_to_bytes
from tracegrad.schemas.records.training import ADVANTAGES, CallAdvantage, GroupAdvantages
from tracegrad.schemas.topics import Topic
from tracegrad.streams.credit.strategies.strategy import CallCredit
from tracegrad.streams.explain import ExplainedCall, ReturnPart


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Board:
    """Of a run with a retry, a rollback, a deadline, a second epoch."""
    parts = (
        ReturnPart("final", "", 7.0, 1.0),
        ReturnPart("air:tool_success", "c", 0.25, 1.0, "tool calc status=succeeded"),
    )
    told = ExplainedCall("c", CallCredit(7.25, "a:0"), parts)
    return long_board(
        tmp_path_factory.mktemp("run"),
        explain=lambda episode, _: {call.call_id: told for call in episode.calls},
    )


@pytest.fixture
def episodes(board: Board) -> list[dict[str, object]]:
    """What the index knows of each."""
    with board.index() as connection:
        return list(find(connection, Question(order_by="at")))


@pytest.fixture
def trained(episodes: list[dict[str, object]]) -> dict[str, object]:
    """One that a step trained on."""
    return next(facts for facts in episodes if facts["step"] is not None)


def hrefs(html: str) -> Iterator[str]:
    """Links, without what HTML escapes."""
    for found in re.finditer(r'href="(/[^"]*)"', html):
        yield found[1].replace("&amp;", "&")


def drawn(seen: EpisodeView) -> str:
    """Of an episode that no log holds."""
    return render("episodes/episode.html", {"seen": seen, "colors": COLORS})


def test_every_episode_of_a_run_is_shown(board: Board, episodes: list[dict[str, object]]) -> None:
    """Superseded, aborted and open ends too; each with its calls, its reward, and what trained on it."""
    assert len(episodes) > 8
    for facts in episodes:
        html = draw(board, f"/episode/{facts['episode']}")
        _, text = elements_of(html)
        assert str(facts["episode"]) in text
        assert html.count('class="message assistant') == facts["calls"]
        if facts["step"] is not None:
            assert f"trained by step {facts['step']}" in text
        if facts["excluded"]:
            assert f"left out: {reason_text(str(facts['excluded']))}" in text


def test_an_episode_tells_what_was_read_written_and_why_it_is_worth_that(
    board: Board, trained: dict[str, object]
) -> None:
    """The tokens' own text, special ones too; how the call joined its span; the parts of its return."""
    html = draw(board, f"/episode/{trained['episode']}?color=logprob")
    _, text = elements_of(html)
    assert "w1 w2 " in text and "w3 w4 " in text
    assert 'title="logprob -0.500"' in html
    assert "joined by" in text and "why it is worth 7.25" in text and "tool calc status=succeeded" in text
    assert re.search(r"return \S+", text)
    assert "advantage" not in re.sub(r"tokens by .*", "", text), "no record tells one"


def test_spans_are_those_that_the_episode_was_made_of(board: Board, trained: dict[str, object]) -> None:
    """And no span of another one, though they lie on the same partition."""
    html = draw(board, f"/episode/{trained['episode']}")
    assert html.count("<li class=") == trained["spans"] == 2
    assert "calculator" in html
    assert read_spans(board.needed_log(), TOPICS, None) == []


def test_a_beginning_of_an_id_is_enough_and_a_wrong_one_says_so(
    board: Board, episodes: list[dict[str, object]]
) -> None:
    """A star in an id is no pattern."""
    id_ = str(episodes[0]["episode"])
    assert id_ in draw(board, f"/episode/{id_[:31]}")
    for path in ("/episode/", "/episode/zz", "/episode/*", "/group/*", "/group/", "/group/" + "0" * 24):
        with pytest.raises(RequestError) as told:
            draw(board, path)
        assert told.value.status == 404


def test_a_group_goes_from_best_to_worst_with_the_rule_that_paid(board: Board, trained: dict[str, object]) -> None:
    """Returns are those of the group's record; what the trainer made of them no record tells."""
    group = str(trained["group"])
    with board.index() as connection:
        facts = facts_of_group(connection, group)
        credit = read_trained(board.needed_log(), TOPICS, connection, group)
    assert credit is not None
    assert len(credit.calls) == sum(one["calls"] for one in facts if one["final"])
    html = draw(board, f"/group/{group}")
    shown = [float(value) for value in re.findall(r'class="reward[^"]*">([-0-9.]+)<', html)]
    assert shown == sorted(shown, reverse=True) and html.count('class="reward') == len(facts)
    assert "No record tells the advantages" in html


def test_an_episode_names_the_rules_that_paid_it(board: Board, trained: dict[str, object]) -> None:
    """With what each paid, before one opens a call."""
    small = read_episodes(board.needed_log(), TOPICS, [trained])[str(trained["episode"])].episode
    call = msgspec.structs.replace(small.calls[0], rewards=(AppliedReward(rule="air:tool_success", value=0.5),))
    paid = msgspec.structs.replace(small, calls=(call, call))
    html = drawn(view_of(trained, paid, None, [], Lineage(asked="x", kind=Kind.EPISODE), {}))
    assert "<code>air:tool_success</code> 1 in 2 calls" in html.split("by rules</dt>")[1]


def test_a_group_that_trained_nothing_says_why_at_its_head(board: Board, episodes: list[dict[str, object]]) -> None:
    """As the list of groups does."""
    facts = next(facts for facts in episodes if facts["excluded"] == "given_up" and facts["step"] is None)
    head = draw(board, f"/group/{facts['group']}").split('class="sum"')[1].split("</p>")[0]
    assert "left out: given_up: No attempt of it came to an end" in head


def test_the_list_leads_to_every_group(board: Board, episodes: list[dict[str, object]]) -> None:
    """And each link of it answers."""
    html = draw(board, "/groups")
    assert {one.rpartition("/")[2] for one in hrefs(html) if one.startswith("/group/")} == {
        str(facts["group"]) for facts in episodes
    }
    for link in hrefs(html):
        draw(board, link)


@pytest.mark.parametrize(
    "where", ["", "reward=1", "purpose=validation", "tools_failed>0", "excluded!=none", "final=no"]
)
def test_a_filter_finds_the_groups_of_the_episodes_that_fit(
    board: Board, episodes: list[dict[str, object]], where: str
) -> None:
    """The same as `episodes --where` finds, by group; page by page nothing twice and nothing left out."""
    terms = parse(where, KINDS)
    with board.index() as connection:
        fitting = {str(facts["group"]) for facts in find(connection, Question(terms=terms))}
        seen: list[str] = []
        before = None
        while page := groups_where(connection, Question(terms=terms), before=before, limit=2):
            seen += [one.group for one in page]
            before = page[-1].at_ms, page[-1].place
    assert sorted(seen) == sorted(fitting)


def test_a_search_finds_by_name_and_by_id(board: Board, episodes: list[dict[str, object]]) -> None:
    """Of a task, an agent, or how an id begins; what is nowhere finds nothing."""
    facts = episodes[0]
    with board.index() as connection:
        for text in (str(facts["task"]), str(facts["episode"])[:12], str(facts["group"])):
            assert facts["group"] in {one.group for one in find_groups(connection, {"q": text}).rows}, text
        assert find_groups(connection, {"q": "nowhere to be found"}).rows == []


def test_terms_that_are_not_understood_are_told(board: Board) -> None:
    """In the page, with the place; no group is shown, which a wrong filter would seem to have chosen."""
    html = draw(board, "/groups?where=reward%3D%3D%3D1")
    assert 'class="trouble"' in html and "/group/" not in html
    assert "Where: expected" in html and "--where" not in html, "as the page calls it"


def test_a_run_without_a_tokenizer_shows_what_records_tell(tmp_path: Path) -> None:
    """The answers as the agent saw them, without prompts."""
    board = long_board(tmp_path, pieces=None)
    with board.index() as connection:
        facts = next(facts for facts in find(connection, Question()) if facts["calls"])
    _, text = elements_of(draw(board, f"/episode/{facts['episode']}"))
    assert "ok" in text and "w1" not in text


def test_a_large_episode_opens_and_says_what_it_leaves_out(board: Board, trained: dict[str, object]) -> None:
    """Of 300 calls with 3,000 tokens each a page of less than 2 MB; all of them where that is asked for."""
    small = read_episodes(board.needed_log(), TOPICS, [trained])[str(trained["episode"])].episode
    long_call = msgspec.structs.replace(
        small.calls[0],
        sampled_ids=ids_to_bytes([7] * 3_000),
        logprobs=logprobs_to_bytes([-0.1] * 3_000),
        content="long " * 3_000,
    )
    large = msgspec.structs.replace(small, calls=(long_call,) * 300)
    shown = call_transcripts(large, words)
    assert len(shown) < 300 and all(len(one.tokens) < one.call.num_sampled == 3_000 for one in shown)
    whole = call_transcripts(large, words, is_whole=True)
    assert len(whole) == 300 and len(whole[0].tokens) == 3_000 and whole[0].num_cut == 0
    lineage = Lineage(asked="x", kind=Kind.EPISODE)
    html = drawn(view_of(trained, large, None, [], lineage, {}, pieces=words))
    assert len(html) < 2_000_000 and "calls more" in html


def test_advantages_are_those_of_the_step_that_stands(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Not of one that a later trainer made void; tokens are shaded by them, in the group and in the episode."""
    log = memory_log(long_run(tmp_path_factory.mktemp("weights")))
    board = board_over(log, tmp_path)
    with board.index() as connection:
        facts = next(facts for facts in find(connection, Question(order_by="at")) if facts["step"] is not None)
        (epoch,) = connection.execute("SELECT epoch FROM steps WHERE stands AND step = ?", (facts["step"],)).fetchone()
        trained = read_trained(board.needed_log(), TOPICS, connection, facts["group"])
    assert trained is not None
    for of_epoch, value in ((epoch + 50, 9.0), (epoch, 0.75)):
        calls = tuple(
            CallAdvantage(call_id=call, mean=value, low=value, high=value, num_tokens=1) for call in trained.calls
        )
        told = GroupAdvantages(
            run=RunHash(RUN_HASH),
            policy="policy",
            step=facts["step"],
            epoch=of_epoch,
            group_id=facts["group"],
            calls=calls,
        )
        log.append(TOPICS.name(Topic.ADVANTAGES), b"policy", ADVANTAGES.encode(told), (), 0)
    index_of(log, tmp_path).close()
    html = draw(board, f"/episode/{facts['episode']}")
    assert 'class="talk by-advantage"' in html and html.count("shade4") >= facts["calls"]
    _, text = elements_of(html)
    assert "advantage 0.750" in text and "9.000" not in text
    _, text = elements_of(draw(board, f"/group/{facts['group']}"))
    assert "advantage 0.750" in text and "No record tells" not in text


def test_a_run_of_before_has_no_such_topic(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """It is indexed all the same, and its group says that no record tells."""
    log = memory_log(long_run(tmp_path_factory.mktemp("weights")))
    del log._topics[TOPICS.name(Topic.ADVANTAGES)]
    board = board_over(log, tmp_path)
    with board.index() as connection:
        facts = next(facts for facts in find(connection, Question(order_by="at")) if facts["step"] is not None)
    index_of(log, tmp_path).close()
    assert "No record tells the advantages" in draw(board, f"/group/{facts['group']}")
