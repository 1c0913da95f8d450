"""Updates of open tickets when their condition changes: text, urgency and notifications."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from queenright.alerting.notification_text import current_analysis
from queenright.health.findings import FindingKind, Severity
from queenright.health.tickets import ticket_reports
from queenright.health.tickets.ticket import TicketStatus
from queenright.judge import ticket_policy, wording
from queenright.judge.quoting import unquote
from queenright.judge.rules_model import EMIT, RulesModel
from queenright.runtime.events import EventType
from queenright.runtime.llm.model import Message, ModelReply, ToolSpec
from tests.judge.conftest import AGENT, SESSION, JudgedFleet, TalkingModel, reply_with_call


def list_requested_notifications(fleet: JudgedFleet) -> list[tuple[str, str]]:
    """Return the severity and urgency of each notification that the queen requested."""
    events = (event.data for event in fleet.list_events(EventType.QUEEN_INTERVENTION_REQUESTED))
    return [(data["severity"], data["urgency"]) for data in events]


async def test_severity_rise_after_a_notification_requests_another(fleet: JudgedFleet) -> None:
    """B102: each rise makes one request, with the current text, counts and urgency."""
    await fleet.start()
    await fleet.start_worker()
    for _ in range(30):
        await fleet.report_event(EventType.STEP_COMPLETED, verdict="RETRY", text="same error")
        # As in the service, the ticket's severity rises before the judge checks.
        await fleet.update_tickets()
        await fleet.settle()
        tickets = fleet.tickets.open_tickets()
        if not tickets:
            continue
        [ticket] = tickets
        assert ticket.words_severity is ticket.severity
        assert f"{ticket.severity.value} severity" in ticket.judge_reasoning
        if ticket.status is TicketStatus.INTERVENING:
            assert ticket.urgency == ticket.severity.value
            assert ticket.cause.rstrip(".") in ticket.analysis

    ticket = await fleet.get_ticket()
    assert ticket.severity is Severity.CRITICAL
    assert list_requested_notifications(fleet) == [
        (severity, severity) for severity in ("medium", "high", "critical")
    ]
    assert [
        change.severity for change in fleet.changes if change.notified_severity is not change.severity
    ] == []


async def test_severity_rise_in_an_incident_requests_one_notification(
    fleet: JudgedFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    B102, B104: neither joining the incident nor its other tickets request a notification for this ticket.
    """
    monkeypatch.setattr(ticket_reports, "possible_cause", lambda health, finding: fleet.cause)
    await fleet.start()
    await fleet.start_worker()
    await fleet.start_worker("other")
    await fleet.report_bad_steps(11)
    fleet.cause = "tool:search"
    await fleet.report_bad_steps(11, "other")
    storm_ids = {ticket.agent_id: ticket.storm_id for ticket in fleet.tickets.open_tickets()}
    before_rise = list_requested_notifications(fleet)
    changes = len(fleet.changes)

    await fleet.report_bad_steps(5)
    await fleet.update_tickets()
    await fleet.settle()

    assert storm_ids == {AGENT: "tool:search", "other": "tool:search"}
    assert before_rise == [("medium", "medium")] * 2
    assert list_requested_notifications(fleet) == [*before_rise, ("high", "high")]
    assert {change.severity for change in fleet.changes[changes:]} == {Severity.HIGH}


async def stall_worker(fleet: JudgedFleet) -> None:
    """End the worker's bad steps, then let it stall."""
    await fleet.report_bad_steps(16)
    await fleet.report_good_step()
    await fleet.report_event(EventType.STEP_STARTED)
    await fleet.report_event(EventType.TOOL_CALL_STARTED, tool="fetch", call_id="c")
    for _ in range(20):
        await fleet.pass_time(60)
        events = fleet.monitor.advance(fleet.time.now)
        await fleet.update_tickets()
        await fleet.bus.publish(*events)
        await fleet.settle()


def make_rephrasing_model(causes: list[str]) -> TalkingModel:
    """Return a judge model that rephrases the rules' draft, and appends each cause to ``causes``."""

    def answer(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> ModelReply:
        if messages[-1].role == "tool":
            return reply_with_call("set_output", health_verdict="unhealthy")
        [*_, question] = [message for message in messages if message.role == "user"]
        draft = ticket_policy.draft_ticket(unquote("worker", question.content) or {})
        assert draft is not None
        causes.append(draft.cause)
        return reply_with_call(
            EMIT,
            ticket_json=draft.model_copy(update={"cause": f"I see: {draft.cause}"}).model_dump_json(
                exclude_none=True
            ),
        )

    return TalkingModel(answer)


@pytest.mark.parametrize("judge", ["rules", "model"])
async def test_new_condition_changes_the_text_of_an_open_ticket(fleet: JudgedFleet, judge: str) -> None:
    """B102: the original condition has cleared, and another began within the hold."""
    causes: list[str] = []
    fleet.judge_model = RulesModel() if judge == "rules" else make_rephrasing_model(causes)
    await fleet.start()
    await fleet.start_worker()

    await stall_worker(fleet)

    ticket = await fleet.get_ticket()
    assert ticket.kind is FindingKind.RETRY_STORM
    assert ticket.words_kind in ticket.active_kinds
    assert ticket.words_kind is not FindingKind.RETRY_STORM
    assert ticket.suggested_action == wording.advice(ticket.words_kind, ticket.agent_id, ticket.session_id)
    assert ticket.suggested_action in ticket.analysis
    assert len(causes) == (judge == "model"), "the model writes the first text; the rules write the updates"


async def test_model_is_not_called_again_while_the_ticket_text_applies(fleet: JudgedFleet) -> None:
    """Another occurrence makes no model call."""
    causes: list[str] = []
    fleet.judge_model = make_rephrasing_model(causes)
    await fleet.start()
    await fleet.start_worker()
    await fleet.report_bad_steps(16)
    count = len(causes)

    for _ in range(3):
        await fleet.report_bad_steps(1)
        await fleet.tick()

    assert len(causes) == count
    assert (await fleet.get_ticket()).session_id == SESSION
    assert (await fleet.get_ticket()).agent_id == AGENT


async def test_rule_text_contains_the_current_evidence(fleet: JudgedFleet) -> None:
    """B102: cause and analysis have the counts of the latest check."""
    await fleet.start()
    await fleet.start_worker()
    await fleet.report_bad_steps(16)
    first = await fleet.get_ticket()

    await fleet.report_bad_steps(2)
    await fleet.tick()

    ticket = await fleet.get_ticket()
    assert (ticket.ticket_id, ticket.words_kind) == (first.ticket_id, first.words_kind)
    assert ticket.cause != first.cause
    assert ticket.finding_evidence in ticket.cause
    assert ticket.cause.rstrip(".") in current_analysis(ticket)
    assert f"seen {ticket.occurrences} times" in current_analysis(ticket)
