"""What the one TOML file may say: `RunSettings` gathers the sections, each the record of the component that obeys it.

In: nothing but values. Out: `RunSettings`, which `load.py` fills and whose sections `wiring.py` hands over;
docs/settings.md is made of it (tests/reference/). Invariant: every path is absolute once loaded, and sections that do
not go together are refused. JSON-able: it lies beside the run as `config.json`.
"""

from __future__ import annotations

import typing
from enum import Enum
from typing import Any

from tracegrad.consumers.page.config import PageConfig
from tracegrad.producers.llm_gateway.config import LlmConfig, PolicyConfig, UpstreamConfig
from tracegrad.producers.otlp_gateway.config import OtlpConfig
from tracegrad.producers.rewards.config import FeedbackConfig
from tracegrad.producers.runner.config import AgentConfig, RewardConfig
from tracegrad.producers.tasks.config import PaceConfig, TasksConfig
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.ids import RunName, parse_run_name
from tracegrad.schemas.section import Section, Whole
from tracegrad.schemas.topics import Topics
from tracegrad.streams.assemble.air.rules import AirConfig
from tracegrad.streams.config import HistoryConfig, SelectConfig, StreamsConfig
from tracegrad.streams.credit.config import CreditConfig
from tracegrad.trainer.algorithm.recipe import Recipe
from tracegrad.trainer.algorithm.recipes import RECIPES
from tracegrad.trainer.config import AlarmsConfig, AlgorithmConfig, PublishConfig, TrainerConfig
from tracegrad.trainer.history.config import ReplayConfig

from ..engine.config import EngineConfig
from ..kafka.client_settings import KafkaConfig

GONE = {
    "engine.max_num_seqs": 'give vLLM the number itself: [engine] args = ["--max-num-seqs", "256"]',
    "feedback.sources": "post the scores to /v1/rewards, as examples/feedback/from_elsewhere.py does",
    "llm.begin_again_s": "leave it out: attempts that a killed gateway left open begin again (docs/reliability.md)",
}
"""`section.key` that earlier releases had -> what takes its place. A file, a flag or a variable that has it is refused;
runs that were recorded with it open."""

_COMPARES = ("mean", "leave_one_out", "length_weighted")
"""Baselines that are others' returns."""
_NAMES = {str: "text", int: "whole number", float: "number", bool: "true or false"}


