"""What a real Collector wrote, to a topic and to files, is a history: read whole, and masked where it masked."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from tests.collector.running import Config, collector, configurations, export
from tests.compose.history.test_census import details, of_scope
from tests.compose.history.test_foreign_kafka import episodes_of
from tests.compose.kafka.reading import new_topic
from tests.fake_engine.model_folder import write_model_folder
from tests.frameworks.fixture import FIXTURES, Recording, load
from tests.frameworks.told_history import Words, told_episodes, true_words, words
from tests.frameworks.true_requests import true_calls
from tests.serving import until
from tests.streams.make import span
from tests.streams.normalize.rows_of_told_calls import GENAI, OI, OTEL
from tests.streams.normalize.test_told_calls import any_value
from tracegrad.compose.cli import app
from tracegrad.compose.history.exports.exported_files import list_files, read_files
from tracegrad.compose.kafka.log import KafkaLog
from tracegrad.compose.run.run_dir import RunDir
from tracegrad.schemas.log.follow import read_to_end
from tracegrad.schemas.otlp.signal import LOGS, TRACES, Signal, items_of, parsed
from tracegrad.schemas.reasons import Reason
from tracegrad.schemas.records.episodes import Episode

pytestmark = [pytest.mark.e2e, pytest.mark.kafka, pytest.mark.timeout(1500)]
_, SOURCE, READER = configurations("collector.md")
(REDACTION,) = configurations("history.md")
RECORDINGS = (
    "vercel_ai-builtin", "pydantic_ai-builtin", "openai-openinference", "langgraph-openinference", "openai-langfuse",
    "smolagents-varied-openinference", "langgraph-varied-openinference-stream", "openai-events",
)  # fmt: skip
FORMS: dict[str, Config] = {
    "rotated-json": {"rotation": {"max_megabytes": 1}},
    "proto": {"format": "proto"},
    "proto-zstd": {"format": "proto", "compression": "zstd"},
}
NATIVE = "--feature-gates=exporter.file.nativeCompression"
"""With it a file is packed by zstd as a whole, and not each of its messages."""


class Written(NamedTuple):
    """What Collectors made of the recordings."""

    topics: dict[Signal, str]
    folder: Path
    """A folder for each form."""


def with_files(config: Config, forms: dict[str, Config], folder: Path, *processors: str) -> Config:
    """A configuration of the docs whose pipelines of spans and log records end in files, too."""
    result: Config = json.loads(json.dumps(config))
    pipelines: Config = {}
    for form, options in forms.items():
        path = folder / form / "spans.json"
        result["exporters"][f"file/{form}"] = {"path": str(path), "create_directory": True, **options}
    for signal in ("traces", "logs"):
        pipeline = result["service"]["pipelines"].get(signal) or result["service"]["pipelines"]["traces"]
        pipelines[signal] = {**pipeline, "processors": [*processors]}
        pipelines[signal]["exporters"] = [name for name in result["exporters"] if not name.startswith("otlphttp")]
    result["service"]["pipelines"] = pipelines
    return result


def reader(topics: dict[Signal, str]) -> Config:
    """The docs' Reader, of log records too, without the exporter that it has."""
    config = {**READER, "exporters": {}}
    config["receivers"]["kafka"]["logs"] = {"topics": [topics[LOGS]], "encoding": "otlp_proto"}
    return config


def items_in(signal: Signal, values: Iterable[bytes]) -> list[list[Any]]:
    """Of each request."""
    return [[item for *_, item in items_of(signal, parsed(signal, value))] for value in values]


def on_topic(log: KafkaLog, topic: str, signal: Signal) -> list[list[Any]]:
    """The items of each record."""
    return items_in(signal, (record.value or b"" for record in read_to_end(log, topic)))


def num_in(folder: Path) -> int:
    """Items in files, of which the last may be half written."""
    is_begun = any(file.stat().st_size for file in folder.iterdir())
    found = read_files(list_files(str(folder))) if is_begun else ()
    return sum(1 for one in found if one.request is not None for _ in items_of(one.signal, one.request))


@pytest.fixture(scope="module")
def recordings() -> list[Recording]:
    """What agents left under several frameworks, in the order of time; the last has its messages in log records."""
    return [load(FIXTURES / f"{name}-captured.msgpack.xz") for name in RECORDINGS]


