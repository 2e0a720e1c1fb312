"""What each room of a run is told besides its sections of the settings; the one place that knows both.

In: a run's folder (settings, record, endpoints). Out: `Wiring`, whose methods make one record of handles each. What
it imports is light: a process pays for its own room only, and torch is needed by the trainer alone.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from tracegrad.producers.llm_gateway.config import EngineRef, LlmHandles, Upstream, UpstreamConfig
from tracegrad.producers.otlp_gateway.config import OtlpHandles
from tracegrad.producers.rewards.config import FeedbackConfig, FeedbackHandles
from tracegrad.producers.runner.config import RunnerHandles
from tracegrad.producers.tasks.config import TasksHandles
from tracegrad.schemas.credentials import credential, engine_holder, feedback_holder, page_holder
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.ids import RunHash
from tracegrad.schemas.log.mac import KeyRing
from tracegrad.schemas.log.signed import SignedLog
from tracegrad.schemas.metrics import Metrics
from tracegrad.schemas.records.rollouts import FEEDBACK_SOURCE
from tracegrad.schemas.topics import Stage
from tracegrad.streams.config import StreamRules
from tracegrad.streams.shell.config import StreamsHandles
from tracegrad.trainer.config import TrainerHandles

from ..engine.config import EngineHandles
from ..files import moved, read_key
from ..kafka.log import KafkaLog
from .run_dir import RunDir
from .settings import RunSettings

if TYPE_CHECKING:
    from tracegrad.consumers.engine.weight_sync import WeightSyncHandles

_EPISODE_MARGIN_S = 60.0
"""Beyond assemble's longest deadline, until its proposal to close (made again after 30 s, if a worker lost it) is an
episode."""
_EXPORT_TIMEOUT_S = 10.0
"""The SDK's default, which agents keep that we do not start."""
_ACK_SHARE = 0.8
"""Of the agents' export time-out: the OTLP gateway answers 503 before they give up, so that they send again."""


