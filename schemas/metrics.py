"""Every metric of every process, declared once with its name, unit and help; and the registry that counts them.

In: `metrics.add(CALLS)`, `metrics.set(LAG, 7)` where it happens, in a `Metrics` that is handed in. Out: `snapshot()`,
plain numbers by series, for process_status, the terminal and, later, Prometheus. Invariants: a name or a kind that is
not declared here is a type error; the number of series is bounded. A new one touches two files: this, and where it is
counted. One thread counts in a registry; any may take a snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

__all__ = [
    "AGENT_EVENTS",
    "AIR_FUNCTION_FAILED",
    "AIR_PAYMENTS_LEFT_OUT",
    "ALARMS_BEGUN",
    "ASSIGNED",
    "ATTEMPTS_BEGUN",
    "ATTEMPTS_BEGUN_ELSEWHERE",
    "ATTEMPTS_ENDED",
    "ATTEMPTS_NOT_REBUILT",
    "ATTEMPTS_REBUILT",
    "CALLS",
    "CALLS_CAPTURED",
    "CALLS_FAILED",
    "CALLS_JOINED",
    "CALLS_JOINED_BY",
    "CALLS_LEFT_OUT",
    "CALLS_NAMED_BY",
    "CALLS_NOT_REMEMBERED",
    "CALLS_OPTED_OUT",
    "CALLS_SERVED",
    "CALLS_TOO_LARGE",
    "CALLS_UNACKNOWLEDGED",
    "CALLS_UNPROVED",
    "CALL_OUTCOMES_DROPPED",
    "CLOSED_IDS_FORGOTTEN",
    "COMMITS",
    "CONTEXT_CALLS",
    "CREDIT_EPISODES",
    "DEAD_LETTERS",
    "DELIVERIES_DROPPED",
    "EMISSIONS",
    "ENGINE_AWAY",
    "EPISODES_CLOSED",
    "EPISODES_CLOSED_BY",
    "EVALUATIONS_IGNORED",
    "FACTS",
    "FACTS_LATE",
    "FEEDBACK",
    "FEEDBACK_LATE",
    "FEEDBACK_REFUSED",
    "GENERATIONS_REFUSED",
    "GROUPS",
    "GROUPS_ADMITTED",
    "GROUPS_EXCLUDED",
    "GROUPS_TAKEN",
    "GROUPS_TRAINED",
    "IN_FLIGHT",
    "LAG",
    "LINKS",
    "LOG_RECORDS",
    "MEMBERS_EXCLUDED",
    "NOT_SELECTED",
    "OFFSETS_WITHOUT_RECORD",
    "OF_EVALUATORS",
    "OPEN",
    "OPEN_INPUTS",
    "OPEN_RANGES",
    "OUTCOMES",
    "OUTPUTS",
    "PAUSED",
    "PROPOSALS",
    "PROPOSALS_VOID",
    "READY",
    "RECORDS",
    "RECORDS_REFUSED",
    "RENDERS_LOCALLY",
    "REPLAY_STEP",
    "REPLAY_STEPS",
    "REQUESTS",
    "REQUESTS_QUARANTINED",
    "REQUESTS_REFUSED",
    "REQUESTS_UNPROVED",
    "SCORES",
    "SESSIONS_FORGOTTEN",
    "SESSIONS_IGNORED",
    "SOURCES_AWAY",
    "SOURCES_FAILED",
    "SPANS",
    "SPLICES",
    "STEPS",
    "TOOLS_WITHOUT_ID",
    "UNREADABLE_ROWS",
    "UNVERIFIED",
    "UPSTREAM_CALLS",
    "UPSTREAM_CALLS_UNRECORDED",
    "VERSIONS_LOADED",
    "VERSIONS_REFUSED",
    "VERSIONS_SERVED",
    "VERSIONS_SKIPPED",
    "Counter",
    "Gauge",
    "Metrics",
    "declared",
]

_MAX_SERIES = 1_000
"""Of one registry; beyond it new label values are counted together as `other`."""
_OTHER = "other"


class Metric(msgspec.Struct, frozen=True, eq=False):
    """What is counted."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
    """Names of the labels; each has few values."""
    unit: str = ""
    """`records`, `bytes`, `seconds`; empty when the name says it."""
    terminal: str = ""
    """Its word on the terminal, summed over the labels; empty: not shown there."""


