"""The console's texts about interventions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from queenright import api
from queenright.api.event_text import has_feed_line
from queenright.health.cluster.switch_state import SwitchState
from queenright.health.interventions.action_limits import ActionBudget
from queenright.health.interventions.intervention import InterventionOutcome
from queenright.health.interventions.ladder import Ladder, LadderStep
from queenright.health.interventions.storm import StormWatch
from queenright.health.interventions.target import Target
from queenright.health.settings import HealthSettings
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.serving import RunningService
from queenright.server.settings import Settings
from queenright.server.views.api_models import build_status, make_feed_line
from queenright.server.views.interventions import build_interventions_view
from tests.server.conftest import demo_settings, looping

SENTENCES: list[tuple[EventType, dict[str, Any], str]] = [
    (
        EventType.NUDGE_SENT,
        {"attempt": 2, "delivery": "injected", "by": "ladder"},
        "bee: nudge 2 delivered (automatic).",
    ),
    (
        EventType.NUDGE_SENT,
        {"attempt": 0, "delivery": "queued", "by": "ada"},
        "bee: nudge queued, by ada",
    ),
    (
        EventType.NUDGE_SENT,
        {"attempt": 1, "delivery": "queued", "by": "ladder", "message": "REMINDER:\n" + "report " * 50},
        "bee: nudge 1 queued (automatic). REMINDER: report report",
    ),
    (EventType.ESCALATION_TRIGGERED, {"reason": "silent"}, "bee: escalated to the orchestrator. silent"),
    (
        EventType.TERMINATION_REQUESTED,
        {"by": "queen", "reason": "It loops.", "approval_id": "a", "ticket_id": "t"},
        "bee: termination requested by queen. It loops.",
    ),
    (
        EventType.TERMINATION_DECIDED,
        {"status": "approved", "by": "ada", "reason": "", "approval_id": "a", "ticket_id": "t"},
        "bee: termination approved by ada.",
    ),
    (
        EventType.TERMINATION_DECIDED,
        {"status": "void", "by": "", "reason": "it has made progress since"},
        "bee: termination request void. it has made progress since",
    ),
    (
        EventType.ESCALATION_DECIDED,
        {"decision": "more_time", "by": "queen", "reason": None},
        "bee: more time, decided by queen.",
    ),
    (
        EventType.AGENT_TERMINATED,
        {"by": "ada", "reason": "loops", "checkpoint_id": "cp"},
        "bee: terminated by ada, state saved in checkpoint cp. loops",
    ),
    (EventType.AGENT_TERMINATED, {"by": "ada", "reason": "loops"}, "bee: terminated by ada. loops"),
    (
        EventType.RECOVERY_INITIATED,
        {"attempt": 1, "from_checkpoint": None},
        "recovery attempt 1 from the start of its task",
    ),
    (EventType.RECOVERY_COMPLETED, {"new_session_id": "s2"}, "bee: recovered as session s2"),
    (
        EventType.RECOVERY_FAILED,
        {"reason": "crash", "exhausted": True},
        "failed; a person is needed. crash",
    ),
    (EventType.RECOVERY_FAILED, {"reason": "crash", "exhausted": False}, "bee: recovery failed. crash"),
    (
        EventType.CIRCUIT_BREAKER_STATE_CHANGED,
        {"name": "external_api:bee", "from": "open", "to": "half_open", "reason": ""},
        "breaker external_api:bee: open → half open.",
    ),
    (
        EventType.INTERVENTION_RECORDED,
        {"kind": "nudge", "outcome": "refused", "by": "ada", "detail": "it waits"},
        "bee: nudge by ada: refused: it waits",
    ),
    (
        EventType.INTERVENTION_RECORDED,
        {"kind": "terminate", "outcome": "dry_run", "by": "ladder", "detail": ""},
        "bee: terminate (automatic): dry run",
    ),
    (
        EventType.EMERGENCY_STOP_CHANGED,
        {"on": True, "by": "ada", "reason": "x"},
        "emergency stop on: no worker is acted on",
    ),
    (
        EventType.EMERGENCY_STOP_CHANGED,
        {"on": False, "by": "ada", "reason": "x"},
        "emergency stop off, by ada",
    ),
    (
        EventType.AGENT_OPERATED,
        {"what": "delete_session", "by": "ada", "detail": ""},
        "bee: session deleted, by ada",
    ),
    (
        EventType.TOKENS_CHANGED,
        {
            "came": [{"name": "ada", "role": "admin"}],
            "went": [{"name": "bob", "role": "viewer", "why": "revoked"}],
            "live": [],
        },
        "tokens: ada (admin) added; bob (viewer) revoked",
    ),
]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Return settings with which only the test decides. Otherwise the queen would decide immediately."""
    return demo_settings(tmp_path / "storage", orchestrator="none")


