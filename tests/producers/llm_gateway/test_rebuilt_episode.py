"""An attempt whose gateway was restarted: its episode, of records that two processes wrote."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fake_engine.scripted import Reply
from tests.producers.keys import RUN_HASH
from tests.producers.llm_gateway.harness import ASK, ATTEMPT, ROLLOUT, rig
from tests.producers.llm_gateway.test_rebuild import begin_again, end, said
from tests.streams.make import Streams, config, event, reward
from tracegrad.schemas.records.episodes import EPISODES
from tracegrad.schemas.records.rollouts import GroupRef
from tracegrad.schemas.topics import Topic

pytestmark = pytest.mark.slow


async def test_the_episode_holds_each_call_and_trains_each_answer_once() -> None:
    """All records of the attempt are there, whichever process wrote them, and it closes at once: nothing is awaited."""
    async with rig() as r:
        r.engine.replies += [Reply("one"), Reply("unseen"), Reply("two")]
        await r.begin()
        more = [*ASK, said(await r.chat(ASK)), {"role": "user", "content": "and?"}]
        await r.chat(more)
        async with r.restarted() as again:
            await begin_again(again)
            await again.chat(more)
            await end(again)
            streams = Streams(config(run_hash=RUN_HASH))
            group = GroupRef(id=RUN_HASH + "f" * 16, size=1, member=0, index=0)
            about: dict[str, Any] = {"attempt_id": ATTEMPT, "group": group, "calls_closed": True}
            streams.feed(*again.records(), reward(ROLLOUT, attempt_id=ATTEMPT), event(ROLLOUT, **about))
            (episode,) = (EPISODES.decode(value) for value in streams.values(Topic.EPISODES))
            assert episode.closed_by == "complete"
            assert [(call.content, call.masked) for call in episode.calls] == [
                ("one", ""),
                ("unseen", "superseded"),
                ("two", ""),
            ]
