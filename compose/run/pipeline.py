"""The processes of a run, in layers, and the run's start: folder, ports, broker, topics.

    0  kafka (ours, unless bootstrap_servers is given)          then: topics and start offsets
    1  engine, trainer           slow to start, waited for by nobody here
       otlp                      stops after llm, which sends it its last spans
       rewards                   where there is a [feedback]
    2  llm, streams, weight-sync
    3  runner, tasks             when both gateways answer; where there are tasks to run
    4  page                      unless it is not wanted; the run goes on without it

In: checked settings. Out: a prepared RunDir and ProcessSpecs for the supervisor. Invariant: preparing the same run
again changes nothing that is on the log, and keeps its ports where they are free.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterable
from enum import StrEnum
from functools import partial
from pathlib import Path

import msgspec
from filelock import BaseFileLock, FileLock, Timeout

from tracegrad.producers.llm_gateway.config import GRACE_S
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.records.process_status import process_name
from tracegrad.schemas.retry import retry
from tracegrad.schemas.topics import STREAMS, Stage

from ..engine.failed_start import read_failed_start
from ..kafka.positions import begin_run, positions
from ..kafka.topic_admin import create_topics, plan_topics
from ..local_kafka.broker import is_ready
from ..loopback import LOOPBACK, answers, free_port, is_free, num_served
from ..metrics.endpoint import target_file
from .process import ProcessSpec
from .run_dir import Endpoints, RunDir
from .settings import RunSettings
from .wiring import Wiring, port_of

BROKER = "kafka"
PAGE = "page"
PAGE_LAYER = 4
"""Above all others: the first to stop, and nobody waits for it."""


class PipelinePart(StrEnum):
    """What `up --only` may name."""

    CAPTURE = "capture"
    """The gateways and the engine."""
    STREAMS = "streams"
    """The stages."""
    TRAIN = "train"
    """The trainer and weight sync."""


ENGINE_PARTS = (None, PipelinePart.CAPTURE)
"""With which an engine is used."""
PARTS_WITHOUT_MODEL = (PipelinePart.CAPTURE, PipelinePart.STREAMS)
"""Which work without a policy: what other models answer, and what spans say."""
ENVIRONMENT = {
    # More threads than cores cost more than they give: 15 to 30 times slower on a busy two-core machine.
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONUNBUFFERED": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
}
_OTLP_GRPC_PORT = 4317
"""The one that OTLP over gRPC is registered for, and that exporters and Collectors use unless they are told."""
_CLAIMS: list[BaseFileLock] = []
_MEMBERS_S = 20.0
"""For members of a killed start to leave their group: twice their session."""


def prepare_run(settings: RunSettings, path: Path, *, port_wait_s: float = 5.0) -> RunDir:
    """The run's folder, with everything written that its processes read. The caller holds its lock. `port_wait_s`: for
    who holds a port that is asked for, or was the last start's: it may be dying."""
    run_dir = RunDir.create(path, settings)
    before = run_dir.endpoints if run_dir.endpoints_file.exists() else None
    kafka, engine = settings.kafka.bootstrap_servers, settings.engine
    taken: list[int] = []

    def address(key: str, host: str, asked: int | None, last: str | None, *, usual: int | None = None) -> str:
        if not (asked or last) and usual is not None and usual not in taken and _is_ours(usual):
            last = f"{host}:{usual}"
        port = _port(key, asked, last, taken, port_wait_s)
        taken.append(port)
        return f"{host}:{port}"

    def url(key: str, host: str, asked: int | None, last: str | None) -> str:
        return "http://" + address(key, host, asked, last or None)

    engines_before = [*(before.engine_urls if before else ()), *[None] * engine.replicas][: engine.replicas]
    llm, otlp, feedback, page = settings.llm, settings.otlp, settings.feedback, settings.page
    last = before or Endpoints(bootstrap_servers="", llm_url="", otlp_endpoint="", engine_urls=())
    endpoints = Endpoints(
        feedback_url=url("[feedback] port", feedback.host, feedback.port, last.feedback_url) if feedback else "",
        page_url=url("[page] port", LOOPBACK, page.port, last.page_url) if page.enabled else "",
        bootstrap_servers=kafka or address("", LOOPBACK, None, last.bootstrap_servers or None),
        llm_url=url("[llm] port", llm.host, llm.port, last.llm_url),
        otlp_endpoint=url("[otlp] port", otlp.host, otlp.port, last.otlp_endpoint),
        engine_urls=engine.urls or tuple(url("", LOOPBACK, None, one) for one in engines_before),
        otlp_grpc=address("[otlp] grpc_port", otlp.host, otlp.grpc_port, last.otlp_grpc or None, usual=_OTLP_GRPC_PORT),
    )
    run_dir.write_start(settings, endpoints)
    return run_dir


