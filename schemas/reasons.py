"""Every reason for which something is left out: where it is seen, a sentence for people, and what to do.

In: a word, as records, dead letters and metrics hold it. Out: its words. A member's docstring is its row of
docs/reasons.md (tests/reference/reasons.py): `where it is seen: the sentence -> the remedy`.
Invariant: whatever is raised or counted with a reason has a member here; what it writes are the same bytes as before
there was one. Failure: none; a word of a later release, or of a user's own, is shown as it is.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from typing import NamedTuple

from .section import documented


class Reason(StrEnum):
    """One word each; the places where it is seen come first."""

    MALFORMED = "malformed"
    """dead letter, group: Its bytes are no record that its topic may hold. -> Read its `detail` (`tracegrad tail
    dead_letters`), and fix the program that wrote it."""
    UNDECODABLE = "undecodable"
    """dead letter: Its bytes are no OTLP request. -> Send protobuf to the topic, or JSON to the OTLP gateway."""
    DAMAGED = "damaged"
    """dead letter: A part of it cannot be read, such as a text that is not UTF-8; the rest is used. -> Fix the
    exporter that sends it; where Kafka reports a damaged segment, restore that segment from a copy."""
    METRICS = "metrics"
    """dead letter: The request holds metrics; a Collector's pipelines may share a file. -> Nothing to do: spans and log
    records alone are read."""
    NULL_VALUE = "null_value"
    """dead letter: It has no value (a tombstone). -> Find out who writes tombstones to the topic, and stop that."""
    UNKNOWN_SCHEMA = "unknown_schema"
    """dead letter, group: It was written by a later release than the one that reads it. -> Run one release
    everywhere."""
    UNKNOWN_TOPIC = "unknown_topic"
    """dead letter: It came from a topic that normalize does not read. -> Check the names in [kafka.topics]."""
    TOO_LARGE = "too_large"
    """dead letter, group, rollout: It is larger than its topic allows. -> Set the topic's size in
    [kafka.max_message_bytes] of the next run; the `detail` says how large."""
    UNWRITABLE = "unwritable"
    """dead letter: What was made of it is too large for the topic that the reason ends with, or Kafka refused it.
    -> Read its `detail`: it says which key of [kafka.max_message_bytes] to raise, or has Kafka's error."""
    REFUSED = "refused"
    """dead letter: Kafka did not take it. -> Read its `detail`, which holds Kafka's error."""
    POISON = "poison"
    """dead letter: The worker died several times while it processed this record. -> Read the worker's log; where
    memory ran out, give it more and lower [streams] max_open_bytes."""
    FOREIGN_RUN = "foreign_run"
    """dead letter: It asks for a rollout of another run. -> Find out who else writes to this run's `rollouts`."""
    BAD_TRACE_ID = "bad_trace_id"
    """dead letter: Its trace id is not 16 bytes, or all zeros. -> Fix the exporter that sends it."""
    BAD_SPAN_ID = "bad_span_id"
    """dead letter: Its span id, or its parent's, is not 8 bytes. -> Fix the exporter that sends it."""
    INVALID_ID = "invalid_id"
    """dead letter: Its trace id or span id has the wrong length. -> Fix the exporter that sends it."""
    ITEM_TOO_LARGE = "item_too_large"
    """dead letter: This one span or log record is larger than a message may be. -> Shorten attributes in the SDK:
    set OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT."""
    BAD_IDENTITY = "bad_identity"
    """dead letter: The rollout, attempt or trace that it names is not a valid id. -> Leave OTEL_RESOURCE_ATTRIBUTES
    as the runner sets it."""
    NO_IDENTITY = "no_identity"
    """dead letter: It names neither a rollout nor a trace. -> Export it with a trace id."""
    NO_ATTEMPT = "no_attempt"
    """dead letter: It names a rollout, but no attempt. -> Leave OTEL_RESOURCE_ATTRIBUTES as the runner sets it."""
    IDENTITY_CONFLICT = "identity_conflict"
    """dead letter: Its ids disagree: it names two rollouts, or its trace id belongs to another attempt. -> Give
    each process the environment variables of one attempt only."""
    IDENTITY_DISAGREEMENT = "identity_disagreement"
    """dead letter, request: The path, key, headers and baggage of the model call name different rollouts. -> Name
    one rollout: leave OPENAI_BASE_URL and OPENAI_API_KEY as the runner sets them."""
    MALFORMED_IDENTITY = "malformed_identity"
    """dead letter, request: The rollout, attempt or conversation that the model call names is not a valid id. ->
    Leave OPENAI_BASE_URL and OPENAI_API_KEY as the runner sets them."""
    LATE = "late"
    """dead letter: It came for a rollout that has no open attempt any more. -> Nothing to do: it came too late."""
    TOO_MANY_OPEN = "too_many_open"
    """dead letter: More episodes are open than a worker may hold. -> Raise [streams] max_open_episodes or workers."""
    TOO_MANY_CALLS = "too_many_calls"
    """dead letter: Its episode has more calls than allowed. -> Raise [streams] max_calls_per_episode."""
    TOO_MANY_SPANS = "too_many_spans"
    """dead letter: Its episode has more spans than allowed. -> Raise [streams] max_spans_per_episode, or export
    fewer spans (such as those of HTTP requests)."""
    TOO_MANY_BYTES = "too_many_bytes"
    """dead letter: Its episode's records are larger in all than allowed. -> Raise [streams] max_bytes_per_episode."""
    TOO_MANY_OPEN_BYTES = "too_many_open_bytes"
    """dead letter, rollout: Open episodes or groups hold as many bytes as allowed already. -> Raise [streams]
    max_open_bytes."""
    TOO_MANY_SCORES = "too_many_scores"
    """dead letter: Too much feedback waits for its episodes. -> Find out who sends it, and send less."""
    BAD_GROUP = "bad_group"
    """dead letter: Its place in its group is impossible, or taken. -> Find out who else writes to `rollout_events`."""
    WRONG_POLICY = "wrong_policy"
    """group: It is of another policy than the one that this trainer trains. -> Find out who else writes to
    `transitions`."""
    VOCABULARY = "vocabulary"
    """group: A token id lies outside the model's vocabulary. -> Let the engine serve the model that the trainer
    trains."""
    TOO_LONG = "too_long"
    """group: One of its rows has more tokens than allowed. -> Raise [trainer] max_row_tokens."""
    ZERO_TEMPERATURE = "zero_temperature"
    """group: A token to train on was sampled greedily (temperature 0). -> Find out who else writes to `transitions`."""

    CONSTRAINED = "constrained"
    """call: A grammar or a filter limited which tokens could be sampled, so the logprobs are not the policy's. ->
    Let the agent force no answers (`response_format`, a forced tool) in calls that should train."""
    CUT_SAMPLING = "cut_sampling"
    """call: It was sampled from a part of the distribution. -> Leave top_p, top_k and min_p out of the agent's
    requests, or set [select] sampling = 'forced'."""
    TRUNCATED = "truncated"
    """call: The token limit ended the answer, not the policy. -> Raise max_tokens in the agent's requests, or set
    [select] truncated = 'train'."""
    CLIENT_DISCONNECTED = "client_disconnected"
    """call: The client hung up before the answer was sent. -> Raise the timeout of the agent's client, or read in
    its log why it hung up."""
    OUTCOME_UNKNOWN = "outcome_unknown"
    """call: Nobody reported whether the client got the answer. -> Read the LLM gateway's log: it ended before it
    could report."""
    SUPERSEDED = "superseded"
    """call, episode: The client asked again and went on with another answer; of an episode: a later attempt counts
    instead. -> Raise the timeout of the agent's client, so that it does not ask again; of an episode: nothing to
    do."""
    MISSING_PARENT = "missing_parent"
    """call: Its prompt continues a call that is missing. -> Look for the missing call in `tracegrad tail
    dead_letters`."""
    NOT_CHOSEN = "not_chosen"
    """call: It is one of several answers to a request, and not the one that the agent used. -> Ask for one answer
    (`n` = 1)."""
    BAD_LOGPROBS = "bad_logprobs"
    """call: Its logprobs are not finite, above 0, or not one for each token. -> Serve the policy with the vLLM that
    requirements/engine.txt names."""
    BAD_TEMPERATURE = "bad_temperature"
    """call: It was sampled greedily (temperature 0), which leaves no distribution to learn from, or at an absurd
    temperature. -> Set a temperature near 1 in the agent's requests."""
    BAD_VERSIONS = "bad_versions"
    """call: The engine did not say which weight version sampled it. -> Let the LLM gateway ask an engine that
    serves this run's versions only."""

    TEXT = "text"
    """call: Its texts are known, and not the token ids that were sampled, so it trains by `--mode filter` alone. ->
    Have the engine tell ids, if another mode is to train it."""
    OTHER_TOKENIZER = "other_tokenizer"
    """call: The token ids that are told do not spell its texts by the policy's tokenizer. -> Name the model that
    sampled them in [policy] model, or train the texts by `--mode filter`."""
    NO_LOGPROBS_TOLD = "no_logprobs_told"
    """call: Its token ids are told without their logprobs. -> Let the agent ask the engine for logprobs, or train it by
    `--mode filter`."""
    NO_TEMPERATURE_TOLD = "no_temperature_told"
    """call: Its token ids are told, and not the temperature that sampled them. -> Set [history] temperature."""
    RAW_LOGPROBS = "raw_logprobs"
    """call: Its logprobs are those before temperature, top_p, top_k or min_p. -> Set [history] logprobs = "processed"
    if the engine gave those behind them, or sample at temperature 1 without the others."""
    NO_PROMPT_TOLD = "no_prompt_told"
    """call: Its prompt is not recorded, or hidden. -> Let the instrumentation record the content of messages."""
    NO_ANSWER_TOLD = "no_answer_told"
    """call: Its answer is not recorded, or hidden. -> Let the instrumentation record the content of messages."""
    NO_TOOLS_TOLD = "no_tools_told"
    """call: Nothing says which tools the model could call. -> Name them, or none, in [history] tools."""
    CONTENT_CUT = "content_cut"
    """call: A part of it is cut, or cannot be read. -> Raise OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT at the agent."""
    HISTORY_CUT = "history_cut"
    """call: More is told of it than may be. -> Raise [history] max_call_bytes."""
    CONTENT_NOT_TEXT = "content_not_text"
    """call: It holds images, audio or files. -> Nothing to do: only texts train."""
    CONTENT_REWRITTEN = "content_rewritten"
    """call: It is told in another form than it was sent, or in several parts, which templates join differently. -> Use
    an instrumentation of the model's client, and send a text as one part."""
    FAILURE_REWRITTEN = "failure_rewritten"
    """call: If a tool in its prompt failed, that was sent in another form. -> Export the tools' spans too."""
    UNFINISHED = "unfinished"
    """call: It failed, or its stream was cut. -> Nothing to do: a failed call teaches nothing."""
    OTHER_ROLE = "other_role"
    """call: A message has a role that no chat template knows. -> Use the roles of OpenAI's chat completions."""
    ODD_ARGUMENTS = "odd_arguments"
    """call: Its answer calls a tool with arguments that are no JSON object. -> Nothing to do: no template has them."""
    SPELLS_END = "spells_end"
    """call: Its answer spells the token that ends a message. -> Nothing to do: the policy would end there."""
    TEMPLATE_REFUSES = "template_refuses"
    """call: The policy's chat template refuses its messages. -> Choose another template (docs/templates.md)."""
    TEMPLATE_REWRITES = "template_rewrites"
    """call: With its answer the chat template writes the prompt otherwise than without. -> Choose another template
    (docs/templates.md)."""

    ABORTED = "aborted"
    """rollout: The attempt was broken off, through no fault of the agent's. -> Read in the runner's log why
    attempts break off."""
    GIVEN_UP = "given_up"
    """rollout: No attempt of it came to an end. -> Read in the runner's log why attempts break off."""
    UNKNOWN_STATE = "unknown_state"
    """rollout: Nobody reported how the attempt ended. -> Read the runner's log."""
    NO_CALLS = "no_calls"
    """rollout: Its agent never called the policy. -> Let the agent's client use OPENAI_BASE_URL, which names the
    LLM gateway."""
    UNSCORED = "unscored"
    """rollout, episode: It has no reward. -> Check that the grader returns a number; a captured conversation needs
    a rating by a person (docs/feedback.md)."""
    GRADER_RAISED = "grader_raised"
    """rollout: The grader raised an exception instead of returning a number. -> Mend it at the line that is named; no
    attempt gets a reward before that."""
    AGENT_RAISED = "agent_raised"
    """rollout: The agent raised an exception. -> Mend it at the line that is named."""
    TIME_LIMIT = "time_limit"
    """rollout: [agent] time_limit_s ended it. -> Find out what it waits for, or raise the limit."""
    STRATEGY_FAILED = "strategy_failed"
    """rollout: The strategy of [credit] raised an exception, or returned something else than it should. -> Read the
    group's `detail`, and fix the strategy."""
    BAD_RETURN = "bad_return"
    """rollout: The return of one of its calls is not finite, or absurdly large. -> Check what the grader
    pays, and the rules of [air]."""
    BAD_WEIGHT = "bad_weight"
    """rollout: The weight of one of its calls is not finite, or absurdly large. -> Fix the strategy of [credit]."""
    BROKEN_PREFIX = "broken_prefix"
    """rollout: No prompt of its calls can be rebuilt, since earlier calls are missing. -> Look for the missing
    calls in `tracegrad tail dead_letters`."""
    BAD_TOKENS = "bad_tokens"
    """rollout: A token id is negative. -> Serve the policy with the vLLM that requirements/engine.txt names."""
    BELOW_BOUND = "below_bound"
    """rollout, group: Its final reward is below [replay] bound, and the run trains by `filter`. -> Lower the bound:
    --set replay.bound=0.5."""

    ALL_MEMBERS_EXCLUDED = "all_members_excluded"
    """group: None of its rollouts can train. -> Read why each was left out: `tracegrad episodes --where
    excluded!=none`."""
    UNENCODABLE = "unencodable"
    """group: Its rows cannot be written as Arrow. -> Read the group's `detail`."""
    NO_ROWS = "no_rows"
    """group: It has neither rows nor a reason why. -> Find out who else writes to `transitions`."""
    STALE = "stale"
    """group: It was sampled by too old a version. -> Lower [pace] staleness, or raise [trainer] max_staleness."""
    NEWER = "newer"
    """group: It was sampled by a version that this trainer has not made. -> Nothing to do: this follows a rollback."""
    OTHER_RUN = "other_run"
    """group, record: It is of another run. -> Nothing to do: this is common where runs share topics."""
    DUPLICATE = "duplicate"
    """group: It was read before. -> Nothing to do: a worker that is restarted writes some records again."""
    LOW_ESS = "low_ess"
    """group: Its effective sample size is too small: the policy differs too much from the one that sampled it. ->
    Replay versions that are closer to the policy, or lower [replay] min_ess."""
    LOW_SPREAD = "low_spread"
    """group: The rewards of other groups differ more than its own. -> Raise [algorithm] share."""
    NO_SPREAD = "no_spread"
    """group: Its rollouts earned equal rewards, so none is better than its peers. -> Choose tasks that the model
    solves now and then, pay first successes by rules (docs/streams.md#air), or raise [tasks] group_size; check the
    grader with `tracegrad episodes`."""

    NO_ADVANTAGE = "no_advantage"
    """step, group: All advantages are 0, for in each group the rollouts earned equal rewards. -> Choose tasks that
    the model solves now and then, pay first successes by rules (docs/streams.md#air), or raise [tasks] group_size;
    check the grader with `tracegrad episodes`."""
    NO_TOKENS = "no_tokens"
    """step, group: No token is in the loss. -> Read on the page, at its episodes, why their calls leave the loss."""
    NON_FINITE = "non_finite"
    """step, group: The loss or the gradients are not finite. -> Lower [trainer] lr."""
    WITHOUT_GROUP = "without_group"
    """episode: No runner started it, so it is in no group. -> Set [select] train = true to train on captured
    conversations."""
    NOT_TRAINING = "not_training"
    """episode: It is of a held-out task. -> Nothing to do: held-out tasks measure, and are not trained on."""
    OF_CLOSED_GROUP = "of_closed_group"
    """episode: Its group had closed before it came. -> Nothing to do: a worker that is restarted writes some
    records again."""

    NO_CREDENTIAL = "no_credential"
    """request: It names a rollout of the runner, and does not bear that rollout's credential. -> Send
    OPENAI_API_KEY, or OTEL_EXPORTER_OTLP_HEADERS, as the runner sets it."""
    OTHER_ATTEMPT = "other_attempt"
    """request: It names another attempt than its credential is for. -> Name only the attempt that your credential
    is for."""
    OTHER_HOST = "other_host"
    """request: It names an attempt that began in another agent host. -> Name only attempts that began in your own
    host."""
    NOT_THE_RUNNER = "not_the_runner"
    """request: Only the runner may begin and end attempts. -> Leave that to the runner."""
    UNSIGNED = "unsigned"
    """record: It bears no signature (MAC) of the run. -> Find out who else can write to the run's topics."""
    MISMATCH = "mismatch"
    """record: Its signature (MAC) is not that of the run that may write it. -> Find out who else can write to the
    run's topics."""

    KIND = "kind"
    """version: It is no full folder of weights. -> Publish versions of kind `full`."""
    FILES = "files"
    """version: It names no safetensors file, or one outside its folder. -> Find out who else writes to `weights`."""
    URI = "uri"
    """version: Its folder lies outside the folder of this run's versions. -> Move the whole run, not its versions
    alone."""
    MISSING = "missing"
    """version: Its folder, or a file in it, is not there. -> Mount the trainer's disk where the engine runs."""
    SIZE = "size"
    """version: One of its files does not have the size that was published. -> Check the disk; the next version is
    loaded instead."""
    SHA256 = "sha256"
    """version: One of its files does not have the content that was published. -> Check the disk; the next version
    is loaded instead."""
    UNREADABLE = "unreadable"
    """version: One of its files cannot be read. -> Check the disk, and who may read the file."""
    LOAD_FAILED = "load_failed"
    """version: The engine could not load it. -> Read the engine's log."""

    TIMEOUT = "timeout"
    """[air] function: It took too long for an episode. -> Make it faster, or raise [air] function_limit_s."""
    DIED = "died"
    """[air] function: Its process ended. -> Read assemble's log, and fix the function."""
    RAISED = "raised"
    """[air] function: It raised an exception. -> Read assemble's log, and fix the function."""
    BAD_ANSWER = "bad_answer"
    """[air] function: It did not return a list of (call id, name, value). -> Fix what the function returns."""

    NEW_CONVERSATION = "new_conversation"
    """new segment: The request continues no earlier answer. -> Nothing to do: a conversation begins."""
    NO_MATCH = "no_match"
    """new segment: The request repeats no answer that the gateway gave. -> Let the agent send its earlier messages
    unchanged."""
    HISTORY_CHANGED = "history_changed"
    """new segment: A message before a known answer was changed. -> Let the agent send its earlier messages
    unchanged."""
    ANSWER_CHANGED = "answer_changed"
    """new segment: An earlier answer was changed. -> Let the agent send its earlier messages unchanged."""
    ANSWER_CUT = "answer_cut"
    """new segment: The agent was shown less of an earlier answer than was sampled. -> Raise max_tokens, or leave
    stop strings out of the agent's requests."""
    HISTORY_DROPPED = "history_dropped"
    """new segment: The chat template drops earlier messages. -> Choose a template that keeps them
    (docs/templates.md)."""
    NO_END_OF_MESSAGE = "no_end_of_message"
    """new segment, call: The chat template does not end the answer as it is sampled. -> Choose another template
    (docs/templates.md), or name the end in eos_token_id of the model's generation_config.json."""
    ANSWER_DROPPED = "answer_dropped"
    """new segment, call: The chat template leaves out a part of the answer. -> Choose another template
    (docs/templates.md)."""
    PART_REFUSED = "part_refused"
    """new segment: The chat template refuses the conversation without its last messages. -> Choose another template
    (docs/templates.md)."""


class Row(NamedTuple):
    """What a reason says."""

    seen: tuple[str, ...]
    """Where: `dead letter`, `call`, ..."""
    sentence: str
    remedy: str


@cache
def row_of(word: str) -> Row:
    """The row of a word, or of the `unwritable` that a topic's name follows; of another word, the word as it is."""
    known = Reason.UNWRITABLE if word.startswith(f"{Reason.UNWRITABLE}_") else word
    if known not in set(Reason):
        return Row((), word, "")
    seen, _, rest = documented(__name__)[Reason.__name__][Reason(known).name].partition(": ")
    sentence, _, remedy = rest.partition(" -> ")
    return Row(tuple(seen.split(", ")), sentence, remedy)


def reason_text(word: str) -> str:
    """How a word is shown to people: `stale: It was sampled by too old a version`."""
    sentence = row_of(word).sentence
    return word if sentence == word else f"{word}: {sentence.removesuffix('.')}"
