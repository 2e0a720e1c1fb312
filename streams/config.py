"""What the streams stages are told: one record for the three folds and their Faust shell.

In: the composition root builds it from the user's file. Invariant: it is plain data (JSON-able), checked when it is
made; a value that cannot work raises ConfigurationError with the key and the remedy.
"""

from __future__ import annotations

import math

import msgspec

from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.ids import parse_run_hash

from .assemble.air.rules import AirRule

__all__ = ["AirRule", "Select", "StreamLimits", "StreamsConfig"]


class Select(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which episodes a run takes besides those of its own rollouts; the rest is `not_selected`.

    An episode without a rollout is taken when `capture_all` is set, or when `services` or `agents` name
    something and each of the two that is not empty matches one of the episode's. Judged after the join.
    """

    runs: tuple[str, ...] = ()
    """Hashes (8 hex) of other runs whose rollouts are taken too: a replay names the run it replays."""
    services: tuple[str, ...] = ()
    """Globs on `service.name`."""
    agents: tuple[str, ...] = ()
    """Globs on agent names."""
    from_ns: int | None = None
    """Only episodes without a rollout whose first span or call began at or after this time (unix ns)."""
    until_ns: int | None = None
    """Only those that began before this time."""
    capture_all: bool = False
    """Take every episode without a rollout, whatever its service and agent."""


class StreamLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds on memory. What exceeds them is a dead letter with the bound's name as its reason."""

    max_open_episodes: int = 20_000
    """Per worker. Above 90 % the longest-silent episode without runner is proposed for closing (`bound`);
    at the bound, facts that would open another episode are dead letters (`too_many_open`)."""
    max_facts_per_episode: int = 20_000
    """Spans and calls; further ones are dead letters (`too_many_facts`) and the episode closes by deadline."""
    max_bytes_per_episode: int = 64 * 1024 * 1024
    """Of input records; further ones are dead letters (`too_many_bytes`)."""
    max_open_groups: int = 4_096
    """Per worker; episodes that would open another group are dead letters (`too_many_open`)."""
    max_closed_ids: int = 1_000_000
    """Closed ids remembered per worker; beyond it the oldest are forgotten, counted. About 120 bytes each."""


class StreamsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Configuration of the stages normalize, assemble and credit."""

    bootstrap_servers: str
    """Kafka's `host:port[,host:port]`."""
    data_dir: str
    """Folder that a run's workers share: status, locks, poison list, Faust's own files; made when it is missing."""
    run_hash: str
    """8 hex; rollout ids and trace ids that begin with it are the run's own."""
    policies: tuple[str, ...]
    """Trained policies; a policy's index is its partition of `transitions`. Calls of others are context."""
    instance_id: str | None = None
    """Static group membership (an ordinal from the launcher); None: a dynamic member."""
    partitions: int = 4
    """Of `episode_events`, `episodes` and the `closed_*` topics; checked at start."""
    kafka: dict[str, str] = {}
    """Security settings of the user's cluster (`security.protocol`, `sasl.*`, `ssl.*`)."""

    air: tuple[AirRule, ...] = ()
    """Intermediate rewards, applied in this order."""
    reward_sources: tuple[str, ...] = ("grader:*",)
    """Globs on the sources whose rewards count."""
    select: Select = Select()
    """What is taken besides the run's own rollouts."""
    limits: StreamLimits = StreamLimits()
    """Memory bounds."""
    tool_error_prefixes: tuple[str, ...] = ("error", "traceback", "exception")
    """A tool result that begins with one of these words (any case) failed, when nothing stronger says so."""

    deadline_s: float = 5.0
    """After an attempt's end, how long lost or uncounted spans and calls are waited for."""
    incomplete_s: float = 60.0
    """After an attempt's end, how long counted ones are waited for; a safety net, since they were acknowledged."""
    idle_s: float = 10.0
    """Silence after which an episode without rollout closes."""
    orphan_s: float = 600.0
    """Silence after which a rollout's episode closes of which no runner ever spoke. Long: its events may be late,
    since they travel on another topic than its spans."""

    commit_interval_s: float = 1.0
    """Seconds between commits of the low-water marks."""
    propose_interval_s: float = 0.5
    """Seconds between looks for due close proposals."""
    ack_timeout_s: float = 30.0
    """An output not acknowledged by then ends the worker, which is then restarted."""
    max_in_flight: int = 1_000
    """Emissions that wait for acknowledgement; at the bound, reading waits."""
    session_timeout_s: float = 10.0
    """Kafka session: how long a killed worker's partitions stand still at most."""
    fetch_max_wait_ms: int = 50
    """Faust's hard-coded 1500 stalls busy partitions behind idle ones."""
    fetch_min_bytes: int = 64 * 1024
    """Gathered by the broker, for at most `fetch_max_wait_ms`: a fetch for each record costs more than the record."""
    stall_s: float = 60.0
    """A delivered position that stands still this long under lag ends the worker."""

    @property
    def runs(self) -> frozenset[str]:
        """Hashes of the runs whose rollouts this run takes: its own and those selected."""
        return frozenset((self.run_hash, *self.select.runs))

    def __post_init__(self) -> None:
        for name, hashes in (("run_hash", (self.run_hash,)), ("select.runs", self.select.runs)):
            try:
                for text in hashes:
                    parse_run_hash(text)
            except ValueError as error:
                raise ConfigurationError(f"{name}: {error}") from None
        if not self.policies or len(set(self.policies)) != len(self.policies):
            raise ConfigurationError("policies: expected one or more distinct names; name each trained policy once")
        names = [rule.name for rule in self.air]
        if len(set(names)) != len(names):
            raise ConfigurationError(f"air: expected distinct rule names, got {names}; rename one")
        for name in _SECONDS:
            seconds = getattr(self, name)
            if not (math.isfinite(seconds) and seconds > 0):
                raise ConfigurationError(f"{name}: expected a positive number of seconds, got {seconds}")


_SECONDS = (
    "deadline_s",
    "incomplete_s",
    "idle_s",
    "orphan_s",
    "commit_interval_s",
    "propose_interval_s",
    "ack_timeout_s",
    "session_timeout_s",
    "stall_s",
)