class Wiring:
    """Builds what each process of a run is given."""

    def __init__(
        self, run_dir: RunDir, *, listening_fd: int | None = None, bootstrap_servers: str | None = None
    ) -> None:
        """
        Args:
            listening_fd: what a gateway inherits from its supervisor (compose/loopback.py).
            bootstrap_servers: where the run's broker listens now, if not as at its last start.
        """
        self.run_dir, self.listening_fd = run_dir, listening_fd
        self.settings, self.record, self.endpoints = run_dir.settings, run_dir.record, run_dir.endpoints
        if bootstrap_servers is not None:
            self.endpoints = msgspec.structs.replace(self.endpoints, bootstrap_servers=bootstrap_servers)
        self.topics = self.settings.topics

    def under(self, settings: RunSettings) -> Wiring:
        """The same run as if it had these settings, which are written nowhere."""
        other = Wiring(self.run_dir, bootstrap_servers=self.endpoints.bootstrap_servers)
        other.settings, other.topics = settings, settings.topics
        return other

    @cached_property
    def keys(self) -> dict[RunHash, bytes]:
        """The keys of this run and of those that it selects. Raises ConfigurationError when one is not to be had."""
        keys = {self.record.hash: self.run_dir.key()}
        for path in self.settings.select.runs:
            try:
                selected = read_key(moved(Path(path), self.run_dir.path))
            except (ConfigurationError, OSError) as error:
                raise ConfigurationError(f"[select] runs: expected a run's folder or key.json: {error}") from error
            keys.setdefault(selected.run, selected.key)
        return keys

    @property
    def ring(self) -> KeyRing:
        """What signs and verifies in the run's name."""
        return KeyRing(self.record.hash, self.keys)

    @property
    def engine_ids(self) -> tuple[str, ...]:
        """Of the policy's engines, in the order of their addresses."""
        return tuple(f"engine-{ordinal}" for ordinal in range(len(self.endpoints.engine_urls)))

    @property
    def engine_token(self) -> str | None:
        """What our programs show to the engines: made of the run's key for those that we start."""
        engine, run = self.settings.engine, self.record.hash
        return engine.token if engine.urls else credential(self.run_dir.key(), engine_holder(run))

    def kafka(self, *, is_history: bool = False) -> KafkaLog:
        """The cluster, whose records nobody has judged: to administer it, and to look at what rooms leave out. It knows
        the topics that the run began with."""
        servers, client = self.endpoints.bootstrap_servers, self.settings.kafka.client
        return KafkaLog(servers, client, starts=self.run_dir.topic_starts, is_history=is_history)

    def log(self, metrics: Metrics | None = None, *, is_history: bool = False) -> SignedLog:
        """The log of the run, for its rooms; `metrics` counts what it leaves out. As history: damage is an error."""
        kafka = self.kafka(is_history=is_history)
        return SignedLog(kafka, self.ring, topics=self.topics, metrics=metrics or Metrics())

    def otlp(self) -> OtlpHandles:
        """`serve otlp`."""
        agent = self.settings.agent
        export_timeout_s = min(_EXPORT_TIMEOUT_S, agent.flush_timeout_s) if agent else _EXPORT_TIMEOUT_S
        return OtlpHandles(
            port=port_of(self.endpoints.otlp_endpoint),
            fd=self.listening_fd,
            grpc_port=port_of(self.endpoints.otlp_grpc) if self.endpoints.otlp_grpc else None,
            feedback_names=self.settings.feedback.names if self.settings.feedback is not None else None,
            run_hash=self.record.hash,
            key=self.run_dir.key(),
            ack_timeout_s=_ACK_SHARE * export_timeout_s,
        )

    def llm(self, environ: Mapping[str, str]) -> LlmHandles:
        """`serve llm`; the environment holds the upstreams' keys. Raises ConfigurationError when it lacks one."""
        engine = self.settings.engine
        return LlmHandles(
            port=port_of(self.endpoints.llm_url),
            fd=self.listening_fd,
            run_hash=self.record.hash,
            key=self.run_dir.key(),
            engines=tuple(
                EngineRef(id=id_, url=url, token=self.engine_token)
                for id_, url in zip(self.engine_ids, self.endpoints.engine_urls, strict=True)
                if self.settings.policy.model is not None
            ),
            # The gateway itself knows no other parser, and probes prove only what they ask.
            renders_locally=engine.tool_call_parser == "hermes" and engine.tool_parser_plugin is None,
            upstreams=tuple(upstream(one, environ) for one in self.settings.upstream),
            weight_root=str(self.run_dir.weights),
            trains_captured=self.settings.select.train,
            samples_as_asked=self.settings.select.sampling == "asked",
            pause_s=self.settings.streams.least_idle_s / 4,
        )

    def feedback(self) -> tuple[FeedbackConfig, FeedbackHandles]:
        """`serve rewards`. Raises ConfigurationError where no section asks for it."""
        config, url = self.settings.feedback, self.endpoints.feedback_url
        if config is None or not url:
            raise ConfigurationError(
                "expected a run with a [feedback] section, got one without; add it and start again"
            )
        return config, FeedbackHandles(
            port=port_of(url),
            fd=self.listening_fd,
            run_hash=self.record.hash,
            key=self.run_dir.key(),
            trains=self.settings.select.train,
            starts=self.run_dir.starts,
        )

    @property
    def feedback_token(self) -> str:
        """What the program shows in which people rate."""
        return credential(self.run_dir.key(), feedback_holder(self.record.hash))

    @property
    def page_token(self) -> str:
        """What the page's URL shows."""
        return credential(self.run_dir.key(), page_holder(self.record.hash))

    @property
    def page_link(self) -> str:
        """The page's URL, with its token; empty: it is not served."""
        url = self.endpoints.page_url
        return f"{url}/?token={self.page_token}" if url else ""

    def stream_rules(self) -> StreamRules:
        """`serve streams`: what its folds decide by."""
        settings, reward = self.settings, self.settings.reward
        feedback = (FEEDBACK_SOURCE,) if settings.feedback is not None else ()
        return StreamRules(
            run_hash=self.record.hash,
            policies=(settings.policy.name,),
            reward_sources=(*(reward.counted if reward else ("grader:*",)), *feedback),
            feedback_wait_s=settings.feedback.wait_s if settings.feedback is not None else 0.0,
            streams=settings.streams,
            air=settings.air,
            credit=settings.credit,
            select=settings.select,
            selected=tuple(run for run in self.keys if run != self.record.hash),
        )

    def streams(self, stage: Stage, ordinal: int) -> StreamsHandles:
        """`serve streams --stage STAGE --ordinal N`."""
        return StreamsHandles(
            bootstrap_servers=self.endpoints.bootstrap_servers,
            kafka=self.settings.kafka.client,
            data_dir=str(self.run_dir.streams),
            instance_id=f"{stage.value}-{ordinal}",
            partitions=self.settings.kafka.partitions,
        )

    def tasks(self) -> TasksHandles:
        """`serve tasks`."""
        settings = self.settings
        assert settings.agent is not None and settings.reward is not None
        return TasksHandles(
            run_hash=self.record.hash,
            policy=settings.policy.name,
            seed=self.record.seed,
            steps=settings.trainer.steps,
            groups_per_step=settings.trainer.groups_per_step,
            concurrency=settings.agent.concurrency,
            time_limit_s=settings.agent.time_limit_s,
            rewards_awaited=settings.reward.awaited,
            stops_by_cause=settings.alarms.on != "warn",
            engine_ids=self.engine_ids,
            episode_wait_s=max(settings.streams.deadline_s, settings.streams.incomplete_s) + _EPISODE_MARGIN_S,
        )

    def runner(self) -> RunnerHandles:
        """`serve runner`."""
        return RunnerHandles(
            run_hash=self.record.hash,
            llm_url=self.endpoints.llm_url,
            otlp_endpoint=self.endpoints.otlp_endpoint,
            key=self.run_dir.key(),
            llm_token=self.settings.llm.token,
            otlp_token=self.settings.otlp.token,
            log_dir=str(self.run_dir.logs),
            hidden=tuple(self._hidden()),
        )

    def _hidden(self) -> Iterator[str]:
        """What no agent may see: all runs and keys, the tasks with what is expected, also in git, and settings, which
        may hold passwords."""
        yield str(self.run_dir.path.parent)
        yield from map(str, self.run_dir.beside())
        yield from self.settings.select.runs
        tasks, agent = self.settings.tasks, self.settings.agent
        if tasks is not None:
            files = [file for file in (tasks.file, tasks.eval_file) if file is not None]
            yield from files
            # The history of a repository that they lie in holds them once more.
            beside = {above / ".git": None for file in files for above in Path(file).parents}
            yield from (str(git) for git in beside if git.exists())
        if agent is not None and agent.cwd is not None:
            yield from (str(path) for path in Path(agent.cwd).glob("*.toml") if _is_settings(path))

    def trainer(self) -> TrainerHandles:
        """`serve trainer`."""
        return TrainerHandles(
            run_hash=self.record.hash,
            policy=self.settings.policy.name,
            model=self.settings.policy.needed_model(),
            chat_template=self.settings.policy.chat_template,
            work_dir=str(self.run_dir.trainer),
            seed=self.record.seed,
            publish=self.settings.publish,
            trains_captured=self.settings.select.train,
            is_synchronous=self.settings.pace.staleness == 0,
            history=self.run_dir.history,
            engine_share=self._engine_share,
        )

    def weight_sync(self, ordinal: int = 0) -> WeightSyncHandles:
        """`serve weight-sync --ordinal N`, which keeps the N-th engine."""
        from tracegrad.consumers.engine.weight_sync import WeightSyncHandles

        return WeightSyncHandles(
            policy=self.settings.policy.name,
            engine_id=self.engine_ids[ordinal],
            engine_url=self.endpoints.engine_urls[ordinal],
            engine_token=self.engine_token,
            weight_root=str(self.run_dir.weights),
        )

    def engine(self, ordinal: int = 0) -> EngineHandles:
        """`serve engine --ordinal N`."""
        return EngineHandles(
            policy=self.settings.policy,
            work_dir=str(self.run_dir.path),
            port=port_of(self.endpoints.engine_urls[ordinal]),
            token=self.engine_token or "",
            ordinal=ordinal,
            shares_gpu=self._shares_gpu(ordinal),
        )

    def _shares_gpu(self, ordinal: int) -> bool:
        gpu = _gpu_of(self.settings.engine.device)
        return gpu is not None and gpu + ordinal == _gpu_of(self.settings.trainer.device)

    @property
    def _engine_share(self) -> float:
        """What an engine of ours takes of the trainer's GPU."""
        engine = self.settings.engine
        is_shared = not engine.urls and any(map(self._shares_gpu, range(engine.replicas)))
        return engine.gpu_share(shares_gpu=True) or 0.0 if is_shared else 0.0