@pytest.fixture(scope="module")
def written(
    recordings: list[Recording],
    otelcol: Path,
    kafka_log: KafkaLog,
    broker: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Written:
    """By the docs' Source with a batch processor, and files beside the topics; by their Reader other files."""
    folder, topics = tmp_path_factory.mktemp("written"), {TRACES: new_topic(kafka_log, 3), LOGS: new_topic(kafka_log)}
    sent = {
        signal: [raw.value for one in recordings for raw in one.records if raw.topic == signal.topic.value]
        for signal in topics
    }
    names = {"SPANS_TOPIC": topics[TRACES], "LOGS_TOPIC": topics[LOGS], "KAFKA_BROKERS": broker}
    config = with_files(SOURCE, FORMS, folder, "batch")
    config["processors"] = {"batch": {"timeout": "1s", "send_batch_size": 32, "send_batch_max_size": 32}}
    with collector(otelcol, config, folder / "source", **names) as url:
        for signal, bodies in sent.items():
            for body in bodies:
                export(url, body, "traces" if signal is TRACES else "logs")
        num_sent = {signal: sum(map(len, items_in(signal, bodies))) for signal, bodies in sent.items()}
        until(
            lambda: {one: sum(map(len, on_topic(kafka_log, topic, one))) for one, topic in topics.items()} == num_sent,
            what="all on the topics",
        )
    config = with_files(reader(topics), {"native-zstd": {"compression": "zstd"}}, folder)
    with collector(otelcol, config, folder / "reader", NATIVE, **names):
        until(lambda: num_in(folder / "native-zstd") == sum(num_sent.values()), what="all in the file")
    return Written(topics, folder)


def replay(source: str, history: Path, folder: Path, *more: str) -> dict[str, Episode]:
    """The episodes by id, but for the version, which names the source, and for what closed them: the records' times."""
    arguments = ["replay", str(history), "--from", source, "--into", "told", "--runs-dir", str(folder), *more]
    assert app(arguments, standalone_mode=False) == 0
    replace = msgspec.structs.replace
    return {
        one.episode_id: replace(one, closed_by="", calls=tuple(replace(call, versions=()) for call in one.calls))
        for one in episodes_of(RunDir.open(folder / "told"))
    }


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The settings of a replay, by the template of the engine that served the recorded agents."""
    folder = tmp_path_factory.mktemp("history")
    model = write_model_folder(folder / "model")
    (model / "config.json").write_text("{}")
    (file := folder / "history.toml").write_text(f'[history]\nmodels = ["*"]\n[policy]\nmodel = "{model}"\n')
    return file


def in_words(episodes: Iterable[Episode]) -> dict[str, list[tuple[Words, str]]]:
    """Of each its calls, and why they do not train by a ratio."""
    return {one.episode_id: [(words(call), call.masked) for call in one.calls] for one in episodes}


@pytest.fixture(scope="module")
def of_topics(
    written: Written, history: Path, broker: str, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Episode]:
    """What the topics become."""
    source = f"topic:{written.topics[TRACES]},{written.topics[LOGS]}"
    return replay(source, history, tmp_path_factory.mktemp("topics"), "--bootstrap-servers", broker)


def test_topics_that_a_collector_wrote_become_all_episodes(
    written: Written, recordings: list[Recording], of_topics: dict[str, Episode], history: Path, kafka_log: KafkaLog
) -> None:
    """Though a message holds several traces, and a trace lies in several messages: every call, in its words, and each
    episode as it is without a Collector."""
    messages = on_topic(kafka_log, written.topics[TRACES], TRACES)
    traces = [{item.trace_id for item in message} for message in messages]
    assert max(map(len, traces)) > 1 and len(set().union(*traces)) < sum(map(len, traces))
    calls = [call for one in of_topics.values() for call in one.calls]
    assert len(calls) == sum(len(true_calls(one)) for one in recordings)
    trained = [words(call) for call in calls if call.masked == Reason.TEXT]
    assert trained and set(trained) <= set().union(*map(true_words, recordings))
    without = [episode for one in recordings for episode in told_episodes(one, history.parent / "model")]
    assert in_words(of_topics.values()) == in_words(without)


@pytest.mark.parametrize("form", [*FORMS, "native-zstd"])
def test_files_that_a_collector_wrote_become_the_same_episodes(
    form: str, written: Written, history: Path, of_topics: dict[str, Episode], tmp_path: Path
) -> None:
    """Lines of JSON over several files, messages behind lengths, packed each or together; the last by way of Kafka's
    partitions, in no order of time: an episode of several traces bears the id of the one that was read first."""
    assert (len([*(written.folder / form).iterdir()]) > 1) is (form == "rotated-json")
    found = replay(f"files:{written.folder / form}", history, tmp_path)
    assert in_words(found.values()) == in_words(of_topics.values())
    assert form == "native-zstd" or found == of_topics


MAIL, CARD = "ann@example.com", "4111 1111 1111 1111"
QUESTION = f"I am {MAIL}, card {CARD}."
COMMON = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m", "session.id": MAIL}
DELETED: Config = {"allowed_keys": [*COMMON, "openinference.span.kind"]}


def in_json(question: str) -> dict[str, Any]:
    """A call as OpenInference tells it."""
    answer = {"message": {"role": "assistant", "content": f"Hello {MAIL}!"}, "finish_reason": "stop"}
    body = {"model": "m", "messages": [{"role": "user", "content": question}]}
    told = {"input.value": body, "output.value": {"model": "m", "choices": [answer]}}
    return {"openinference.span.kind": "LLM", **{key: json.dumps(value) for key, value in told.items()}}


def structured(question: str) -> dict[str, Any]:
    """A call with a tool, as OpenTelemetry's conventions tell it."""
    said = {"user": question, "assistant": f"Hello {MAIL}!"}
    user, answer = [{"role": role, "parts": [{"type": "text", "content": text}]} for role, text in said.items()]
    told = {"gen_ai.input.messages": [user], "gen_ai.output.messages": [answer | {"finish_reason": "stop"}]}
    return told | {"gen_ai.tool.definitions": GENAI["gen_ai.tool.definitions"]}


def personal() -> dict[Signal, list[bytes]]:
    """Traces of one span, each with a call; the last one is told by a log record."""
    told = [
        (f"{OI}openai", in_json(QUESTION)),
        (f"{OI}openai", in_json(MAIL)),
        (f"{OTEL}anthropic", structured(QUESTION)),
        (f"{OTEL}genai.openai", {}),
    ]
    requests = []
    for number, (scope, attributes) in enumerate(told, 1):
        one = span(f"{number:032x}", number, "chat m")
        one.attributes.extend(any_value(COMMON | attributes).kvlist_value.values)
        requests.append(of_scope(scope, one))
    event = parsed(LOGS, details(**{"gen_ai.request.model": "m", **structured(QUESTION)}))
    for *_, item in items_of(LOGS, event):
        item.trace_id, item.span_id = one.trace_id, one.span_id
    return {TRACES: requests, LOGS: [event.SerializeToString()]}


def test_what_the_docs_redaction_masks_is_masked_in_every_prompt_and_answer(
    otelcol: Path, history: Path, kafka_log: KafkaLog, broker: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From a topic that is not redacted, by the kafka receiver and the processor, to a file. A text that is masked
    whole is not told, nor is what was deleted; masked session ids make no conversation."""
    topics, sent = {TRACES: new_topic(kafka_log), LOGS: new_topic(kafka_log)}, personal()
    writer = kafka_log.writer()
    for signal, values in sent.items():
        for value in values:
            writer.append(topics[signal], key=None, value=value).result(30)
    names = {"KAFKA_BROKERS": broker, "SPANS_TOPIC": topics[TRACES]}
    for form, processor in (("masked", REDACTION["processors"]["redaction"]), ("deleted", DELETED)):
        config = with_files(reader(topics), {form: {}}, tmp_path, "redaction")
        config["processors"] = {"redaction": processor}
        config["receivers"]["kafka"]["group_id"] = form
        with collector(otelcol, config, tmp_path / f"{form}-running", **names):
            until(lambda: num_in(tmp_path / form) == 5, what="all in the file")  # noqa: B023
    told = (tmp_path / "masked" / "spans.json").read_text()
    assert "redaction.masked.count" in told and MAIL not in told and CARD not in told
    episodes = replay(f"files:{tmp_path / 'masked'}", history, tmp_path)
    answer = "Hello ****!<|im_end|>"
    asked = "<|im_start|>user\nI am ****, card ****.<|im_end|>\n<|im_start|>assistant\n"
    with_tools = f"<|im_start|>system\ntools: weather<|im_end|>\n{asked}"
    assert [told for _, told in sorted(in_words(episodes.values()).items())] == [
        [((asked, answer), Reason.TEXT)],
        [(("", ""), Reason.NO_PROMPT_TOLD)],
        [((with_tools, answer), Reason.TEXT)],
        [((with_tools, answer), Reason.TEXT)],
    ]
    capsys.readouterr()
    look = ["replay", "--from", f"files:{tmp_path / 'deleted'}", "--into", "look", "--dry-run", "--json"]
    app(look, standalone_mode=False)
    lacks = json.loads(capsys.readouterr().out)["lacks"]
    assert lacks["no_prompt_told"] == lacks["no_answer_told"] == {"model_spans": 4}