def _is_ours(port: int) -> bool:
    """Whether a port that every run would like is free, and no other run of this machine is about to take it: its
    gateway listens only once the broker is up. The claim lasts as long as this process."""
    claim = FileLock(Path(tempfile.gettempdir()) / f"tracegrad-port-{port}.lock", timeout=0, fallback_to_soft=False)
    try:
        claim.acquire()
    except (Timeout, OSError, NotImplementedError):
        return False
    _CLAIMS.append(claim)
    return is_free(port)


def _port(key: str, asked: int | None, last: str | None, taken: Iterable[int], wait_s: float) -> int:
    """The port asked for, else the last start's, else a free one."""
    wanted = asked if asked is not None else port_of(last) if last else None
    if wanted is None:
        return free_port(excluding=tuple(taken))
    until = time.monotonic() + wait_s
    while not is_free(wanted):
        if time.monotonic() > until:
            if asked is not None:
                raise ConfigurationError(f"{key}: {asked} is taken by another program; choose another, or none")
            return free_port(excluding=tuple(taken))
        time.sleep(0.1)
    return wanted


def prepare_topics(wiring: Wiring) -> None:
    """Makes the run's topics, and sees to it that every group has a position that it can go on from.

    Called when the broker answers, before any process that reads. ConfigurationError, LogGapError: with the remedy.
    """
    settings, topics, run_dir, log = wiring.settings, wiring.topics, wiring.run_dir, wiring.kafka()
    plans = plan_topics(topics, policies=(settings.policy.name,), kafka=settings.kafka)
    create_topics(log, topics, plans)
    if not run_dir.topic_starts:
        # Kept before anything is committed: who is killed in between begins again where it would have begun.
        since_ms = settings.kafka.start_ms()
        start = None if since_ms is None else partial(log.offsets_since, at_ms=since_ms)
        run_dir.write_starts(begin_run(log, topics, start=start))
        log = wiring.kafka()
    if run_dir.history is not None:
        return  # its stages have been, and read nothing
    starts, max_closed_ids = run_dir.topic_starts, settings.streams.max_closed_ids
    for stage, offsets in positions(log, topics, starts, max_closed_ids=max_closed_ids).items():
        if offsets:
            commit = partial(log.admin.commit_group_offsets, topics.group(stage), offsets)
            retry(commit, doing=f"committing for {stage}", patience_s=_MEMBERS_S)


def specs(wiring: Wiring, *, for_training: bool, only: PipelinePart | None = None) -> list[ProcessSpec]:
    """The processes of the run.

    Args:
        wiring: of a prepared run.
        for_training: it trains on tasks, until they are done; else until a person stops it.
        only: this part; None: all.
    """
    found: list[ProcessSpec] = []
    settings = wiring.settings
    if settings.kafka.bootstrap_servers is None:
        found.append(_broker(wiring))
    if only in ENGINE_PARTS:
        if not settings.engine.urls and settings.policy.model is not None:
            found += [_serve(wiring, "engine", layer=1, ordinal=ordinal) for ordinal in range(settings.engine.replicas)]
        found += [
            _serve(wiring, "otlp", layer=1, listens=(settings.otlp.host, wiring.endpoints.otlp_endpoint)),
            msgspec.structs.replace(
                _serve(wiring, "llm", layer=2, listens=(settings.llm.host, wiring.endpoints.llm_url)),
                stop_timeout_s=GRACE_S + 5.0,
            ),
        ]
        if settings.feedback is not None:
            listens = (settings.feedback.host, wiring.endpoints.feedback_url)
            found.append(_serve(wiring, "rewards", layer=1, listens=listens))
    if only in (None, PipelinePart.STREAMS):
        found += [
            _serve(wiring, "streams", layer=2, stage=stage, ordinal=ordinal)
            for stage in STREAMS
            for ordinal in range(settings.streams.workers)
        ]
    if only in (None, PipelinePart.TRAIN):
        found += [
            _serve(wiring, "trainer", layer=1, is_job=True),
            *(_serve(wiring, "weight-sync", layer=2, ordinal=ordinal) for ordinal in range(len(wiring.engine_ids))),
        ]
    if for_training or (settings.only_holds_out and only is None):
        found += [_serve(wiring, "runner", layer=3), _serve(wiring, "tasks", layer=3, is_job=True)]
    if wiring.endpoints.page_url:
        found.append(_page(wiring))
    return found