@pytest.mark.parametrize(("kind", "data", "expected"), SENTENCES)
def test_each_action_has_a_sentence_in_the_event_feed(
    kind: EventType, data: dict[str, Any], expected: str
) -> None:
    line = make_feed_line(AgentEvent(type=kind, time=0.0, agent_id="bee", data=data))

    assert expected in line.text
    assert line.kind


def test_event_line_names_its_worker_once() -> None:
    target = Target(agent_id="bee", session_id="s", incarnation_id="i")
    detail = f"nobody can reach worker {target}: it fetches no instructions"
    record = {"kind": "nudge", "outcome": "unreachable", "by": "ladder", "detail": detail}

    line = make_feed_line(
        AgentEvent(
            type=EventType.INTERVENTION_RECORDED,
            time=0.0,
            agent_id="bee",
            session_id="s",
            incarnation_id="i",
            data=record,
        )
    )

    assert line.text.startswith("bee: nudge (automatic): not carried out")


@pytest.mark.parametrize(
    ("kind", "attempt", "expected"), [("nudge", 1, True), ("nudge", 2, False), ("terminate", 2, True)]
)
def test_undeliverable_nudge_is_shown_once_per_ladder(kind: str, attempt: int, expected: bool) -> None:
    data = {"kind": kind, "outcome": "unreachable", "attempt": attempt}
    event = AgentEvent(type=EventType.INTERVENTION_RECORDED, time=0.0, data=data)

    assert has_feed_line(event.type, event.data) is expected


@pytest.mark.parametrize("agent", ["w" * 255, "bee"])
def test_brief_event_line_truncates_a_long_name(agent: str) -> None:
    data = {"attempt": 1, "delivery": "queued", "by": "ada", "message": "m" * 500}

    line = make_feed_line(
        AgentEvent(type=EventType.NUDGE_SENT, time=0.0, agent_id=agent, data=data), brief=True
    )

    assert line.text.startswith(agent[:50])
    assert ": nudge 1 queued, by ada. mmm" in line.text


def test_each_undelivered_nudge_by_a_person_has_a_line() -> None:
    data = {"kind": "nudge", "outcome": "unreachable", "attempt": 2, "by": "ada"}

    assert has_feed_line(EventType.INTERVENTION_RECORDED, data)


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (EventType.TICKET_ACKNOWLEDGED, {"by": "ada"}),
        (EventType.TICKET_UNACKNOWLEDGED, {"by": "ada", "was": "bob"}),
    ],
)
def test_event_line_about_a_ticket_names_its_worker(kind: EventType, data: dict[str, Any]) -> None:
    assert make_feed_line(AgentEvent(type=kind, time=0.0, agent_id="bee", data=data)).text.startswith("bee: ")


@pytest.mark.parametrize("outcome", list(InterventionOutcome))
def test_intervention_record_without_an_event_has_an_event_line(outcome: InterventionOutcome) -> None:
    event = AgentEvent(type=EventType.INTERVENTION_RECORDED, time=0.0, data={"outcome": outcome.value})

    assert has_feed_line(event.type, event.data) is (
        outcome not in (InterventionOutcome.DONE, InterventionOutcome.QUEUED)
    )


