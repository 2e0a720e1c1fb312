"""The metrics that a good day of training a run leaves alone, and for each the test that provokes what moves it.

All others must move in tests/e2e/test_seen.py; a new metric that moves nowhere fails there.
"""

from __future__ import annotations

from tracegrad.schemas import metrics as m
from tracegrad.schemas.metrics import Metric

DAYS: dict[str, dict[Metric, str]] = {
    "an agent that nobody started, and what it says": {
        m.PROPOSALS: (
            "streams/assemble/test_assemble_bounds.py::test_an_agent_without_runner_closes_when_it_falls_silent"
        ),
        m.PROPOSALS_VOID: "streams/assemble/test_silence.py::test_silence_that_was_none_is_void",
        m.LINKS: "streams/assemble/test_links.py::test_an_id_that_no_call_bears_joins_nothing",
        m.ATTRIBUTES_DROPPED: ("streams/normalize/test_scan.py::test_attributes_that_an_sdk_left_out_are_counted"),
        m.SESSIONS_IGNORED: (
            "streams/assemble/test_links.py::test_a_session_id_with_many_open_traces_is_no_conversation"
        ),
        m.CALLS_JOINED: (
            "producers/llm_gateway/test_joined_conversations.py::test_a_request_that_names_nothing_goes_on_with_what_was_said"
        ),
        m.CALLS_OPTED_OUT: (
            "producers/llm_gateway/test_upstream_odd.py::test_a_call_that_opts_out_is_served_and_leaves_nothing"
        ),
        m.PROMPT_NOTES: "producers/llm_gateway/test_normalise.py::test_the_gateway_counts_what_it_makes_of_messages",
        m.CALLS_UNFORCED: (
            "producers/llm_gateway/test_forced_tools.py::"
            "test_a_tool_that_must_be_called_is_called_freely_where_the_call_may_train"
        ),
        m.CALLS_UNPARSED: (
            "producers/llm_gateway/test_forced_tools.py::test_a_call_that_the_parser_cannot_read_is_an_answer_and_counted"
        ),
        m.TOOLS_LEFT_OUT: (
            "producers/llm_gateway/test_messages.py::test_tools_of_anthropics_servers_are_left_out_and_counted"
        ),
        m.AGENT_EVENTS: "producers/llm_gateway/test_agent_events.py::test_the_last_reward_is_one_record_before_the_end",
    },
    "a program that rates answers": {
        m.OF_EVALUATORS: "streams/normalize/test_scan.py::test_what_came_with_the_reward_token_is_of_no_episode",
        m.FEEDBACK: "producers/rewards/test_rewards_gateway.py::test_feedback_lies_under_the_key_of_what_it_is_about",
        m.FEEDBACK_LATE: "streams/credit/test_feedback_window.py::test_late_feedback_takes_no_room_from_what_is_closed",
        m.FEEDBACK_REFUSED: (
            "producers/rewards/test_rewards_gateway.py::test_what_is_wrong_is_refused_with_the_field_at_fault"
        ),
        m.EVALUATIONS_IGNORED: (
            "producers/otlp_gateway/test_take_evaluations.py::test_without_the_reward_token_none_counts"
        ),
    },
    "a model of another provider, or a tokenizer that the gateway can load": {
        m.CONTEXT_CALLS: (
            "streams/assemble/test_context_calls.py::test_an_agent_before_another_model_alone_has_an_episode"
        ),
        m.UPSTREAM_CALLS: "producers/llm_gateway/test_upstream.py::test_it_is_recorded_as_context_without_content",
        m.UPSTREAM_CALLS_UNRECORDED: "producers/llm_gateway/test_upstream.py::test_it_serves_on_when_kafka_is_down",
        m.RENDERS_LOCALLY: "producers/llm_gateway/test_engine.py::test_the_answer_equals_the_engines_own",
    },
    "a replay that trains": {
        m.REPLAY_STEP: "trainer/history/test_same.py::test_each_version_has_the_sources_weights_bit_for_bit",
        m.REPLAY_STEPS: "trainer/history/test_same.py::test_each_version_has_the_sources_weights_bit_for_bit",
    },
    "a rebalance, a hole in a topic, or ids without end": {
        m.DELIVERIES_DROPPED: (
            "streams/shell/test_worker_liveness.py::"
            "test_what_is_delivered_again_or_late_is_dropped_and_holes_are_counted"
        ),
        m.OFFSETS_WITHOUT_RECORD: (
            "streams/shell/test_worker_liveness.py::"
            "test_what_is_delivered_again_or_late_is_dropped_and_holes_are_counted"
        ),
        m.CLOSED_IDS_FORGOTTEN: "streams/credit/test_closed_groups.py::test_closed_groups_are_remembered_up_to_a_bound",
    },
    "records that are another run's, forged, broken, late or without what they should bear": {
        m.NOT_SELECTED: "streams/normalize/test_normalize.py::test_other_runs_are_not_selected_unless_named",
        m.CALLS_UNPROVED: "streams/normalize/test_normalize.py::test_a_call_that_no_gateway_of_its_run_wrote_is_none",
        m.TOLD_CALLS: "streams/assemble/test_told_calls.py::test_calls_are_counted_by_why_they_leave_the_loss",
        m.FACTS_LATE: "streams/assemble/test_assemble.py::test_late_facts_are_counted_and_never_folded",
        m.TOOLS_WITHOUT_ID: "streams/assemble/test_air.py::test_executions_without_an_id_are_counted",
        m.CALLS_LEFT_OUT: "streams/credit/test_credit.py::test_a_call_without_its_parent_is_left_out_alone",
        m.MEMBERS_EXCLUDED: "streams/credit/test_credit.py::test_a_rollout_that_cannot_train_is_listed_with_its_reason",
        m.DEAD_LETTERS: "producers/runner/test_runner.py::test_poison_requests_are_dead_letters",
        m.RECORDS_REFUSED: "schemas/log/test_refusals.py::test_a_row_where_others_write_is_an_alarm_every_hundred",
        m.UNREADABLE_ROWS: "schemas/log/test_refusals.py::test_a_row_where_others_write_is_an_alarm_every_hundred",
        m.UNVERIFIED: "schemas/log/test_signed.py::test_its_readers_give_what_it_wrote_and_nothing_else",
    },
    "a function of [air] that fails, or says what cannot be paid": {
        m.AIR_FUNCTION_FAILED: (
            "streams/assemble/test_air_function.py::test_what_counts_of_it_is_capped_and_marked_and_counted"
        ),
        m.AIR_PAYMENTS_LEFT_OUT: (
            "streams/assemble/test_air_function.py::test_what_counts_of_it_is_capped_and_marked_and_counted"
        ),
    },
    "claims to what one did not begin": {
        m.REQUESTS_UNPROVED: "producers/llm_gateway/test_proof.py::test_a_claim_without_proof_is_refused",
        m.REQUESTS_QUARANTINED: "producers/llm_gateway/test_identity.py::test_disagreeing_claims_are_quarantined",
        m.ATTEMPTS_BEGUN_ELSEWHERE: "producers/llm_gateway/test_identity.py::test_an_attempt_not_begun_here_gets_409",
    },
    "an engine or a Kafka that is away, slow or refuses": {
        m.CALLS_FAILED: (
            "producers/llm_gateway/test_faults.py::test_a_record_that_kafka_does_not_take_is_counted_by_why"
        ),
        m.CALLS_TOO_LARGE: (
            "producers/llm_gateway/test_faults.py::test_a_record_that_kafka_does_not_take_is_counted_by_why"
        ),
        m.CALLS_UNACKNOWLEDGED: (
            "producers/llm_gateway/test_faults.py::test_a_record_that_kafka_does_not_take_is_counted_by_why"
        ),
        m.CALL_OUTCOMES_DROPPED: (
            "producers/llm_gateway/test_outcomes.py::test_what_waits_for_kafka_is_bounded_and_counted"
        ),
        m.ENGINE_AWAY: "producers/llm_gateway/test_faults.py::test_an_engine_that_fails_is_tried_again",
        m.GENERATIONS_REFUSED: (
            "producers/llm_gateway/test_faults.py::test_an_answer_with_an_unknown_label_is_refused_and_sampled_again"
        ),
        m.LABELS_REFUSED: (
            "producers/llm_gateway/test_faults.py::test_an_answer_with_an_unknown_label_is_refused_and_sampled_again"
        ),
        m.VERSIONS_SKIPPED: "consumers/engine/test_weight_sync.py::test_intermediate_versions_are_skipped_when_behind",
        m.VERSIONS_REFUSED: (
            "consumers/engine/test_weight_sync.py::test_corrupt_version_is_refused_counted_and_never_served"
        ),
    },
    "a process that died, or has no room for more": {
        m.PROCESS_RESTARTS: "compose/run/test_supervisor_metrics.py::test_metrics_say_who_runs_and_what_was_restarted",
        m.CALLS_NOT_REMEMBERED: "producers/llm_gateway/test_app.py::test_memory_is_bounded_by_token_ids",
        m.SESSIONS_FORGOTTEN: (
            "producers/llm_gateway/test_identity.py::test_memory_is_bounded_and_the_forgotten_get_409"
        ),
    },
    "a training that goes wrong": {
        m.GROUPS_EXCLUDED: "trainer/test_loop.py::test_every_group_is_in_one_batch_or_excluded",
        m.CALLS_MASKED: "streams/credit/test_masked_calls.py::test_masked_calls_are_counted_by_reason",
        m.ALARMS_BEGUN: "trainer/watch/test_alarms.py::test_an_alarm_at_the_last_step_holds_nothing_up",
        m.ALARMS_HOLDING: "trainer/test_tell.py::test_counters_add_up_and_gauges_are_the_last_steps",
        m.PAUSED: "trainer/watch/test_alarms.py::test_an_alarm_pauses_the_training_until_the_run_is_started_again",
    },
}
"""What moves them -> metric -> where under tests/."""
BAD_DAYS = {metric: test for tests in DAYS.values() for metric, test in tests.items()}