def history_specs(wiring: Wiring) -> list[ProcessSpec]:
    """Of a run that trains on what lies on its topics: nothing makes more of it."""
    brokers = [] if wiring.settings.kafka.bootstrap_servers is not None else [_broker(wiring)]
    return [*brokers, _serve(wiring, "trainer", layer=1, is_job=True)]


def _broker(wiring: Wiring) -> ProcessSpec:
    port = port_of(wiring.endpoints.bootstrap_servers)
    argv = (
        *(sys.executable, "-m", "tracegrad.compose.local_kafka.broker"),
        *("--data", str(wiring.run_dir.kafka), "--port", str(port)),
        *("--beats", str(wiring.run_dir.beats / BROKER)),
    )
    return ProcessSpec(
        name=BROKER,
        argv=argv,
        env=ENVIRONMENT,
        is_ready=lambda: is_ready(port),
        # The first start of all downloads the jars.
        ready_timeout_s=300.0,
        stop_timeout_s=20.0,
        beats=wiring.run_dir.beats / BROKER,
    )


def _page(wiring: Wiring) -> ProcessSpec:
    return ProcessSpec(
        name=PAGE,
        argv=(sys.executable, "-m", "tracegrad.compose.page.process", "--run-dir", str(wiring.run_dir.path)),
        env=ENVIRONMENT,
        listens_at=(LOOPBACK, port_of(wiring.endpoints.page_url)),
        layer=PAGE_LAYER,
        is_spare=True,
        beats=wiring.run_dir.beats / PAGE,
    )


def _serve(
    wiring: Wiring,
    name: str,
    *,
    layer: int,
    is_job: bool = False,
    listens: tuple[str, str] | None = None,
    stage: Stage | None = None,
    ordinal: int = 0,
) -> ProcessSpec:
    # What it needs resolves beside all but the streams; the others share the supervisor's interpreter.
    python = wiring.settings.trainer.python if name == "trainer" else None
    argv = [python or sys.executable, "-m", "tracegrad.compose.run.serve", name, "--run-dir", str(wiring.run_dir.path)]
    if stage is not None:
        argv += ["--stage", stage.value]
    if stage is not None or ordinal:
        argv += ["--ordinal", str(ordinal)]
    threads = {"OMP_NUM_THREADS": str(wiring.settings.trainer.threads)} if name == "trainer" else {}
    host, url = listens or ("", "")
    process = process_name(name, stage.value if stage else None, ordinal)
    is_engine = name == "engine"
    return ProcessSpec(
        name=process,
        argv=tuple(argv),
        diagnose=read_failed_start if is_engine else None,
        env={**ENVIRONMENT, **threads},
        listens_at=(host, port_of(url)) if url else None,
        layer=layer,
        is_job=is_job,
        is_ready=(lambda: answers(f"{url}/health")) if url else None,
        # Becomes another program, which gives no beats.
        beats=None if is_engine else wiring.run_dir.beats / process,
        target=None if is_engine else target_file(wiring.run_dir.metrics, wiring.record.name, process),
        ask_work=(lambda: num_served(wiring.endpoints.engine_urls[ordinal])) if is_engine else None,
    )