def test_brief_event_line_is_one_sentence() -> None:
    analysis = "looper (node search) goes in circles. Nothing new comes of it.\nStop the run. " * 9
    event = AgentEvent(
        type=EventType.QUEEN_INTERVENTION_REQUESTED,
        time=0.0,
        agent_id="looper",
        data={"analysis": analysis, "ticket_id": "t1"},
    )

    brief_line, full_line = make_feed_line(event, brief=True), make_feed_line(event)

    assert brief_line.text == "queen → operator: looper (node search) goes in circles."
    assert brief_line.ticket == "t1"
    assert full_line.text.endswith(analysis)


def list_interventions(running: RunningService) -> dict[str, Any]:
    interventions: dict[str, Any] = build_status(running.service).acting.model_dump(mode="json")
    return interventions


async def test_healthy_nudged_worker_is_not_an_intervention_in_progress(running: RunningService) -> None:
    service = running.service
    healthy = AgentEvent(
        type=EventType.EXECUTION_STARTED,
        time=service.clock(),
        agent_id="fine",
        session_id="s",
        incarnation_id="one",
        data={"start_records": True},
    )
    await service.ingest([healthy])
    await service.health.send_nudge("fine", "good day", by="ada")

    assert ("fine", "s") in service.interventions.ledger.ladders
    assert list_interventions(running)["ladders"] == []


async def test_status_has_the_limits_of_interventions(running: RunningService) -> None:
    service = running.service
    await service.ingest(list(looping(service.clock(), times=3)))
    await service.health.escalate_to_orchestrator("looper", "an unusual pattern", by="ada")
    clock_time, budget = service.clock(), service.interventions.budget
    initial = list_interventions(running)
    for number in range(6):
        service.remediation.storm.record_worse((f"bee{number}", "s"), clock_time)
    for _ in range(budget.most):
        budget.spend(clock_time)

    at_limit = list_interventions(running)
    await service.health.emergency_stop(True, by="ada", reason="drill")
    during_stop = list_interventions(running)

    assert (initial["storm"], initial["notices"]) == ({"id": "", "workers": 0, "since": None}, [])
    assert initial["emergency_stop"]["on"] is False
    assert at_limit["storm"]["id"]
    assert (at_limit["storm"]["workers"], at_limit["storm"]["since"]) == (7, clock_time)
    assert at_limit["budget"]["used"] > budget.most
    assert at_limit["budget"]["free_at"] > clock_time
    emergency_stop = during_stop["emergency_stop"]
    assert (emergency_stop["on"], emergency_stop["by"], emergency_stop["reason"]) == (True, "ada", "drill")
    assert emergency_stop["changed_at"] >= clock_time


@pytest.mark.parametrize(
    ("undelivered", "dry_run", "badge_text"),
    [
        ("", False, "nudge 1 sent"),
        ("it fetches none. Set a URL", False, "could not be nudged: it fetches none"),
        ("", True, "nudge 1 (dry run)"),
    ],
)
def test_ladder_badge_has_the_outcome_of_its_nudge(undelivered: str, dry_run: bool, badge_text: str) -> None:
    ladder = Ladder(
        agent_id="bee",
        session_id="s",
        incarnation_id="i",
        nudges=1,
        trouble_since=0.0,
        acted_at=5.0,
        undelivered=undelivered,
    )
    pending_requests = build_interventions_view(
        stop=SwitchState(),
        storm=StormWatch(HealthSettings().intervention.storm, ids=lambda: "storm"),
        budget=ActionBudget(10),
        dry_run=dry_run,
        ladders=[(ladder, LadderStep(ladder=ladder))],
        pending=(),
        approvals=(),
        breakers=(),
        recoveries=(),
        now=9.0,
    )

    assert [row.what for row in pending_requests.ladders] == [badge_text]


def test_api_model_has_each_field_of_a_ladder() -> None:
    """Otherwise the page of an agent whose ladder is not valid in the API could not be shown."""
    assert set(api.Ladder.model_fields) == set(Ladder.model_fields)
