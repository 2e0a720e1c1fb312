"""Every reason for which something is left out: where it is seen, a sentence for people, and what to do.

In: a word, as records, dead letters and metrics hold it. Out: its words. A member's docstring is its row of
docs/reasons.md: `where it is seen: the sentence -> the remedy` (`python -m tracegrad.schemas.reasons` prints the page).
Invariant: whatever is raised or counted with a reason has a member here; what it writes are the same bytes as before
there was one. Failure: none; a word of a later release, or of a user's own, is shown as it is.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from functools import cache
from typing import NamedTuple

from .section import documented


class Reason(StrEnum):
    """One word each; the places where it is seen come first."""

    MALFORMED = "malformed"
    """dead letter, group: Its bytes are no record that its topic may hold. -> Read the dead letter's `detail`."""
    UNDECODABLE = "undecodable"
    """dead letter: Its bytes are no OTLP request. -> Send protobuf to the topic, or JSON to the OTLP gateway."""
    DAMAGED = "damaged"
    """dead letter: A part cannot be read, as a text that is no UTF-8; the rest of the request counts. -> Mend the
    exporter that sends it; where Kafka says it of a segment, put that back from a copy."""
    NULL_VALUE = "null_value"
    """dead letter: It has no value. -> Find out who appends tombstones to the topic."""
    UNKNOWN_SCHEMA = "unknown_schema"
    """dead letter, group: It was written by a later release than the one that reads it. -> Run one release for all."""
    UNKNOWN_TOPIC = "unknown_topic"
    """dead letter: normalize does not read the topic. -> Look at [kafka.topics]."""
    TOO_LARGE = "too_large"
    """dead letter, group, rollout: It is larger than its topic takes. -> Raise the key of [kafka.max_message_bytes]
    that the group's `detail` names."""
    REFUSED = "refused"
    """dead letter: Kafka did not take it. -> Read the `detail`, which has Kafka's own words."""
    POISON = "poison"
    """dead letter: Folding it ended the worker several times. -> Read the worker's log; where memory ran out, give it
    more and lower [streams] max_open_bytes."""
    FOREIGN_RUN = "foreign_run"
    """dead letter: It asks for a rollout of another run. -> Look at who else writes this run's topics."""
    BAD_TRACE_ID = "bad_trace_id"
    """dead letter: Its trace id has not 16 bytes. -> Mend the exporter that sends it."""
    BAD_SPAN_ID = "bad_span_id"
    """dead letter: Its span id has not 8 bytes. -> Mend the exporter that sends it."""
    INVALID_ID = "invalid_id"
    """dead letter: Its trace or span id has a wrong length. -> Mend the exporter that sends it."""
    ITEM_TOO_LARGE = "item_too_large"
    """dead letter: One span or log record alone fits in no message. -> Have the SDK cut attributes
    (OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT)."""
    BAD_IDENTITY = "bad_identity"
    """dead letter: What it names as rollout, attempt or trace is no such id. -> Leave OTEL_RESOURCE_ATTRIBUTES as the
    agent finds it."""
    NO_IDENTITY = "no_identity"
    """dead letter: It names neither a rollout nor a trace. -> Export spans with trace ids."""
    NO_ATTEMPT = "no_attempt"
    """dead letter: It names a rollout and no attempt. -> Leave OTEL_RESOURCE_ATTRIBUTES as the agent finds it."""
    IDENTITY_CONFLICT = "identity_conflict"
    """dead letter: What it names disagrees: two rollouts, or another attempt by its trace id. -> Let each process have
    the variables of one attempt alone."""
    IDENTITY_DISAGREEMENT = "identity_disagreement"
    """dead letter, request: A model call names several rollouts, by path, key, headers and baggage. -> Send one."""
    MALFORMED_IDENTITY = "malformed_identity"
    """dead letter, request: What a model call names is no id. -> Leave the agent's OPENAI_BASE_URL and key alone."""
    LATE = "late"
    """dead letter: It was forwarded to a rollout of which no attempt is open any more. -> Nothing; it came too late."""
    TOO_MANY_OPEN = "too_many_open"
    """dead letter: More episodes are open than a worker may hold. -> Raise [streams] max_open_episodes or workers."""
    TOO_MANY_CALLS = "too_many_calls"
    """dead letter: The episode has too many calls. -> Raise [streams] max_calls_per_episode."""
    TOO_MANY_SPANS = "too_many_spans"
    """dead letter: The episode has too many spans. -> Raise [streams] max_spans_per_episode, or sample HTTP spans."""
    TOO_MANY_BYTES = "too_many_bytes"
    """dead letter: The episode's records are too large in all. -> Raise [streams] max_bytes_per_episode."""
    TOO_MANY_OPEN_BYTES = "too_many_open_bytes"
    """dead letter, rollout: Open episodes, or groups, leave no room for it. -> Raise [streams] max_open_bytes."""
    TOO_MANY_SCORES = "too_many_scores"
    """dead letter: Too much feedback waits for its episodes. -> Look at who sends it."""
    BAD_GROUP = "bad_group"
    """dead letter: Its place in its group cannot be. -> Look at who else writes `rollout_events`."""
    WRONG_POLICY = "wrong_policy"
    """group: It is of another policy than this trainer's. -> Look at who else writes `transitions`."""
    VOCABULARY = "vocabulary"
    """group: A token id lies outside the model's vocabulary. -> Serve and train one model."""
    TOO_LONG = "too_long"
    """group: A row has too many tokens. -> Raise [trainer] max_row_tokens."""
    ZERO_TEMPERATURE = "zero_temperature"
    """group: A trained token was sampled greedily. -> Look at who else writes `transitions`."""

    CONSTRAINED = "constrained"
    """call: A grammar or a filter chose among the tokens, so the logprobs are not the policy's. -> The agent forces its
    answers (`response_format`, a forced tool): leave that out where it learns."""
    CUT_SAMPLING = "cut_sampling"
    """call: It was sampled from a part of the distribution. -> Agents cut the distribution (top_p, top_k or the like):
    [select] sampling = 'forced'."""
    TRUNCATED = "truncated"
    """call: The token limit ended the answer, not the policy. -> Answers end at the token limit: raise max_tokens, or
    [select] truncated = 'train'."""
    CLIENT_DISCONNECTED = "client_disconnected"
    """call: The client was gone before the answer was sent. -> The client that hung up, or the gateway's log, says
    why."""
    OUTCOME_UNKNOWN = "outcome_unknown"
    """call: Nobody told whether the client got the answer. -> The client that hung up, or the gateway's log, says
    why."""
    SUPERSEDED = "superseded"
    """call, episode: The client asked again and went on with another answer; of an episode: a later attempt counts. ->
    Each answer was asked for again: raise the client's timeout."""
    MISSING_PARENT = "missing_parent"
    """call: Its prompt goes on from a call that is not there. -> Earlier calls of the conversations are not there: look
    at `tracegrad tail dead_letters`."""
    NOT_CHOSEN = "not_chosen"
    """call: It is one of several answers to a request, of which the agent made nothing. -> Ask for one (`n`)."""
    BAD_LOGPROBS = "bad_logprobs"
    """call: Its logprobs are not finite, positive, or not one a token. -> Look at the engine's version."""
    BAD_TEMPERATURE = "bad_temperature"
    """call: It was sampled greedily, or at an absurd temperature. -> The agent samples greedily (temperature 0), which
    has no distribution to learn from: raise it."""
    BAD_VERSIONS = "bad_versions"
    """call: The engine did not say which version sampled it. -> Have the engine serve versions of this run alone."""

    ABORTED = "aborted"
    """rollout: The attempt broke off by our own fault. -> The attempts break off: look at the runner's log."""
    GIVEN_UP = "given_up"
    """rollout: No attempt of it ended. -> The attempts break off: look at the runner's log."""
    UNKNOWN_STATE = "unknown_state"
    """rollout: Nobody said how the attempt ended. -> Look at the runner's log."""
    NO_CALLS = "no_calls"
    """rollout: Its agent never called the policy. -> The agent calls another endpoint, or none: does its client use
    OPENAI_BASE_URL?"""
    UNSCORED = "unscored"
    """rollout, episode: It has no reward. -> No reward came: look at the grader, or at who rates."""
    STRATEGY_FAILED = "strategy_failed"
    """rollout: The strategy of [credit] raised, or gave something else. -> Read the group's `detail`."""
    BAD_RETURN = "bad_return"
    """rollout: A call's return is not finite, or absurd. -> Look at the grader and the rules of [air]."""
    BAD_WEIGHT = "bad_weight"
    """rollout: A call's weight is not finite, or absurd. -> Look at the strategy of [credit]."""
    BROKEN_PREFIX = "broken_prefix"
    """rollout: No prompt of its calls can be rebuilt. -> Look at `tracegrad tail dead_letters`."""
    BAD_TOKENS = "bad_tokens"
    """rollout: A token id is negative. -> Look at the engine's version."""
    BELOW_BOUND = "below_bound"
    """rollout, group: Its final reward is below the bound of a run that trains by `filter`. -> No final reward reaches
    [replay] bound: lower it, --set replay.bound=0.5."""

    ALL_MEMBERS_EXCLUDED = "all_members_excluded"
    """group: None of its rollouts can train. -> Read why each was left out, in `members`."""
    UNENCODABLE = "unencodable"
    """group: Its rows cannot be written as Arrow. -> Read the group's `detail`."""
    NO_ROWS = "no_rows"
    """group: It came without rows, and without a reason. -> Look at who else writes `transitions`."""
    STALE = "stale"
    """group: It was sampled by too old a version. -> Samples are too old: lower [pace] staleness, or raise [trainer]
    max_staleness."""
    NEWER = "newer"
    """group: It was sampled by a version that the trainer has not made. -> Nothing; a rollback does this."""
    OTHER_RUN = "other_run"
    """group, record: It is of another run. -> Nothing; on shared topics it is common."""
    DUPLICATE = "duplicate"
    """group: It was read before. -> Nothing; a worker that dies appends records again."""
    LOW_ESS = "low_ess"
    """group: Its effective sample size is too small: sampler and policy are too far apart. -> Replay fewer versions."""
    LOW_SPREAD = "low_spread"
    """group: Others differ more in their rewards. -> Raise [algorithm] share."""
    NO_SPREAD = "no_spread"
    """group: Its rollouts have equal rewards. -> Rewards within each group are equal: tasks neither too hard nor solved
    are needed; a broken grader gives such rewards too: look at `tracegrad episodes`."""

    NO_ADVANTAGE = "no_advantage"
    """step, group: All advantages are 0. -> Rewards within each group are equal: tasks neither too hard nor solved are
    needed; a broken grader gives such rewards too: look at `tracegrad episodes`."""
    NO_TOKENS = "no_tokens"
    """step, group: No token is in the loss. -> Read why calls were masked."""
    NON_FINITE = "non_finite"
    """step, group: The loss or the gradients are not finite. -> Lower [trainer] lr."""
    WITHOUT_GROUP = "without_group"
    """episode: No runner started it. -> Captured conversations train with [select] train = true alone."""
    NOT_TRAINING = "not_training"
    """episode: It is of a held-out task. -> Nothing."""
    OF_CLOSED_GROUP = "of_closed_group"
    """episode: Its group closed before it came. -> Nothing; a worker that dies appends records again."""

    NO_CREDENTIAL = "no_credential"
    """request: It claims a runner's rollout without its credential. -> Send OPENAI_API_KEY, or
    OTEL_EXPORTER_OTLP_HEADERS, as the agent finds it."""
    OTHER_ATTEMPT = "other_attempt"
    """request: It claims another attempt than the one whose credential it bears. -> Name no attempt but your own."""
    OTHER_HOST = "other_host"
    """request: Its attempt began in another agent host. -> Name no attempt but your own."""
    NOT_THE_RUNNER = "not_the_runner"
    """request: The runner alone begins and ends attempts. -> Leave that to it."""
    UNSIGNED = "unsigned"
    """record: It bears no MAC of the run. -> Look at who else can append to the run's topics."""
    MISMATCH = "mismatch"
    """record: Its MAC is not that of the run that may write it. -> Look at who else can append to the run's topics."""

    KIND = "kind"
    """version: It is no full folder of weights. -> Publish versions of kind `full`."""
    FILES = "files"
    """version: It names no safetensors file, or one outside its folder. -> Look at who else writes `weights`."""
    URI = "uri"
    """version: Its folder lies outside the folder of this run's versions. -> Move it with its run."""
    MISSING = "missing"
    """version: A folder or file of it is not there. -> Mount the trainer's disk where the engine runs."""
    SIZE = "size"
    """version: A file has not the size that was published. -> Look at the disk; the next version is taken."""
    SHA256 = "sha256"
    """version: A file has not the content that was published. -> Look at the disk; the next version is taken."""
    UNREADABLE = "unreadable"
    """version: A file cannot be read. -> Look at the disk and its permissions."""
    LOAD_FAILED = "load_failed"
    """version: The engine did not load it. -> Read the engine's log."""

    TIMEOUT = "timeout"
    """[air] function: It took too long for an episode. -> Raise [air] function_limit_s."""
    DIED = "died"
    """[air] function: Its process ended. -> Read assemble's log."""
    RAISED = "raised"
    """[air] function: It raised an exception. -> Read assemble's log."""
    BAD_ANSWER = "bad_answer"
    """[air] function: What it returned is no list of (call id, name, value). -> Mend it."""

    NEW_CONVERSATION = "new_conversation"
    """new segment: The request goes on from no answer. -> Nothing."""
    NO_MATCH = "no_match"
    """new segment: The request repeats no answer that was given. -> Have the agent send its messages as they were."""
    HISTORY_CHANGED = "history_changed"
    """new segment: What precedes a known answer was changed. -> Have the agent send its messages as they were."""
    ANSWER_CHANGED = "answer_changed"
    """new segment: An answer was changed. -> Have the agent send its messages as they were."""
    ANSWER_CUT = "answer_cut"
    """new segment: The agent saw less than was sampled. -> Raise max_tokens, or leave stop strings out."""
    HISTORY_DROPPED = "history_dropped"
    """new segment: The template drops earlier messages. -> Choose a template that keeps them (docs/templates.md)."""
    NO_END_OF_MESSAGE = "no_end_of_message"
    """new segment: The template does not end the answer as it was sampled. -> Choose another (docs/templates.md)."""
    ANSWER_DROPPED = "answer_dropped"
    """new segment: The template leaves a part of the answer out. -> Choose another (docs/templates.md)."""
    PART_REFUSED = "part_refused"
    """new segment: The template refuses the conversation without its end. -> Choose another (docs/templates.md)."""


