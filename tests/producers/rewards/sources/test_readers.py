"""What each vendor's reader makes of what its server said: two readings, between which people changed their minds."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.producers.rewards.sources.record import NAMES, SINCE
from tests.producers.rewards.sources.replay import ANSWER, SESSION, TRACE, Replay, load
from tracegrad.producers.rewards.config import SourceConfig, SourceKind
from tracegrad.producers.rewards.sources import langfuse, mlflow, phoenix
from tracegrad.producers.rewards.sources.found import Found, Query, Unread, answer_in, each
from tracegrad.schemas.errors import SourceError
from tracegrad.schemas.ids import new_call

READERS: dict[str, Any] = {"langfuse": langfuse, "mlflow": mlflow, "phoenix": phoenix}
Said = tuple[str, float | str | None, str | None, str]
"""(name, value, reason, what it is about)."""
THUMB: Said = ("thumb", True, "good", ANSWER)
STARS, TONE = ("stars", 4.0, None, TRACE), ("tone", "kind", None, SESSION)
NEVER: Said = ("tone", "I do not know", None, TRACE)
SAID: dict[str, tuple[set[Said], set[Said]]] = {
    "langfuse": (
        {THUMB, STARS, TONE, NEVER},
        {("thumb", False, "good", ANSWER), STARS, TONE, NEVER},
    ),
    "mlflow": ({THUMB, STARS, TONE}, {("thumb", False, "good", ANSWER), ("stars", 5.0, None, TRACE), TONE}),
    "phoenix": (
        {THUMB, STARS, TONE},
        {("thumb", False, "good", ANSWER), STARS, ("stars", 2.0, None, TRACE), TONE},
    ),
}


async def read(name: str, replay: Replay) -> list[Found | Unread]:
    """All that one reading finds."""
    pages = READERS[name].scores(replay.ask, load(name).source, NAMES, SINCE)
    return [one async for page in pages for one in page]


@pytest.mark.parametrize("name", READERS)
async def test_scores_are_read_as_the_server_gives_them(name: str) -> None:
    """Name, value, reason, and the answer, trace or conversation that each is about."""
    replay, answer_of = Replay(load(name)), getattr(READERS[name], "answer_of", None)
    for number, expected in enumerate(SAID[name]):
        replay.round = number
        said: set[Said] = set()
        for one in await read(name, replay):
            assert isinstance(one, Found) and (one.trace_id is None) != (one.conversation_id is None)
            about = one.conversation_id or one.trace_id or ""
            if answer_of and one.span_id and one.trace_id:
                about = await answer_of(replay.ask, load(name).source, one) or about
            said.add((one.name, one.value, one.reason, about))
        assert said == expected


@pytest.mark.parametrize("name", READERS)
async def test_what_was_not_changed_is_read_alike_and_what_was_keeps_its_id(name: str) -> None:
    """So that a score counts once, and a change revises; MLflow's override has the id of what it overrides."""
    replay = Replay(load(name))
    first = await read(name, replay)
    assert await read(name, replay) == first
    replay.round = 1
    before, after = ({one.id: one.at_ms for one in some} for some in (first, await read(name, replay)))
    assert before.keys() <= after.keys()
    assert all(after[id_] >= at_ms for id_, at_ms in before.items())
    assert after != before


async def test_an_empty_project_has_no_scores() -> None:
    """MLflow's answer is then an empty object, Phoenix lists nothing."""
    empty = {"langfuse": b'{"data": [], "meta": {"limit": 100}}', "mlflow": b"{}", "phoenix": b'{"data": []}'}
    for name, reader in READERS.items():

        async def ask(answer: type[Any], path: str, *, query: Query = (), body: Any = None, name: str = name) -> Any:
            return msgspec.json.decode(empty[name], type=answer)

        source = SourceConfig(kind=SourceKind(name), url="http://host")
        assert [one async for page in reader.scores(ask, source, NAMES, SINCE) for one in page] == []