def upstream(config: UpstreamConfig, environ: Mapping[str, str]) -> Upstream:
    """An upstream with its key. Raises ConfigurationError when the environment lacks it."""
    url, variable = urlsplit(config.url), config.api_key_env
    name = config.name or url.hostname or ""
    key = environ.get(variable, "") if variable else None
    if key == "":
        raise ConfigurationError(
            f"[[upstream]] {name}: expected its key in the variable {variable} (api_key_env), which is not set; set it "
            "where tracegrad is started, or leave api_key_env out for one that asks for no key"
        )
    return Upstream(
        name=name,
        models=config.models,
        base_url=config.url.rstrip("/") + ("" if url.path.strip("/") else "/v1"),
        key=key,
        timeout_s=config.timeout_s,
        max_inflight=config.max_inflight,
    )


def _gpu_of(device: str) -> int | None:
    """Which of the visible GPUs a `device` key means, if there are any."""
    return None if device == "cpu" else int(device.partition(":")[2] or 0)


def _is_settings(path: Path) -> bool:
    """Whether a file is one that a run can be made of; there is none without one of these, or it says nothing."""
    try:
        return not {"policy", "upstream", "kafka"}.isdisjoint(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return False


def port_of(url: str) -> int:
    """The port of a URL that we made ourselves."""
    return int(url.rpartition(":")[2])
