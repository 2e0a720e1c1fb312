"""Recorded spans as a history that nobody's gateway saw: `python -m tests.frameworks.told_history` counts their calls.

In: recordings of agents that nobody started; of these the spans and log events alone. Out: the episodes that a replay
with `[history]` makes of them, by the scripted engine's template; beside them the calls as the gateway recorded them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from tests.fake_engine.model_folder import write_model_folder
from tests.frameworks.fixture import Recording, fixtures, load
from tests.frameworks.told_calls import plain_text
from tests.frameworks.true_requests import true_calls, true_tools
from tests.producers.llm_gateway.harness import full_prompt
from tests.streams.make import TOPICS, config
from tracegrad.compose.history.history_model import load_history_renderer
from tracegrad.compose.history.rendering import ExactIdRules
from tracegrad.consumers.history.recorded import RecordedEpisodes
from tracegrad.consumers.history.refold import Refold
from tracegrad.schemas.fold import Output
from tracegrad.schemas.ids import RunHash
from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.reasons import Reason
from tracegrad.schemas.records.episodes import EPISODES, Episode, EpisodeCall
from tracegrad.schemas.records.tokens import ids_from_bytes
from tracegrad.schemas.topics import Stage, Topic
from tracegrad.streams.assemble.fold import Assemble
from tracegrad.streams.assemble.told_calls import AgentTools, ToldCalls
from tracegrad.streams.config import HistoryConfig, SelectConfig
from tracegrad.streams.folds import build_fold
from tracegrad.streams.normalize.told.read_call import joined

UNTOLD = frozenset({Reason.NO_PROMPT_TOLD, Reason.NO_ANSWER_TOLD})
"""Of a call that tells no content, or half of it."""
OTHER_RUN = RunHash("0" * 8)
HISTORY = HistoryConfig(models=("*",))
Words = tuple[str, str]
"""Of a call: its prompt and its answer, as the tokens spell them."""


def told_episodes(
    recording: Recording, model: Path, history: HistoryConfig = HISTORY, tools: AgentTools | None = None
) -> list[Episode]:
    """What a replay makes of its spans and log events."""
    rules = config(run_hash=OTHER_RUN)
    rules = msgspec.structs.replace(rules, history=history, select=SelectConfig(capture_all=True))
    tokens = load_history_renderer(model, ExactIdRules()).tokens
    told = ToldCalls(history, rules.policies[0], OTHER_RUN, tools or {}, tokens, joined)
    folds: Any = {stage: build_fold(stage, rules, TOPICS) for stage in (Stage.NORMALIZE, Stage.CREDIT)}
    folds[Stage.ASSEMBLE] = Assemble(rules, TOPICS, told_calls=told)
    refold = Refold(folds, lambda *_: (), lambda episode, _: episode, TOPICS, RecordedEpisodes())
    outputs, offsets = list[Output](), Counter[str]()
    for raw in recording.records:
        if raw.topic not in ("otlp_spans", "otlp_logs"):
            continue
        name, at = TOPICS.name(Topic(raw.topic)), offsets.total()
        outputs += refold.fold(
            Record(topic=name, partition=0, offset=offsets[name], key=raw.key, value=raw.value, timestamp_ms=1_000 + at)
        )
        offsets[name] += 1
    outputs += refold.finish()
    return [EPISODES.decode(one.value) for one in outputs if one.topic is Topic.EPISODES]


def true_words(recording: Recording) -> set[Words]:
    """Of all its calls."""
    calls = true_calls(recording)
    return {(plain_text(full_prompt(call, calls)), plain_text(ids_from_bytes(call.sampled_ids))) for call in calls}


def words(call: EpisodeCall) -> Words:
    """Of a told call, whose prompt is whole."""
    return plain_text(ids_from_bytes(call.suffix_ids)), plain_text(ids_from_bytes(call.sampled_ids))


def captured() -> list[Path]:
    """The recordings of agents that nobody started."""
    return [path for path in fixtures() if path.name.endswith("-captured.msgpack.xz")]


def reasons(recording: Recording, model: Path, tools: AgentTools | None = None) -> Counter[str]:
    """Why its told calls train, or do not."""
    return Counter(call.masked for episode in told_episodes(recording, model, tools=tools) for call in episode.calls)


def shares(model: Path, tell: Callable[[str], None] = lambda line: None) -> Counter[str]:
    """Of all recordings the calls: made, told, with content, and how many train without and with a file of tools."""
    found = Counter[str]()
    for recording in map(load, captured()):
        without, with_file = reasons(recording, model), reasons(recording, model, true_tools(recording))
        tell(f"{recording.name:48}{len(recording.calls):5}{without.total():5}  {dict(without)}  {dict(with_file)}")
        found += Counter(
            calls=len(recording.calls),
            told=without.total(),
            content=sum(num for reason, num in without.items() if reason not in UNTOLD),
            without=without[Reason.TEXT],
            with_file=with_file[Reason.TEXT],
        )
    return found


def main() -> None:
    """Prints, of each, how many calls were made, how many are told, and why they train or do not: without a file of
    tools, and with one; of all, how many train."""
    with TemporaryDirectory() as folder:
        print(dict(shares(write_model_folder(Path(folder)), print)))


if __name__ == "__main__":
    main()
