"""docs/promql.md: each question has a sensible answer in a fleet to which everything has happened."""

from __future__ import annotations

import re

import pytest

from queenright.instrumentation import names
from tests.observed.questions import DOCUMENT, Question, questions
from tests.story.told import Story


@pytest.mark.parametrize("question", questions(), ids=lambda one: one.title)
def test_a_question_has_the_answer_that_the_document_promises(story: Story, question: Question) -> None:
    assert list(question.faults(story.query(question.query))) == []


def test_every_heading_of_the_document_is_a_question_that_is_asked() -> None:
    headings = re.findall(r"^### (.+)$", DOCUMENT.read_text("utf-8"), re.MULTILINE)

    assert headings == [one.title for one in questions()]
    assert len(headings) == len(set(headings)) >= 32


def test_an_answer_that_is_none_would_be_noticed() -> None:
    question = Question("How many?", "sum(up)", "{}  2", {"values": [1, 3], "has": [{"job": "bees"}]})

    assert list(question.faults([])) == ["there is no answer"]
    [no_row, too_many] = question.faults([{"metric": {}, "value": [0, "4"]}])
    assert "no row has" in no_row
    assert "not within 1 to 3" in too_many


def test_a_question_asks_for_every_metric_that_is_about_people_or_money() -> None:
    asked = " ".join(one.query for one in questions())
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

    missed = [name for name in names.METRICS if name.split("_")[1] in families and name not in asked]

    # These are for rules and dashboards: by themselves they answer nothing that a person asks.
    assert set(missed) <= {
        "queenright_worker_tool_duration_seconds",
        "queenright_worker_last_heartbeat_timestamp_seconds",
        "queenright_worker_last_progress_timestamp_seconds",
        "queenright_worker_stalls_total",
        "queenright_recoveries_active",
    }
