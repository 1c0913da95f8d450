"""
What `make test` leaves to `make test-slow`, with the seconds that each takes on two busy cores.

Each has a quicker test of the same fact in `make test`: the bundled programs instead of the newest ones, the
rules instead of a simulated day or week, the names in the queries of the dashboards instead of their data,
some of the recorded clients and frameworks instead of all, SQLite instead of PostgreSQL except for the store.

``python -m tests.slow`` prints the table of CONTRIBUTING.md.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import pytest

SLOW: Final = {
    "alerting/test_cluster.py": 48,
    "alerting/test_outbox.py::test_end_is_repeated_after_an_outage_of_any_length[sqlite-200]": 10,
    "alerting/test_rules_by_promtool.py::test_the_tests_notice_an_alert": 15,
    "alerting/test_sessions_of_one_agent.py::test_agent_whose_tickets_close_before_the_next_opens_is_one_incident": 19,  # noqa: E501
    "chaos/test_alerts_under_fire.py": 43,
    "chaos/test_monitor_killed.py": 20,
    "cluster/test_chaos.py": 170,
    "console/test_alertmanager.py": 25,
    "console/test_bundle.py::test_build_can_be_repeated": 56,
    "console/test_home.py::test_long_fleet_is_sixty_rows_at_most[10000]": 17,
    "console/test_memory.py::test_memory_is_flat_while_changes_come_in[18000]": 29,
    "console/test_pages.py::test_every_page_says_that_the_connection_is_lost_and_catches_up": 100,
    "console/test_pages.py::test_every_page_and_dialog_is_accessible": 240,
    "end_to_end/test_acknowledged.py": 18,
    "end_to_end/test_alertmanager_away.py": 83,
    "end_to_end/test_crashing_agent.py": 19,
    "end_to_end/test_crowd.py": 15,
    "end_to_end/test_examples.py::test_log_digest_counts_the_errors_of_its_sample": 12,
    "end_to_end/test_judge_job.py::test_lost_targets_close_no_ticket": 22,
    "end_to_end/test_judge_job.py::test_run_notifies_an_undecided_ticket_after_the_bypass_time": 10,
    "end_to_end/test_judge_job.py::test_run_reports_an_empty_fleet_and_continues": 23,
    "end_to_end/test_judge_job.py::test_second_once_resolves_the_first_alert": 12,
    "end_to_end/test_page.py::test_looping_agent_is_one_page_and_one_resolve[links1-looping_pydantic_ai.py-pydantic_researcher]": 43,  # noqa: E501
    "end_to_end/test_shared_cause.py": 30,
    "end_to_end/test_symptoms.py": 114,
    "end_to_end/test_up.py::test_killed_demo_leaves_no_process_and_its_agents_are_not_paged_by_the_next": 28,
    "judge/test_judge.py::test_conversation_is_bounded_and_the_last_numbers_exact[1000]": 27,
    "judge/test_scenarios.py::test_no_floor_is_lowered_and_no_unrelated_worker_ticketed": 1,
    "judge/test_scenarios.py::test_rules_agree_well_and_miss_no_binding_finding": 1,
    "judge/test_scenarios.py::test_the_rules_agree_with_the_labels_as_the_document_states": 20,
    "packaging/test_compose_runs.py": 175,
    "packaging/test_image.py": 510,
    "server/test_cli.py::test_each_part_of_the_commands_can_be_the_first_to_be_imported": 17,
    "server/test_demo.py::test_demo_shows_everything_that_needs_a_person": 46,
    "simulation/test_day.py::test_a_ticket_costs_at_most_three_calls_of_the_model": 11,
    "simulation/test_day.py::test_finding_called_healthy_is_not_sent_to_the_model_at_every_tick": 11,
    "simulation/test_day.py::test_hundred_healthy_workers_cost_no_model_call": 11,
    "simulation/test_week.py": 99,
}
"""By file, test, or test with its parameters."""


class Sample(NamedTuple):
    """The values of a parameter that `make test` runs a test with; the others take these seconds."""

    parameter: str
    values: frozenset[str]
    seconds: int


SAMPLES: Final = {
    "clients/test_matrix.py": Sample("client", frozenset({"gemini-cli"}), 59),
    "frameworks/test_frameworks.py": Sample(
        "name", frozenset({"crewai-openinference", "openai-agents-v2", "pydantic-ai"}), 370
    ),
    "judge/test_injections.py::test_obedient_orchestrator_stops_nobody_and_grants_at_most_an_hour": Sample(
        "kind", frozenset({"approval", "escalation", "tool-result"}), 11
    ),
    "judge/test_injections.py::test_rules_withstand_every_injection": Sample(
        "kind", frozenset({"approval", "name", "severity", "tool-result"}), 12
    ),
    "judge/test_invalid_answers.py::test_queen_model_with_invalid_arguments_is_asked_three_times_for_six_tickets": Sample(  # noqa: E501
        "arguments", frozenset({"{}"}), 5
    ),
}
"""By file, or test."""

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
"""The tests of the store itself, which `make test` runs on PostgreSQL too."""

POSTGRES_SECONDS: Final = 120
STORY_SECONDS: Final = 70


def is_slow(file: str, item: pytest.Item) -> bool:
    """Return whether a test is left to `make test-slow`."""
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
    """Return the Markdown table of what is slow, longest first."""
    files: dict[str, int] = {}
    for name, seconds in SLOW.items():
        file, _, test = name.partition("::")
        what = f"`{file}`" + (", some tests" if test else "")
        files[what] = files.get(what, 0) + seconds
    for name, sample in SAMPLES.items():
        what = f"`{name.partition('::')[0]}`, other parameters"
        files[what] = files.get(what, 0) + sample.seconds
    files["`observed/`, all that a fleet with Prometheus is asked"] = STORY_SECONDS
    files["tests on PostgreSQL, all but those of the store itself"] = POSTGRES_SECONDS
    rows = sorted(files.items(), key=lambda row: -row[1])
    lines = [f"| {what} | {seconds} |" for what, seconds in rows if seconds >= _SHOWN_SECONDS]
    lines.append(f"| all others | {sum(seconds for _, seconds in rows if seconds < _SHOWN_SECONDS)} |")
    return "\n".join(["| slow tests | seconds |", "| --- | --- |", *lines])


if __name__ == "__main__":
    print(render_table())
