"""Every metric of every process, declared once with its name, unit and help.

In: `metrics.add(CALLS)`, `metrics.set(LAG, 7)` where it happens, in a `Metrics` (registry.py) that is handed in. Out:
its `snapshot()` on process_status and the terminal, the same numbers at `/metrics`, the tables of docs/metrics.md.
Invariants: a name or a kind that is not declared here is a type error; `exposed` names follow Prometheus' rules. A new
one touches two files: this, and where it is counted. They are all that is public, so no list repeats them.
"""

from __future__ import annotations

from collections.abc import Iterator

from .registry import Counter as Counter
from .registry import Gauge as Gauge
from .registry import Metric as Metric
from .registry import MetricOwner as MetricOwner
from .registry import Metrics as Metrics

_WORKER = MetricOwner("Every stream worker")
RECORDS = Counter("records", "Inputs folded.", terminal="records")
OPEN = Gauge("open", "Episodes or groups that wait for something.", unit="items", terminal="open")
IN_FLIGHT = Gauge("in_flight", "Emissions that wait for acknowledgement.", unit="emissions", terminal="in flight")
LAG = Gauge("lag", "Inputs on the log that are not delivered yet.", unit="records", terminal="to come")
READY = Gauge("ready", "1 while inputs are folded, 0 while partitions are taken over.")
ASSIGNED = Gauge("assigned", "1 for each input partition of this worker.", ("topic", "partition"), unit="partitions")
OUTPUTS = Counter("outputs", "Records appended.", ("topic",))
COMMITS = Counter("commits", "Commits of input offsets.", is_work=True)
PROPOSALS = Counter("proposals", "Proposals to close an episode.", ("reason",))
PROPOSALS_VOID = Counter("proposals_void", "Proposals that an episode was silent, made before more of it was read.")
DELIVERIES_DROPPED = Counter("deliveries_dropped", "Of an earlier assignment, or delivered before.", ("reason",))
OFFSETS_WITHOUT_RECORD = Counter("offsets_without_record", "Offsets that hold no record, passed by.")
CLOSED_IDS_FORGOTTEN = Counter("closed_ids_forgotten", "Closed ids that were forgotten because they are too many.")
_STAGES = MetricOwner("Its stages: normalize, assemble, credit")
FACTS = Counter("facts", "Facts made of raw records.", ("kind",))
CALLS_UNPROVED = Counter(
    "calls_unproved", "Calls, and ends of calls, of a runner's rollouts that no gateway of its run wrote.", ("kind",)
)
CONTEXT_CALLS = Counter("context_calls", "Calls that other models answered: context, which trains nothing.")
NOT_SELECTED = Counter("items_not_selected", "Raw items of other runs.", ("kind",))
OF_EVALUATORS = Counter("evaluator_items", "Spans and log records by the reward token: of no episode.", ("kind",))
ATTRIBUTES_DROPPED = Counter(
    "attributes_dropped",
    "Attributes of spans and log records that their SDK left out, by OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT and its like.",
    ("kind",),
    terminal="attributes dropped",
)
LINKS = Counter("links", "Captured traces that name another key, by what came of it.", ("outcome",))
SESSIONS_IGNORED = Counter("sessions_ignored", "Spans whose `session.id` has too many open traces.")
FACTS_LATE = Counter("facts_late", "Facts of closed episodes.", ("kind",))
EPISODES_CLOSED = Counter("episodes_closed", "Episodes by what became of them.", ("disposition",))
EPISODES_CLOSED_BY = Counter("episodes_closed_by", "Episodes by why they closed.", ("reason",))
TOLD_CALLS = Counter(
    "told_calls", "Calls that a history's spans tell, by why they leave the loss, or `exact`.", ("reason",)
)
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
CALLS_MASKED = Counter("calls_masked", "Calls of a rollout that trains whose tokens leave the loss.", ("reason",))
MEMBERS_EXCLUDED = Counter("members_excluded", "Members of closed groups that do not train.", ("reason",))
_WRITERS = MetricOwner("Any process that writes them")
DEAD_LETTERS = Counter("dead_letters", "Items that could not be used.", ("reason",), terminal="dead letters")
_READERS = MetricOwner("Any process that reads topics")
RECORDS_REFUSED = Counter("records_refused", "Records that cannot be decoded.", ("topic", "reason"))
UNREADABLE_ROWS = Counter(
    "unreadable_rows",
    "Alarms: many records in a row cannot be decoded.",
    ("topic",),
    terminal="rows of unreadable records",
)
UNVERIFIED = Counter("records_unverified", "Records left out because no key vouches for them.", ("topic", "reason"))
_OTLP = MetricOwner("OTLP gateway")
SPANS = Counter("spans", "Spans acknowledged.", terminal="spans")
LOG_RECORDS = Counter("log_records", "Log records acknowledged.", terminal="log records")
REQUESTS = Counter("requests", "Export requests acknowledged.", is_work=True)
_GATEWAYS = MetricOwner("Both gateways")
REQUESTS_REFUSED = Counter("requests_refused", "Requests answered by an error.", ("status",), terminal="refused")
REQUESTS_UNPROVED = Counter(
    "requests_unproved", "Claims to a runner's rollout without its credential.", ("reason",), terminal="unproved"
)
_LLM = MetricOwner("LLM gateway")
REQUESTS_QUARANTINED = Counter("requests_quarantined", "Requests whose claims disagree.", ("reason",))
CALLS = Counter("calls", "Calls recorded and acknowledged.", terminal="calls", is_work=True)
CALLS_SERVED = Counter("calls_served", "Calls by how their answer went.", ("outcome",))
CALLS_FAILED = Counter("calls_failed", "Calls without an answer.", ("error",))
CALLS_JOINED = Counter(
    "calls_joined",
    "Calls of agents that nobody began which named nothing and went on with the conversation whose words they repeat.",
)
CALL_OUTCOMES_DROPPED = Counter(
    "call_outcomes_dropped", "What became of captured calls, not told: Kafka was away for too long.", ("reason",)
)
CALLS_OPTED_OUT = Counter("calls_opted_out", "Requests that asked to leave no record.")
CALLS_TOO_LARGE = Counter("calls_too_large", "Calls that no record can hold.")
CALLS_UNACKNOWLEDGED = Counter("calls_unacknowledged", "Calls whose record was not acknowledged in time.")
CALLS_UNFORCED = Counter(
    "calls_unforced", "Calls sampled without the grammar that tool_choice or the engine's parser would force.", ("by",)
)
CALLS_UNPARSED = Counter(
    "calls_unparsed", "Answers that read like a tool call of which the engine's parser made none: the form is wrong."
)
TOOLS_LEFT_OUT = Counter(
    "tools_left_out", "Tools and their calls that the request's API would run itself: no prompt has them.", ("type",)
)
FEEDBACK = Counter("feedback", "Pieces of feedback acknowledged.", ("name",), terminal="feedback", is_work=True)
FEEDBACK_LATE = Counter("feedback_late", "Pieces of feedback on nothing that waited for them.")
FEEDBACK_REFUSED = Counter("feedback_refused", "Pieces of feedback refused, by the field at fault.", ("field",))
EVALUATIONS_IGNORED = Counter("evaluations_ignored", "Evaluations in spans and log records without the reward token.")
AGENT_EVENTS = Counter("agent_events", "Events that agents posted of their attempts.", ("type",))
ATTEMPTS_BEGUN_ELSEWHERE = Counter("attempts_begun_elsewhere", "Requests of attempts that did not begin here.")
SPLICES = Counter("splices", "Prompts by how they go on from the call before.", ("kind", "reason"))
PROMPT_NOTES = Counter(
    "prompt_notes",
    "Prompts whose messages were made such as the template takes, by what it refuses.",
    ("note",),
)
CALLS_NOT_REMEMBERED = Counter("calls_not_remembered", "Calls for whose splice the memory had no room.")
SESSIONS_FORGOTTEN = Counter("sessions_forgotten", "Attempts and traces that were forgotten.", ("state", "why"))
GENERATIONS_REFUSED = Counter("generations_refused", "Answers of an engine that cannot be used.")
LABELS_REFUSED = Counter("labels_refused", "Of these, for rollouts, those whose label is none of the policy's.")
RENDERS_LOCALLY = Gauge("renders_locally", "1 when prompts are rendered without the engine.")
UPSTREAM_CALLS = Counter(
    "upstream_calls", "Requests passed on to other models.", ("upstream", "status"), terminal="passed on", is_work=True
)
UPSTREAM_CALLS_UNRECORDED = Counter(
    "upstream_calls_unrecorded", "Of these, those that left no record.", ("reason",), terminal="of them unrecorded"
)
_TASKS = MetricOwner("Tasks")
GROUPS_ADMITTED = Counter(
    "groups_admitted", "Groups asked for.", ("purpose",), terminal="groups admitted", is_work=True
)
_RUNNER = MetricOwner("Runner")
ATTEMPTS_BEGUN = Counter("attempts_begun", "Attempts that began here.", terminal="attempts")
OUTCOMES = Counter(
    "outcomes", "Attempts that ended, and rollouts given up.", ("state",), terminal="ended", is_work=True
)
_TRAINER = MetricOwner("Trainer")
STEPS = Counter("steps", "Batches recorded, trained or skipped.", terminal="steps", is_work=True)
GROUPS_TRAINED = Counter("groups_trained", "Groups of these batches that train.", terminal="groups")
GROUPS_EXCLUDED = Counter("groups_excluded", "Groups taken that do not train.", ("reason",), terminal="excluded")
GROUPS_TAKEN = Gauge(
    "groups_taken", "Groups consumed, and of the batch that is read; told only while no record is left to read."
)
ALARMS_BEGUN = Counter("alarms", "Alarms that began to hold.", ("alarm",), terminal="alarms")
REPLAY_STEP = Gauge("replay_steps_done", "Of a history: steps done.", terminal="steps done")
REPLAY_STEPS = Gauge(
    "replay_steps", "Steps of the whole history, by the groups that are left.", terminal="steps in all"
)
PAUSED = Gauge("paused_at_step", "Step after which an alarm paused the training.", terminal="paused at step")
TOKENS_TRAINED = Counter("tokens_trained", "Trained tokens of these batches.")
STEP_SECONDS = Counter("step", "Time of these batches by phase: where it goes.", ("phase",), unit="seconds")
TRAINING_STEP = Gauge("training_step", "Number of the last batch; it and what follows outlive a restart.")
LAST_STEP = Gauge("last_step_timestamp", "When that was concluded, in seconds since 1970.", unit="seconds")
VERSION = Gauge("version", "The newest version after it.")
REWARD = Gauge("reward", "Mean final reward of its scored rollouts.")
REWARD_DEVIATION = Gauge("reward_deviation", "Standard deviation of final rewards within a group, mean over groups.")
RULE_REWARD = Gauge("rule_reward", "What a rule (of AIR as air:NAME) paid a rollout, on the mean.", ("rule",))
STALENESS = Gauge("staleness", "Mean age of its trained tokens.", unit="versions")
STALENESS_GREATEST = Gauge("greatest_staleness", "Age of the oldest of them.", unit="versions")
STALENESS_BOUND = Gauge("staleness_bound", "Beyond it a group is excluded ([trainer] max_staleness).", unit="versions")
ENTROPY = Gauge("entropy", "Of the sampler, a token.", unit="nats")
GRADIENT_NORM = Gauge("gradient_norm", "Before it was clipped.")
EFFECTIVE_SAMPLE = Gauge("effective_sample", "Effective sample size as a share of the trained tokens.", unit="ratio")
CLIPPED = Gauge("clipped_tokens", "Share of them at which a bound holds the gradient back.", unit="ratio")
LOGPROB_ERROR = Gauge("logprob_error", "Greatest difference between sampler and trainer.", unit="nats")
ALARMS_HOLDING = Gauge("alarms_holding", "1 for each alarm that holds after it.", ("alarm",))
_ENGINE_USERS = MetricOwner("LLM gateway and weight sync")
ENGINE_AWAY = Counter("engine_absences", "Times that an engine did not answer.")
_WEIGHT_SYNC = MetricOwner("Weight sync")
VERSIONS_SERVED = Counter("versions_served", "Versions acknowledged.", terminal="versions served", is_work=True)
VERSIONS_SKIPPED = Counter("versions_skipped", "Versions passed over for a newer one.")
VERSIONS_REFUSED = Counter("versions_refused", "Versions that cannot be served.", ("reason",), terminal="refused")
_SUPERVISOR = MetricOwner("Supervisor")
PROCESSES_RUNNING = Gauge(
    "processes_running", "1 for each process of the run that runs, 0 for one that does not.", ("name",)
)
PROCESS_RESTARTS = Counter("process_restarts", "Processes that died and are started again.", ("name",))


def declared() -> Iterator[Metric]:
    """All of them, in the order of this file."""
    return (value for value in globals().values() if isinstance(value, Metric))