class Counter(Metric, frozen=True, eq=False):
    """Only grows while the process lives."""

    is_work: bool = False
    """Whether it counts work that is done for good: what dies after some was not restarted in vain."""


class Gauge(Metric, frozen=True, eq=False):
    """What is so now."""


# Every stream worker.
RECORDS = Counter("records", "Inputs folded.", terminal="records")
OPEN = Gauge("open", "Episodes or groups that wait for something.", terminal="open")
IN_FLIGHT = Gauge("in_flight", "Emissions that wait for acknowledgement.", terminal="in flight")
LAG = Gauge("lag", "Inputs on the log that are not delivered yet.", unit="records", terminal="to come")
READY = Gauge("ready", "1 while inputs are folded, 0 while partitions are taken over.")
ASSIGNED = Gauge("assigned", "1 for each input partition of this worker.", ("topic", "partition"))
OPEN_INPUTS = Gauge("open_inputs", "Inputs on which something open depends.", unit="records")
OPEN_RANGES = Gauge("open_ranges", "Runs of offsets that the ledger holds for them.")
EMISSIONS = Counter("emissions", "Fold steps that led to records.")
OUTPUTS = Counter("outputs", "Records appended.", ("topic",))
COMMITS = Counter("commits", "Commits of input offsets.", is_work=True)
PROPOSALS = Counter("proposals", "Proposals to close an episode.", ("reason",))
PROPOSALS_VOID = Counter("proposals_void", "Proposals that an episode was silent, made before more of it was read.")
DELIVERIES_DROPPED = Counter("deliveries_dropped", "Of an earlier assignment, or delivered before.", ("reason",))
OFFSETS_WITHOUT_RECORD = Counter("offsets_without_record", "Offsets that hold no record, passed by.")
CLOSED_IDS_FORGOTTEN = Counter("closed_ids_forgotten", "Closed ids that were forgotten because they are too many.")
# Its stages: normalize, assemble, credit.
FACTS = Counter("facts", "Facts made of raw records.", ("kind",))
CALLS_UNPROVED = Counter(
    "calls_unproved", "Calls, and ends of calls, of a runner's rollouts that no gateway of its run wrote.", ("kind",)
)
CONTEXT_CALLS = Counter("context_calls", "Calls that other models answered: context, which trains nothing.")
NOT_SELECTED = Counter("not_selected", "Raw items of other runs.", ("kind",))
OF_EVALUATORS = Counter("of_evaluators", "Spans and log records by the reward token: of no episode.", ("kind",))
LINKS = Counter("links", "Captured traces that name another key, by what came of it.", ("outcome",))
SESSIONS_IGNORED = Counter("sessions_ignored", "Spans whose `session.id` has too many open traces.")
FACTS_LATE = Counter("facts_late", "Facts of closed episodes.", ("kind",))
EPISODES_CLOSED = Counter("episodes_closed", "Episodes by what became of them.", ("disposition",))
EPISODES_CLOSED_BY = Counter("episodes_closed_by", "Episodes by why they closed.", ("reason",))
CALLS_JOINED_BY = Counter("calls_joined_by", "Calls of episodes by what joined them to spans.", ("rung",))
CALLS_NAMED_BY = Counter("calls_named_by", "Calls of episodes by what named their agent.", ("rung",))
AIR_FUNCTION_FAILED = Counter(
    "air_function_failed", "Episodes for which the function of [air] failed, and paid nothing.", ("reason",)
)
AIR_PAYMENTS_LEFT_OUT = Counter(
    "air_payments_left_out",
    "What the function of [air] said and is not paid: not finite, nameless, for no call that was taken, past the cap.",
)
TOOLS_WITHOUT_ID = Counter(
    "tools_without_id",
    "Tool executions joined by name and time alone; AIR rewards them only with [air] pays_without_id.",
)
CREDIT_EPISODES = Counter("credit_episodes", "Episodes read by credit, by where they went.", ("place",))
GROUPS = Counter("groups", "Groups closed.")
CALLS_LEFT_OUT = Counter("calls_left_out", "Calls of a rollout that trains whose prompt cannot be rebuilt.")
MEMBERS_EXCLUDED = Counter("members_excluded", "Members of closed groups that do not train.", ("reason",))
# Any process that writes them.
DEAD_LETTERS = Counter("dead_letters", "Items that could not be used.", ("reason",), terminal="dead letters")
# Any process that reads topics.
RECORDS_REFUSED = Counter("records_refused", "Records that cannot be decoded.", ("topic", "reason"))
UNREADABLE_ROWS = Counter(
    "unreadable_rows",
    "Alarms: many records in a row cannot be decoded.",
    ("topic",),
    terminal="rows of unreadable records",
)
UNVERIFIED = Counter("unverified", "Records left out because no key vouches for them.", ("topic", "reason"))
# OTLP gateway.
SPANS = Counter("spans", "Spans acknowledged.", terminal="spans")
LOG_RECORDS = Counter("log_records", "Log records acknowledged.", terminal="log records")
REQUESTS = Counter("requests", "Export requests acknowledged.", is_work=True)
# Both gateways.
REQUESTS_REFUSED = Counter("requests_refused", "Requests answered by an error.", ("status",), terminal="refused")
REQUESTS_UNPROVED = Counter(
    "requests_unproved", "Claims to a runner's rollout without its credential.", ("reason",), terminal="unproved"
)
# LLM gateway.
REQUESTS_QUARANTINED = Counter("requests_quarantined", "Requests whose claims disagree.", ("reason",))
CALLS = Counter("calls", "Calls recorded and acknowledged.", terminal="calls", is_work=True)
CALLS_SERVED = Counter("calls_served", "Calls by how their answer went.", ("outcome",))
CALLS_FAILED = Counter("calls_failed", "Calls without an answer.", ("error",))
CALLS_CAPTURED = Counter("calls_captured", "Calls of agents that nobody began.")
CALLS_JOINED = Counter(
    "calls_joined",
    "Of these, calls that named nothing and went on with the conversation whose words they repeat.",
)
CALL_OUTCOMES_DROPPED = Counter(
    "call_outcomes_dropped", "What became of captured calls, not told: Kafka was away for too long.", ("reason",)
)
CALLS_OPTED_OUT = Counter("calls_opted_out", "Requests that asked to leave no record.")
CALLS_TOO_LARGE = Counter("calls_too_large", "Calls that no record can hold.")
CALLS_UNACKNOWLEDGED = Counter("calls_unacknowledged", "Calls whose record was not acknowledged in time.")
FEEDBACK = Counter("feedback", "Pieces of feedback acknowledged.", ("name",), terminal="feedback", is_work=True)
FEEDBACK_LATE = Counter("feedback_late", "Pieces of feedback on nothing that waited for them.")
FEEDBACK_REFUSED = Counter("feedback_refused", "Pieces of feedback refused, by the field at fault.", ("field",))
SCORES = Counter("scores", "Scores of [feedback.sources], taken or by the field at fault.", ("source", "outcome"))
SOURCES_FAILED = Counter("sources_failed", "Readings of a source that failed.", ("source", "reason"))
SOURCES_AWAY = Gauge(
    "sources_away",
    "1 for each source of scores whose last reading failed.",
    ("source",),
    terminal="score sources away",
)
EVALUATIONS_IGNORED = Counter("evaluations_ignored", "Evaluations in spans and log records without the reward token.")
AGENT_EVENTS = Counter("agent_events", "Events that agents posted of their attempts.", ("type",))
ATTEMPTS_ENDED = Counter("attempts_ended", "Attempts that ended here.")
ATTEMPTS_REBUILT = Counter("attempts_rebuilt", "Attempts of a gateway that was restarted, gone on with.")
ATTEMPTS_NOT_REBUILT = Counter("attempts_not_rebuilt", "Likewise, those that could not be.", ("reason",))
ATTEMPTS_BEGUN_ELSEWHERE = Counter("attempts_begun_elsewhere", "Requests of attempts that did not begin here.")
SPLICES = Counter("splices", "Prompts by how they go on from the call before.", ("kind", "reason"))
CALLS_NOT_REMEMBERED = Counter("calls_not_remembered", "Calls for whose splice the memory had no room.")
SESSIONS_FORGOTTEN = Counter("sessions_forgotten", "Attempts and traces that were forgotten.", ("state", "why"))
GENERATIONS_REFUSED = Counter("generations_refused", "Answers of an engine that cannot be used.")
RENDERS_LOCALLY = Gauge("renders_locally", "1 when prompts are rendered without the engine.")
UPSTREAM_CALLS = Counter(
    "upstream_calls", "Requests passed on to other models.", ("upstream", "status"), terminal="passed on", is_work=True
)
UPSTREAM_CALLS_UNRECORDED = Counter(
    "upstream_calls_unrecorded", "Of these, those that left no record.", ("reason",), terminal="of them unrecorded"
)
# Tasks.
GROUPS_ADMITTED = Counter(
    "groups_admitted", "Groups asked for.", ("purpose",), terminal="groups admitted", is_work=True
)
# Runner.
ATTEMPTS_BEGUN = Counter("attempts_begun", "Attempts that began here.", terminal="attempts")
OUTCOMES = Counter(
    "outcomes", "Attempts that ended, and rollouts given up.", ("state",), terminal="ended", is_work=True
)
# Trainer.
STEPS = Counter("steps", "Batches recorded, trained or skipped.", terminal="steps", is_work=True)
GROUPS_TRAINED = Counter("groups_trained", "Groups of these batches that train.", terminal="groups")
GROUPS_EXCLUDED = Counter("groups_excluded", "Groups taken that do not train.", ("reason",), terminal="excluded")
GROUPS_TAKEN = Gauge(
    "groups_taken", "Groups consumed, and of the batch that is read; told only while no record is left to read."
)
ALARMS_BEGUN = Counter("alarms", "Alarms that began to hold.", ("alarm",), terminal="alarms")
REPLAY_STEP = Gauge("replay_step", "Of a history: steps done.", terminal="steps done")
REPLAY_STEPS = Gauge(
    "replay_steps", "Steps of the whole history, by the groups that are left.", terminal="steps in all"
)
PAUSED = Gauge("paused", "Step after which an alarm paused the training.", terminal="paused at step")
# LLM gateway and weight sync.
ENGINE_AWAY = Counter("engine_away", "Times that an engine did not answer.")
# Weight sync.
VERSIONS_SERVED = Counter("versions_served", "Versions acknowledged.", terminal="versions served", is_work=True)
VERSIONS_LOADED = Counter("versions_loaded", "Versions loaded.")
VERSIONS_SKIPPED = Counter("versions_skipped", "Versions passed over for a newer one.")
VERSIONS_REFUSED = Counter("versions_refused", "Versions that cannot be served.", ("reason",), terminal="refused")