class RunSettings(Section, frozen=True, kw_only=True):
    """The whole file. Refuses sections that do not go together."""

    run: str
    """Name of the run, [a-z0-9-]{1,40}; the same name resumes it."""
    about: str = ""
    """A sentence or two that are printed when the run starts: what it learns, and what to look at."""
    seed: Whole = 0
    """Seed of the order of tasks and of the trainer."""
    agent: AgentConfig | None = None
    tasks: TasksConfig | None = None
    reward: RewardConfig | None = None
    policy: PolicyConfig = PolicyConfig()
    upstream: tuple[UpstreamConfig, ...] = ()
    engine: EngineConfig = EngineConfig()
    kafka: KafkaConfig = KafkaConfig()
    llm: LlmConfig = LlmConfig()
    otlp: OtlpConfig = OtlpConfig()
    feedback: FeedbackConfig | None = None
    air: AirConfig = AirConfig()
    credit: CreditConfig = CreditConfig()
    trainer: TrainerConfig = TrainerConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    publish: PublishConfig = PublishConfig()
    alarms: AlarmsConfig = AlarmsConfig()
    replay: ReplayConfig = ReplayConfig()
    history: HistoryConfig | None = None
    streams: StreamsConfig = StreamsConfig()
    pace: PaceConfig = PaceConfig()
    select: SelectConfig = SelectConfig()
    page: PageConfig = PageConfig()

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            parse_run_name(self.run)
        except ValueError as error:
            raise ConfigurationError(f"run = {self.run!r}: {error}; rename the run") from error
        _ = self.topics
        if self.streams.workers > self.kafka.partitions:
            raise ConfigurationError(
                f"[streams] workers = {self.streams.workers}: only [kafka] partitions = "
                f"{self.kafka.partitions} can work at once; raise partitions (of a new run) or lower workers"
            )
        self._check_names()
        if self.select.train:
            self._check_conversations()
        elif self.tasks is not None and self.tasks.file is None:
            raise ConfigurationError("[tasks] file is missing; add it, or pass --tasks FILE")
        elif self.alarms.rollback_window:
            raise ConfigurationError(
                "[alarms] rollback_window: expected a run that trains on captured traffic ([select] train), got one "
                "that trains on tasks; leave the key out"
            )
        elif (self.select.unscored, self.select.sampling) != ("drop", "forced"):
            raise ConfigurationError(
                "[select] unscored, sampling: expected a run that trains on captured traffic, got one that does not; "
                "set [select] train = true, or leave them out"
            )
        _check_credit(self.credit, self.air, self.algorithm, is_of_traffic=self.select.train)
        self._check_held_out()
        trainer, served = self.trainer, self.engine.dtype or "auto"
        published = trainer.dtype if trainer.publish_dtype == "auto" else trainer.publish_dtype
        if served != published and (not self.engine.urls or self.engine.dtype is not None):
            raise ConfigurationError(
                f"[engine] dtype is {served!r}, but versions are published as {published!r} ([trainer] publish_dtype, "
                "else dtype): the engine would not serve what was published; set both to the same, or neither"
            )

    def _check_names(self) -> None:
        """Patterns leave the policy's names to the policy; who spells one out for an upstream means something else."""
        own = set(self.policy.names)
        for upstream in self.upstream:
            if both := sorted(own.intersection(upstream.models)):
                raise ConfigurationError(
                    f"[[upstream]] models: {both[0]!r} is a name of the policy ([policy] name, aliases); remove it "
                    "from one of them"
                )

    def _check_conversations(self) -> None:
        """Of a run that trains on captured traffic."""
        if self.tasks is not None:
            self._check_only_held_out(self.tasks)
        if self.feedback is None and self.history is None:
            raise ConfigurationError("[select] train: nobody could rate what is captured; add a section [feedback]")
        if ":" in self.algorithm.recipe:
            return
        recipe = self.algorithm.resolve()
        compares = recipe.baseline in _COMPARES
        if (compares and recipe.over not in ("batch", "nearest")) or recipe.selection != "none":
            raise ConfigurationError(
                "[select] train: a conversation has no group to be compared in, only its batch; set [algorithm] recipe "
                '= "rloo_batch"'
            )
        if compares and self.trainer.groups_per_step < 2:
            raise ConfigurationError(
                "[trainer] groups_per_step = 1: a conversation that is alone in its batch is compared with no other, "
                "and trains nothing; raise it (64, say)"
            )

    def _check_only_held_out(self, tasks: TasksConfig) -> None:
        """Of the tasks of a run that trains on captured traffic."""
        if tasks.file is not None:
            raise ConfigurationError(
                "[select] train: a run trains on [tasks] file or on captured traffic, not on both; leave one of them "
                "out (held-out tasks, [tasks] eval_file, may stay)"
            )
        if tasks.eval_file is None:
            raise ConfigurationError(
                "[select] train: such a run uses [tasks] for held-out tasks alone: set [tasks] eval_file, or leave the "
                "section out"
            )
        if lacking := [f"[{name}]" for name in ("agent", "reward") if getattr(self, name) is None]:
            raise ConfigurationError(
                f"[tasks] eval_file: held-out tasks need an agent that works on them and a grader: add "
                f"{' and '.join(lacking)}, or leave [tasks] out"
            )

    def _check_held_out(self) -> None:
        if (tasks := self.tasks) is None:
            return
        if (tasks.eval_every or tasks.eval_samples > 1) and tasks.eval_file is None:
            raise ConfigurationError(
                "[tasks] eval_every, eval_samples: expected held-out tasks, got none; set [tasks] eval_file, or leave "
                "the two keys out"
            )
        if tasks.eval_samples > 1 and not self.policy.validation_temperature:
            raise ConfigurationError(
                f"[tasks] eval_samples = {tasks.eval_samples}: greedy rollouts of a task are all alike; set [policy] "
                "validation_temperature above 0 (1 is as in training), or leave eval_samples out"
            )
        # The versions that engines may lag behind when a pass begins, and what is published until the trainer reads it.
        kept, needed = self.trainer.keep_versions, self.pace.staleness + 3
        if tasks.eval_every and 0 < kept < needed:
            raise ConfigurationError(
                f"[trainer] keep_versions = {kept}: [tasks] eval_every keeps the best version, which may be older when "
                f"its pass begins; raise it to {needed} at least, or set 0, which keeps all"
            )

    @property
    def only_holds_out(self) -> bool:
        """Whether tasks and runner have held-out tasks alone, beside the traffic that the run trains on."""
        return self.select.train and self.tasks is not None

    @property
    def topics(self) -> Topics:
        """The full names of the run's topics."""
        kafka = self.kafka
        return Topics(
            run=RunName(self.run),
            prefix=kafka.topic_prefix,
            renames=kafka.topics,
            max_message_bytes=kafka.max_message_bytes,
        )


