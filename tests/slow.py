"""
Tests that run only in `make test-slow`, with their seconds on two busy cores.

Most have a quicker test of the same fact in `make test`: the bundled programs instead of the newest ones, the
rules instead of a simulated day or week, the names in the queries of the dashboards instead of their data,
some pages of the console and the API instead of all pages in a browser, some of the recorded clients and
frameworks instead of all, SQLite instead of PostgreSQL except for the store. Only these tests show what a
viewer and several partitions look like in a browser, how a partition that no process can run is tried again,
that a process stops while it waits for a new connection to its database, what a NATS cluster without a
majority means, and how several partitions count a wrong token.

``python -m tests.slow`` prints the table of CONTRIBUTING.md.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import pytest

SLOW: Final = {
    "alerting/test_cluster.py": 140,
    "alerting/test_outbox.py::test_end_is_repeated_after_an_outage_of_any_length[sqlite-200]": 10,
    "alerting/test_real_alertmanager.py::test_reminder_is_sent_on_every_channel_with_the_same_identity": 18,
    "alerting/test_restarts.py::test_less_severe_alert_of_a_risen_incident_sends_no_false_all_clear[True]": 9,
    "alerting/test_rules_by_promtool.py::test_every_promtool_test_passes[bundled-long]": 9,
    "alerting/test_rules_by_promtool.py::test_promtool_tests_fail_for_a_changed_alert": 15,
    "alerting/test_sessions_of_one_agent.py::test_agent_whose_tickets_close_before_the_next_opens_is_one_incident": 19,
    "alerting/test_sessions_of_one_agent.py::test_crash_loop_is_one_incident_with_a_count[bundled]": 13,
    "alerting/test_sessions_of_one_agent.py::test_second_session_is_notified_while_the_first_fires[bundled]": 8,
    "chaos/test_alerts_under_fire.py": 43,
    "chaos/test_all_crash_at_once.py": 13,
    "chaos/test_monitor_killed.py": 20,
    "clients/test_matrix.py::test_consecutive_failed_runs_of_a_provider_open_a_ticket": 11,
    "cluster/test_chaos.py": 480,
    "cluster/test_cluster_document.py::test_two_processes_start_as_documented": 13,
    "cluster/test_failed_claims.py": 46,
    "cluster/test_hung_database.py::test_process_stops_while_it_waits_for_a_new_connection": 40,
    "cluster/test_partitions.py::test_emergency_stop_can_be_set_at_a_process_without_partitions": 17,
    "cluster/test_partitions.py::test_every_process_responds_for_all_partitions": 17,
    "cluster/test_partitions.py::test_process_that_cannot_run_a_partition_gets_no_more": 13,
    "cluster/test_partitions.py::test_process_with_another_number_of_partitions_owns_nothing[2]": 8,
    "cluster/test_partitions.py::test_sign_in_and_stream_continue_at_another_process": 17,
    "cluster/test_partitions.py::test_third_process_gets_its_share_one_partition_at_a_time": 36,
    "cluster/test_partitions.py::test_wrong_token_counts_as_one_failed_login": 17,
    "cluster/test_stream.py::test_process_whose_stream_has_no_majority_does_not_listen": 30,
    "console/test_alertmanager.py": 25,
    "console/test_bundle.py::test_build_can_be_repeated": 56,
    "console/test_home.py::test_change_reloads_few_pages_of_a_long_list": 21,
    "console/test_home.py::test_dialog_shows_a_decision_made_meanwhile": 14,
    "console/test_home.py::test_filters_are_in_the_url_and_applied_by_the_service": 13,
    "console/test_home.py::test_item_that_arrives_does_not_move_the_page_of_a_phone": 29,
    "console/test_home.py::test_list_that_becomes_shorter_shows_its_end": 13,
    "console/test_home.py::test_long_fleet_is_sixty_rows_at_most": 30,
    "console/test_home.py::test_lost_connection_stops_the_clocks_and_catches_up": 13,
    "console/test_home.py::test_message_does_not_cover_the_page": 31,
    "console/test_home.py::test_silent_network_is_noticed_and_reconnected": 14,
    "console/test_home.py::test_progress_tokens_and_cost_are_drawn_live": 8,
    "console/test_home.py::test_search_lists_names_with_the_prefix_first": 8,
    "console/test_home.py::test_search_distinguishes_sessions_of_one_agent_on_a_phone": 18,
    "console/test_home.py::test_ended_sessions_are_listed_on_request": 12,
    "console/test_memory.py": 43,
    "console/test_pages.py::TestNeeds::test_every_page_and_dialog_is_accessible": 240,
    "console/test_pages.py::TestNeeds::test_loading_page_has_no_layout_shift": 97,
    "console/test_pages.py::TestViewer::test_viewer_sees_everything_and_cannot_act": 112,
    "console/test_pages.py::test_action_on_a_session_that_was_replaced_is_refused": 8,
    "console/test_pages.py::test_all_navigation_links_are_visible_on_a_tablet": 5,
    "console/test_pages.py::test_change_of_health_does_not_move_the_page_of_a_phone": 13,
    "console/test_pages.py::test_current_page_is_visible_in_the_navigation_of_a_phone": 5,
    "console/test_pages.py::test_focus_returns_after_a_dialog_is_sent": 7,
    "console/test_pages.py::test_dialog_whose_code_cannot_be_loaded_leaves_the_page": 12,
    "console/test_pages.py::test_escape_closes_a_dialog_that_was_refused": 15,
    "console/test_pages.py::test_every_page_fits_the_screen": 40,
    "console/test_pages.py::test_every_page_shows_a_lost_connection_and_catches_up": 100,
    "console/test_pages.py::test_unchanged_heartbeat_causes_no_requests": 13,
    "console/test_pages.py::test_incident_list_links_to_the_page_of_an_incident": 15,
    "console/test_pages.py::test_incident_whose_sessions_have_ended_is_acknowledged": 13,
    "console/test_pages.py::test_link_to_a_moment_of_the_recorder_opens_that_moment": 56,
    "console/test_pages.py::test_long_name_of_a_tool_fits_a_phone": 8,
    "console/test_pages.py::test_page_opened_without_a_connection_is_loaded_later": 10,
    "console/test_pages.py::test_queen_is_asked_about_a_session_without_a_ticket": 8,
    "console/test_pages.py::test_receiver_appears_when_alertmanager_has_notified_it": 12,
    "console/test_pages.py::test_replay_reads_a_long_session_in_few_requests": 17,
    "console/test_pages.py::test_replay_shows_findings_and_exports_the_run": 8,
    "console/test_pages.py::test_session_shows_no_values_before_they_are_loaded": 16,
    "console/test_pages.py::test_steps_that_arrive_do_not_move_the_page_of_a_phone": 15,
    "console/test_pages.py::test_agent_text_is_not_markup_on_any_page": 28,
    "console/test_pages.py::test_title_names_the_page_and_its_agent_or_ticket": 17,
    "console/test_partitions.py": 45,
    "console/test_talk.py::test_agent_without_chat_shows_its_result_and_path": 12,
    "console/test_talk.py::test_draft_stays_when_its_question_is_answered_elsewhere": 81,
    "console/test_walks.py::TestNeeds::test_requests_are_answered": 91,
    "console/test_walks.py::test_agent_is_loaded_and_talked_with": 149,
    "console/test_walks.py::test_incident_is_opened_and_acknowledged": 92,
    "console/test_walks.py::test_service_is_operated": 158,
    "console/test_walks.py::test_session_is_opened_and_acted_on": 172,
    "console/test_walks.py::test_ticket_is_found_and_handled": 99,
    "end_to_end/test_acknowledged.py": 18,
    "end_to_end/test_alertmanager_away.py": 83,
    "end_to_end/test_crashing_agent.py": 19,
    "end_to_end/test_crowd.py": 15,
    "end_to_end/test_examples.py::test_example_prints_its_documented_output[log_digest]": 12,
    "end_to_end/test_examples.py::test_log_digest_counts_the_errors_of_its_sample": 12,
    "end_to_end/test_judge_job.py::test_lost_targets_close_no_ticket": 22,
    "end_to_end/test_judge_job.py::test_model_gets_only_suspects_and_cannot_dismiss_binding_findings": 8,
    "end_to_end/test_judge_job.py::test_run_notifies_an_undecided_ticket_after_the_bypass_time": 10,
    "end_to_end/test_judge_job.py::test_run_reports_an_empty_fleet_and_continues": 23,
    "end_to_end/test_judge_job.py::test_run_sends_a_ticket_and_its_end_to_alertmanager": 14,
    "end_to_end/test_judge_job.py::test_second_once_resolves_the_first_alert": 12,
    "end_to_end/test_judge_job.py::test_up_connects_judge_and_queen_to_its_prometheus": 15,
    "end_to_end/test_page.py::test_looping_agent_is_one_page_and_one_resolve[links1-looping_pydantic_ai.py-pydantic_researcher]": 43,
    "end_to_end/test_page.py::test_prometheus_has_the_fleet_and_its_rules": 11,
    "end_to_end/test_shared_cause.py": 30,
    "end_to_end/test_symptoms.py": 114,
    "end_to_end/test_up.py::test_killed_demo_leaves_no_process_and_the_next_one_does_not_page_its_agents": 28,
    "health/test_durability.py::test_acknowledged_data_survives_a_kill[postgresql]": 50,
    "health/test_store_copy.py::test_copy_to_postgresql_and_back_has_the_same_rows": 18,
    "judge/test_crowd.py::test_crowd_does_not_wait_for_models": 7,
    "judge/test_crowd.py::test_crowd_of_medium_findings_is_left_to_the_model": 7,
    "judge/test_crowd.py::test_new_findings_are_judged_before_earlier_ones": 9,
    "judge/test_crowd.py::test_restart_in_crowd_triages_every_ticket": 9,
    "judge/test_crowd.py::test_waiting_tickets_share_one_timer": 7,
    "judge/test_judge.py::test_conversation_is_bounded_and_the_latest_numbers_are_exact[1000]": 27,
    "judge/test_scenarios.py::test_model_that_answers_critical_has_no_kappa_and_spares_healthy_workers": 5,
    "judge/test_scenarios.py::test_model_that_answers_healthy_has_no_kappa_and_lowers_no_floor": 5,
    "judge/test_scenarios.py::test_command_prints_the_score_and_fails_below_the_required_kappa": 9,
    "judge/test_scenarios.py::test_rules_lower_no_floor_and_open_no_ticket_for_an_unrelated_worker": 1,
    "judge/test_scenarios.py::test_rules_agree_with_the_labels_and_miss_no_binding_finding": 1,
    "judge/test_scenarios.py::test_score_of_the_rules_equals_the_document": 20,
    "judge/test_scenarios.py::test_model_without_valid_answers_leaves_binding_findings_to_the_rules": 5,
    "packaging/test_commands_of_pages.py::test_documented_commands_run[docs/judge-job.md]": 10,
    "packaging/test_commands_of_pages.py::test_documented_commands_run[docs/runbooks/postgresql-failover.md]": 8,
    "packaging/test_commands_of_pages.py::test_documented_commands_run[examples/log_digest/README.md]": 40,
    "packaging/test_compose_runs.py": 175,
    "packaging/test_image.py": 510,
    "runtime/test_executor.py::test_unbounded_loop_ends_at_the_default_limit": 8,
    "runtime/test_mcp_tools.py::test_hanging_server_is_killed_with_its_client[15]": 5,
    "runtime/test_mcp_tools.py::test_server_that_died_between_calls_is_reconnected": 19,
    "runtime/test_runner.py::test_mcp_tools_are_ordinary_tools_and_their_server_ends_with_the_agent": 10,
    "runtime/test_runner.py::test_unoffered_tool_stops_the_start_and_leaves_no_server": 12,
    "server/telemetry/test_gemini_cli.py::test_order_splits_repeats_and_delays_of_records_change_nothing": 8,
    "server/telemetry/test_recall.py::test_restart_at_any_record_does_not_change_a_run": 6,
    "server/test_cli.py::test_each_command_module_can_be_imported_first": 17,
    "server/test_crash_loop.py::test_agent_whose_runs_fail_every_few_minutes_pages_only_a_few_times[4-3]": 4,
    "server/test_crash_loop.py::test_crash_loop_that_keeps_its_session_pages_twice": 21,
    "server/test_crash_loop.py::test_crash_loop_with_default_settings_pages_three_times[a person resolves it]": 6,
    "server/test_demo.py::test_demo_shows_each_kind_of_item_that_needs_a_person": 46,
    "server/test_fleet_list.py::test_ten_thousand_agents_are_paged_in_order_by_the_service": 9,
    "server/test_log.py::test_serve_logs_the_database_first_and_lists_no_tools": 21,
    "server/test_operator_requests.py::test_termination_that_cannot_be_delivered_is_notified_once": 20,
    "server/test_possible_actions.py::test_worker_lists_the_actions_that_its_routes_accept[True]": 16,
    "server/test_restart.py::test_ticket_of_a_worker_that_ended_before_a_kill_closes_after_it[old snapshot]": 7,
    "server/test_restart.py::test_ticket_opened_before_a_kill_resolves_after_it[log]": 11,
    "server/test_restart.py::test_ticket_opened_before_a_kill_resolves_after_it[old snapshot]": 11,
    "simulation/test_day.py::test_finding_judged_healthy_is_rechecked_at_growing_intervals": 11,
    "simulation/test_day.py::test_hundred_healthy_workers_cost_no_model_call": 11,
    "simulation/test_day.py::test_ticket_costs_at_most_three_calls_of_the_model": 11,
    "simulation/test_week.py": 99,
    "tui/test_app.py::test_burst_of_keys_changes_nothing[opening_keys1-bursts1]": 5,
    "tui/test_app.py::test_burst_of_keys_changes_nothing[opening_keys2-bursts2]": 5,
    "tui/test_app.py::test_burst_of_keys_changes_nothing[opening_keys3-bursts3]": 5,
    "tui/test_app.py::test_burst_of_keys_changes_nothing[opening_keys4-bursts4]": 5,
    "tui/test_on_a_service.py::test_agent_is_loaded_chatted_with_and_unloaded_and_a_second_graph_shown": 14,
    "tui/test_on_a_service.py::test_queen_answers_about_the_ticket_while_the_stream_continues": 13,
    "tui/test_on_a_service.py::test_terminate_needs_a_reason_and_a_yes": 10,
}
"""Seconds by file, test, or test with its parameters."""


class Sample(NamedTuple):
    """The parameter values with which `make test` runs a test; the other values take these seconds."""

    parameter: str
    values: frozenset[str]
    seconds: int


SAMPLES: Final = {
    "clients/test_matrix.py": Sample("client", frozenset({"gemini-cli"}), 59),
    "console/test_walks.py::test_fleet_is_filtered_and_searched": Sample(
        "variant", frozenset({"390-light-keyboard"}), 60
    ),
    "console/test_walks.py::test_session_is_replayed": Sample(
        "variant", frozenset({"1280-light-keyboard"}), 60
    ),
    "frameworks/test_frameworks.py": Sample(
        "name", frozenset({"crewai-openinference", "openai-agents-v2", "pydantic-ai"}), 370
    ),
    "judge/test_injections.py::test_obedient_orchestrator_stops_no_worker_and_grants_at_most_an_hour": Sample(
        "kind", frozenset({"approval"}), 21
    ),
    "judge/test_injections.py::test_rules_withstand_every_injection": Sample(
        "kind", frozenset({"approval", "name"}), 21
    ),
    "judge/test_invalid_answers.py::test_queen_model_with_invalid_arguments_gets_three_calls_for_six_tickets": Sample(
        "arguments", frozenset({"{}"}), 5
    ),
    "server/telemetry/test_client_clocks.py::test_run_is_independent_of_the_client_clock": Sample(
        "offsets", frozenset({"far behind, little ahead"}), 5
    ),
}
"""Samples by file, or test."""

POSTGRES: Final = frozenset(
    {
        "health/test_durability.py",
        "health/test_event_log.py",
        "health/test_history.py",
        "health/test_postgres.py",
        "health/test_retention.py",
        "health/test_rows.py",
        "health/test_store.py",
        "health/test_store_copy.py",
    }
)
"""Tests of the store itself, which `make test` also runs on PostgreSQL."""

POSTGRES_SECONDS: Final = 120
STORY_SECONDS: Final = 70
CHAOS_SECONDS: Final = 3900
"""Seconds of the 1,000 disturbances at the end of `make test-slow`."""


def is_slow(file: str, item: pytest.Item) -> bool:
    """Return whether a test runs only in `make test-slow`."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    name = item.nodeid.removeprefix("tests/")
    test = name.partition("[")[0]
    if not SLOW.keys().isdisjoint({file, test, name}) or "newest" in parameters.values():
        return True
    sample = SAMPLES.get(file) or SAMPLES.get(test)
    if sample is not None and parameters.get(sample.parameter) not in (None, *sample.values):
        return True
    if "story" in getattr(item, "fixturenames", ()):
        return True
    return parameters.get("database_url") == "postgresql" and file not in POSTGRES


_SHOWN_SECONDS: Final = 40


def render_table() -> str:
    """Return the Markdown table of the slow tests, longest first."""
    files: dict[str, int] = {}
    for name, seconds in SLOW.items():
        file, _, test = name.partition("::")
        name = f"`{file}`" + (", some tests" if test else "")
        files[name] = files.get(name, 0) + seconds
    for name, sample in SAMPLES.items():
        name = f"`{name.partition('::')[0]}`, other parameters"
        files[name] = files.get(name, 0) + sample.seconds
    files["`observed/`, queries of a recorded fleet with Prometheus"] = STORY_SECONDS
    files["tests on PostgreSQL, except those of the store itself"] = POSTGRES_SECONDS
    files["`python -m tests.cluster.chaos --clusters 2`, 1,000 disturbances"] = CHAOS_SECONDS
    rows = sorted(files.items(), key=lambda row: -row[1])
    lines = [f"| {name} | {seconds} |" for name, seconds in rows if seconds >= _SHOWN_SECONDS]
    lines.append(f"| all others | {sum(seconds for _, seconds in rows if seconds < _SHOWN_SECONDS)} |")
    return "\n".join(["| slow tests | seconds |", "| --- | --- |", *lines])


if __name__ == "__main__":
    print(render_table())