class Row(NamedTuple):
    """What a reason says."""

    seen: tuple[str, ...]
    """Where: `dead letter`, `call`, ..."""
    sentence: str
    remedy: str


@cache
def row_of(word: str) -> Row:
    """The row of a word; of one that nobody here knows, the word as it is."""
    if word not in set(Reason):
        return Row((), word, "")
    seen, _, rest = documented(__name__)[Reason.__name__][Reason(word).name].partition(": ")
    sentence, _, remedy = rest.partition(" -> ")
    return Row(tuple(seen.split(", ")), sentence, remedy)


_HEAD = """# Reasons

Whatever is left out is counted, and says why by one of these words: in the headers of a dead letter, on a record
(`masked` of a call, `excluded` of a rollout or a group, `skipped` of a step), in an answer's `code`, as the label of a
metric. A row is the docstring of the reason in `schemas/reasons.py`; `unwritable_TOPIC` on a dead letter says that what
was made of the record is too large for that topic. Words of a later release are shown as they are.

| reason | seen as | what it means | what to do |
|---|---|---|---|"""


def reasons_markdown() -> str:
    """The text of docs/reasons.md."""
    rows = ((word, row_of(word)) for word in sorted(Reason))
    told = (f"| `{word}` | {', '.join(row.seen)} | {row.sentence} | {row.remedy} |" for word, row in rows)
    return "\n".join([_HEAD, *told, ""])


if __name__ == "__main__":
    sys.stdout.write(reasons_markdown())
