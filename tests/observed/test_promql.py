"""Each question in docs/promql.md has a sensible result after all events of the story."""

from __future__ import annotations

import re

import pytest

from queenright.alerting.rules.burn import SPEEDS
from queenright.health.objectives import INTERVENTION_TARGET_SECONDS, LATE_SHARE, compute_burn_threshold
from queenright.instrumentation import names
from queenright.server.settings import Settings
from tests.observed.questions import DOCUMENT, Question, load_questions
from tools.story.recording import Story


@pytest.mark.parametrize("question", load_questions(), ids=lambda question: question.title)
def test_question_has_the_documented_result(story: Story, question: Question) -> None:
    assert list(question.find_faults(story.query(question.query))) == []


def test_every_documented_question_has_an_expected_result() -> None:
    headings = re.findall(r"^### (.+)$", DOCUMENT.read_text("utf-8"), re.MULTILINE)

    assert headings == [question.title for question in load_questions()]
    assert len(headings) == len(set(headings)) >= 32


def test_unexpected_result_is_detected() -> None:
    question = Question("How many?", "sum(up)", {"labels": [[]], "values": [1, 3], "has": [{"job": "bees"}]})

    assert list(question.find_faults([])) == ["the result is empty"]
    [no_row, too_many] = question.find_faults([{"metric": {}, "value": [0, "4"]}])
    assert "no row has" in no_row
    assert "not within 1 to 3" in too_many


def test_documented_questions_cover_all_metrics_about_people_or_cost() -> None:
    text = " ".join(question.query for question in load_questions())
    families = (
        "worker",
        "agent",
        "agents",
        "tickets",
        "triage",
        "interventions",
        "recoveries",
        "llm",
        "notifications",
    )

    missed = [name for name in names.METRICS if name.split("_")[1] in families and name not in text]

    # These are for rules and dashboards, and answer no question by themselves.
    assert set(missed) <= {
        "queenright_worker_tool_duration_seconds",
        "queenright_worker_last_heartbeat_timestamp_seconds",
        "queenright_worker_last_progress_timestamp_seconds",
        "queenright_worker_stalls_total",
        "queenright_recoveries_active",
        "queenright_agent_unpaged",
    }


def read_default(path: str) -> object:
    """Return the default of a setting by its path; raise AttributeError if there is no such setting."""
    setting: object = Settings()
    for part in path.split("."):
        setting = getattr(setting, part)
    return setting


def test_documented_setting_values_equal_the_defaults() -> None:
    """The page names a setting after its number, in the same sentence: ``0.25, `health_monitoring…` ``."""
    documented_values: dict[str, set[float]] = {}
    for line in DOCUMENT.read_text("utf-8").splitlines():
        for path in re.findall(r"`((?:health_monitoring|judging)\.[a-z_.]+)`", line):
            default = read_default(path)  # every named setting exists
            before = line.split(f"`{path}`")[0]
            if before.endswith(", ") and isinstance(default, (int, float)):
                [*_, number] = re.findall(r"\d+(?:\.\d+)?", before)
                documented_values.setdefault(path, set()).add(float(number))
    assert documented_values == {path: {read_default(path)} for path in documented_values}
    assert {path.removeprefix("health_monitoring.") for path in documented_values} >= {
        "rules.bad_steps.error_budget",
        "judge.interval_seconds",
    }


def test_documented_objectives_equal_the_alerts() -> None:
    health = Settings().health_monitoring
    questions = {question.title: question for question in load_questions()}
    page = DOCUMENT.read_text("utf-8")
    budget = health.rules.bad_steps.error_budget

    burn_question = questions["How fast is the budget for bad steps used up?"]
    assert burn_question.query.endswith(f"/ {budget:g}")
    assert burn_question.expected["values"] == [0, 1 / budget]
    section = page.split(f"### {burn_question.title}")[1].split("###")[0]
    for speed in SPEEDS:
        assert f"{100 * compute_burn_threshold(budget, speed.factor):.3g} %" in section
    target_question = questions["Is something done within five minutes?"]
    assert f'le="{INTERVENTION_TARGET_SECONDS:.1f}"' in target_question.query
    assert f"The objective is {1 - LATE_SHARE:g}: " in page
    bands = health.bands
    assert f"{bands.warning}, {bands.medium}, {bands.high} and {bands.critical} unless" in page