def declared() -> Iterator[Metric]:
    """All of them, in the order of this file."""
    return (value for value in globals().values() if isinstance(value, Metric))


class Metrics:
    """The counts of one process since it started, or of one part of it."""

    def __init__(self, *, max_series: int = _MAX_SERIES) -> None:
        self.work = 0.0
        """The sum of all counters of work done."""
        self._max_series = max_series
        self._values: dict[tuple[Metric, tuple[str, ...]], float] = {}

    def add(self, counter: Counter, *labels: str, num: float = 1) -> None:
        """Counts `num` more."""
        series = self._series(counter, labels)
        self._values[series] = self._values.get(series, 0) + num
        self.work += num * counter.is_work

    def set(self, gauge: Gauge, value: float, *labels: str) -> None:
        """What is so now."""
        self._values[self._series(gauge, labels)] = float(value)

    def clear(self, gauge: Gauge) -> None:
        """Forgets every series of a gauge."""
        for series in [series for series in self._values if series[0] is gauge]:
            del self._values[series]

    def value(self, metric: Metric, *labels: str) -> float:
        """Of one series; without labels the sum over all of the metric's."""
        if labels:
            return self._values.get((metric, labels), 0)
        return sum(value for series, value in self._values.copy().items() if series[0] is metric)

    def snapshot(self) -> dict[str, float]:
        """By series in order, such as `records` and `dead_letters{reason=malformed}`."""
        return dict(sorted((_text(*series), value) for series, value in self._values.copy().items()))

    def _series(self, metric: Metric, labels: tuple[str, ...]) -> tuple[Metric, tuple[str, ...]]:
        if len(labels) != len(metric.labels):
            raise ValueError(f"expected values of {metric.labels} for metric {metric.name}, got {labels}")
        series = metric, labels
        if labels and series not in self._values and len(self._values) >= self._max_series:
            return metric, (_OTHER,) * len(labels)
        return series


def _text(metric: Metric, labels: tuple[str, ...]) -> str:
    pairs = ",".join(f"{name}={value}" for name, value in zip(metric.labels, labels, strict=True))
    return f"{metric.name}{{{pairs}}}" if pairs else metric.name