@pytest.mark.parametrize(
    "raw",
    [
        b"7",
        b"null",
        b'{"id": 7}',
        b'{"id": "", "name": "thumb", "value": 1, "updatedAt": "2026-11-24T09:00:00Z"}',
        b'{"id": "a", "name": "thumb", "value": {"x": 1}, "updatedAt": "2026-11-24T09:00:00Z"}',
        b'{"id": "a", "name": "thumb", "value": 1, "updatedAt": "yesterday"}',
        b'{"id": "a", "name": "thumb", "value": 1, "updatedAt": "2026-11-24T09:00:00Z", "comment": "\\ud800"}',
        b'{"id": "\xff", "assessment_id": "\xff"}',
    ],
)
async def test_a_score_of_another_form_hurts_no_other(raw: bytes) -> None:
    """It is told by its bytes, so that it is counted once."""
    good = b'{"id": "b", "name": "thumb", "value": 1, "updatedAt": "2026-11-24T09:00:00", "subject": {"kind": "trace", '
    good += b'"id": "t", "more": [1]}, "more": {}}'
    unread, found = each([msgspec.Raw(raw), msgspec.Raw(good)], langfuse._read)
    assert isinstance(unread, Unread)
    assert found == Found(id="b", name="thumb", value=1, at_ms=1_795_510_800_000, trace_id="t")
    assert mlflow._overridden([msgspec.Raw(raw)]) == {}


@pytest.mark.parametrize(
    ("attributes", "answer"),
    [
        ({"output.value": f"it was {ANSWER}"}, ANSWER),
        ({"gen_ai.response.id": ANSWER, "input.value": new_call("ab" * 16)}, ANSWER),
        ({"output.value": f"{ANSWER} {new_call('ab' * 16)}"}, None),
        ({"gen_ai.response.id": "chatcmpl-abc"}, None),
        ({"gen_ai.response.id": "chatcmpl-" + "0f" * 16}, None),
        ({}, None),
    ],
    ids=["within a text", "own id first", "several", "another server's", "without a key", "nothing"],
)
def test_a_span_tells_of_one_answer_of_ours_or_of_none(attributes: dict[str, str], answer: str | None) -> None:
    """Else the trace is what is rated."""
    assert answer_in({key: msgspec.Raw(msgspec.json.encode(text)) for key, text in attributes.items()}) == answer


def test_an_override_of_an_override_has_the_id_of_the_first() -> None:
    """And a circle ends."""
    raws = [
        msgspec.Raw(msgspec.json.encode({"assessment_id": one, "overrides": other}))
        for one, other in (("c", "b"), ("b", "a"), ("x", "y"), ("y", "x"))
    ]
    firsts = mlflow._overridden([*raws, msgspec.Raw(b"[]")])
    body = {"assessment_name": "stars", "trace_id": "tr-1", "last_update_time": "2026-11-24T09:00:00Z"}

    def id_of(one: str, **more: Any) -> str | None:
        raw = msgspec.json.encode(body | {"assessment_id": one, "feedback": {"value": 1}} | more)
        found = mlflow._read(msgspec.Raw(raw), firsts=firsts)
        return found.id if found else None

    assert [id_of(one) for one in "abc"] == ["a"] * 3
    assert id_of("x") in ("x", "y")
    assert id_of("a", valid=False) is None


@pytest.mark.parametrize(("reason", "is_final"), [("400", True), ("403", True), ("410", True), ("500", False)])
async def test_an_observation_that_langfuse_never_tells_is_no_answer(reason: str, is_final: bool) -> None:
    """As where a release has no such route, or a key may not ask: the score is of the trace then, and not held up."""

    async def ask(*_: Any, **__: Any) -> Any:
        raise SourceError("answered", reason=reason)

    about = {"trace_id": TRACE, "span_id": "00000000000000a2"}
    found = Found(id="s", name="thumb", value=1.0, at_ms=1, **about)
    if is_final:
        assert await langfuse.answer_of(ask, load("langfuse").source, found) is None
    else:
        with pytest.raises(SourceError):
            await langfuse.answer_of(ask, load("langfuse").source, found)


async def test_a_session_that_goes_on_is_found_behind_many_that_do_not() -> None:
    """Phoenix lists those first that began last; of silent ones only so many pages are read, or each reading would read
    all that ever was."""
    silent, live = "2019-01-01T00:00:00Z", "2026-11-24T09:00:00Z"
    asked: list[str] = []

    async def ask(answer: Any, path: str, *, query: Query = (), **_: Any) -> Any:
        if path.endswith("/traces"):
            return answer(data=[])
        if path.endswith("/session_annotations"):
            asked.extend(id_ for name, id_ in query if name == "session_ids")
            return answer(data=[])
        number = int(dict(query).get("cursor", 0))
        sessions = [{"session_id": f"s-{number}", "end_time": live if number in (3, 30) else silent}]
        return msgspec.convert({"data": sessions, "next_cursor": str(number + 1)}, answer)

    pages = phoenix.scores(ask, load("phoenix").source, NAMES, SINCE)
    assert [one async for page in pages for one in page] == []
    assert asked == ["s-3"]