def _check_credit(credit: CreditConfig, air: AirConfig, algorithm: AlgorithmConfig, *, is_of_traffic: bool) -> None:
    """Whether credit goes with what the trainer makes of it, and with what AIR pays. What is a user's own code, a
    strategy or a recipe's file, may be anything, and is not judged. Raises ConfigurationError."""
    strategy = credit.strategy
    if is_of_traffic and (strategy != "return_to_go" or credit.gamma != 1.0):
        raise ConfigurationError(
            "[credit] strategy, gamma: expected the defaults in a run that trains on captured traffic, where each "
            "conversation is a group of its own; leave both out, or leave [select] train out"
        )
    if strategy == "broadcast" and air.enabled and (air.rules or air.function):
        raise ConfigurationError(
            "[credit] strategy = 'broadcast': each call gets the final reward alone, so [air] would pay nothing; "
            "set [air] enabled = false (--no-air), or strategy = 'return_to_go'"
        )
    shaping = [rule.name for rule in air.rules if rule.shaping] if air.enabled else []
    if shaping and (strategy not in ("return_to_go", "anchor") or credit.gamma != 1.0):
        raise ConfigurationError(
            f"[[air.rules]] {shaping[0]}: shaping needs returns that are summed without a discount; set [credit] "
            "strategy = 'return_to_go' and gamma = 1, or leave shaping out"
        )
    if ":" not in algorithm.recipe:
        _check_recipe(credit, algorithm.recipe, algorithm.resolve())


def _check_recipe(credit: CreditConfig, name: str, recipe: Recipe) -> None:
    strategy, needed = credit.strategy, RECIPES[name].credit
    if needed and not credit.is_own and strategy != needed:
        raise ConfigurationError(
            f"[algorithm] recipe = {name!r}: expected [credit] strategy = {needed!r}, got {strategy!r}; set that, or "
            "choose another recipe"
        )
    if recipe.baseline == "critic" and (strategy, credit.gamma) != ("return_to_go", 1.0):
        raise ConfigurationError(
            "[algorithm] baseline = 'critic': a critic needs returns to go without a discount; set [credit] strategy = "
            "'return_to_go' and gamma = 1 ([algorithm] gamma discounts), or another baseline"
        )
    if strategy == "turn" and not recipe.final:
        raise ConfigurationError(
            "[credit] strategy = 'turn': a turn gets only what it earned itself, so the final reward trains nothing; "
            "set [algorithm] final = 1, or recipe = 'mt_grpo'"
        )
    if strategy == "anchor" and (recipe.baseline not in _COMPARES or recipe.over != "peers"):
        raise ConfigurationError(
            "[credit] strategy = 'anchor': expected a baseline of peers, turns that began in the same state, got "
            f"[algorithm] baseline = {recipe.baseline!r} over {recipe.over!r}; set baseline = 'mean' and over = "
            "'peers', or recipe = 'gigpo'"
        )


def without_gone(table: Any) -> Any:
    """Settings as an earlier release recorded them, as far as they are known today."""

    def left(value: Any, path: str) -> Any:
        if not isinstance(value, dict):
            return value
        return {key: left(item, f"{path}{key}.") for key, item in value.items() if f"{path}{key}" not in GONE}

    return left(table, "")


def choices(kind: Any) -> list[str]:
    """The texts that a closed set allows, also one in a union; empty: anything of its type."""
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [str(member.value) for member in kind]
    if typing.get_origin(kind) is typing.Literal:
        return list(typing.get_args(kind))
    return [text for part in typing.get_args(kind) for text in choices(part)]


def type_words(kind: Any) -> str:
    """A field's type as people are told of it, on the page and in messages."""
    origin, parts = typing.get_origin(kind), [part for part in typing.get_args(kind) if part is not type(None)]
    if origin is tuple:
        return f"list of {type_words(parts[0])}"
    if origin is dict:
        return f"table of {type_words(parts[1])}"
    if allowed := choices(kind):
        return " or ".join(f"`{text}`" for text in allowed)
    return " or ".join(map(type_words, parts)) if parts else _NAMES.get(kind, "table")
