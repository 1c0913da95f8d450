"""Open tickets follow a changed condition: text, urgency and notifications."""

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
from tests.judge.conftest import AGENT, SESSION, JudgedFleet, TalkingModel, call


def requested(fleet: JudgedFleet) -> list[tuple[str, str]]:
    """Return with which severity and urgency the queen has asked for a person."""
    events = (event.data for event in fleet.of(EventType.QUEEN_INTERVENTION_REQUESTED))
    return [(data["severity"], data["urgency"]) for data in events]


async def test_rise_after_a_notification_requests_another(fleet: JudgedFleet) -> None:
    """B102: one request for each rise, and the words, numbers and urgency are those of the moment."""
    await fleet.start()
    await fleet.begin()
    for _ in range(30):
        await fleet.worker(EventType.STEP_COMPLETED, verdict="RETRY", text="same error")
        await (
            fleet.update_tickets_of_worker()
        )  # as in the service: the tickets know of a rise before the judge does
        await fleet.settle()
        [*_, ticket] = [*fleet.tickets.open_tickets(), None]
        if ticket is None:
            continue
        assert ticket.words_severity is ticket.severity
        assert f"{ticket.severity.value} severity" in ticket.judge_reasoning
        if ticket.status is TicketStatus.INTERVENING:
            assert ticket.urgency == ticket.severity.value
            assert ticket.cause in ticket.analysis

    ticket = await fleet.ticket()
    assert ticket.severity is Severity.CRITICAL
    assert requested(fleet) == [(one, one) for one in ("medium", "high", "critical")]
    assert [
        change.severity for change in fleet.changes if change.notified_severity is not change.severity
    ] == []


async def test_rise_of_a_ticket_that_joined_an_incident_requests_once(
    fleet: JudgedFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B102, B104: neither joining nor the other tickets of the incident request anything for it."""
    monkeypatch.setattr(ticket_reports, "possible_cause", lambda health, finding: fleet.cause)
    await fleet.start()
    await fleet.begin()
    await fleet.begin("other")
    await fleet.bad_steps(11)
    fleet.cause = "tool:search"
    await fleet.bad_steps(11, "other")
    joined = {ticket.agent_id: ticket.storm_id for ticket in fleet.tickets.open_tickets()}
    before = requested(fleet)
    changes = len(fleet.changes)

    await fleet.bad_steps(5)
    await fleet.update_tickets_of_worker()
    await fleet.settle()

    assert joined == {AGENT: "tool:search", "other": "tool:search"}
    assert before == [("medium", "medium")] * 2
    assert requested(fleet) == [*before, ("high", "high")]
    assert {change.severity for change in fleet.changes[changes:]} == {Severity.HIGH}


async def stalled(fleet: JudgedFleet) -> None:
    """Have a worker whose bad steps are over, and that says nothing any more."""
    await fleet.bad_steps(16)
    await fleet.good_step()
    await fleet.worker(EventType.STEP_STARTED)
    await fleet.worker(EventType.TOOL_CALL_STARTED, tool="fetch", call_id="c")
    for _ in range(20):
        await fleet.pass_time(60)
        events = fleet.monitor.advance(fleet.time.now)
        await fleet.update_tickets_of_worker()
        await fleet.bus.publish(*events)
        await fleet.settle()


def talking(said: list[str]) -> TalkingModel:
    """Return a judge's model that says in its own words what the rules would say, and notes of what."""

    def speak(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> ModelReply:
        if messages[-1].role == "tool":
            return call("set_output", health_verdict="unhealthy")
        [*_, question] = [message for message in messages if message.role == "user"]
        draft = ticket_policy.draft_ticket(unquote("worker", question.content) or {})
        assert draft is not None
        said.append(draft.cause)
        return call(
            EMIT,
            ticket_json=draft.model_copy(update={"cause": f"I see: {draft.cause}"}).model_dump_json(
                exclude_none=True
            ),
        )

    return TalkingModel(speak)


@pytest.mark.parametrize("judge", ["rules", "model"])
async def test_new_condition_changes_the_text_of_an_open_ticket(fleet: JudgedFleet, judge: str) -> None:
    """B102: what it was opened about is over, and something else has begun within the hold."""
    replies: list[str] = []
    fleet.judge_model = RulesModel() if judge == "rules" else talking(replies)
    await fleet.start()
    await fleet.begin()

    await stalled(fleet)

    ticket = await fleet.ticket()
    assert ticket.kind is FindingKind.RETRY_STORM
    assert ticket.words_kind in ticket.active_kinds
    assert ticket.words_kind is not FindingKind.RETRY_STORM
    assert ticket.suggested_action == wording.advice(ticket.words_kind, ticket.agent_id, ticket.session_id)
    assert ticket.suggested_action in ticket.analysis
    assert len(replies) == (judge == "model"), (
        "a model writes the ticket, and what changes is the rules' to write"
    )


async def test_judge_is_not_asked_again_while_its_text_applies(fleet: JudgedFleet) -> None:
    """A ticket that is only counted costs no model call."""
    replies: list[str] = []
    fleet.judge_model = talking(replies)
    await fleet.start()
    await fleet.begin()
    await fleet.bad_steps(16)
    count = len(replies)

    for _ in range(3):
        await fleet.bad_steps(1)
        await fleet.tick()

    assert len(replies) == count
    assert (await fleet.ticket()).session_id == SESSION
    assert (await fleet.ticket()).agent_id == AGENT


async def test_text_of_the_rules_has_the_current_evidence(fleet: JudgedFleet) -> None:
    """B102: the counts in cause and analysis are those of the last check."""
    await fleet.start()
    await fleet.begin()
    await fleet.bad_steps(16)
    before = await fleet.ticket()

    await fleet.bad_steps(2)
    await fleet.tick()

    ticket = await fleet.ticket()
    assert (ticket.ticket_id, ticket.words_kind) == (before.ticket_id, before.words_kind)
    assert ticket.cause != before.cause
    assert ticket.finding_evidence in ticket.cause
    assert ticket.cause.rstrip(".") in current_analysis(ticket)
    assert f"seen {ticket.occurrences} times" in current_analysis(ticket)
