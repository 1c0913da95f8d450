import asyncio
import json
from collections.abc import Sequence

import pytest

from queenright.health.findings import Severity
from queenright.health.tickets.ticket import TicketStatus
from queenright.judge import ticket_policy
from queenright.judge.quoting import unquote
from queenright.judge.rules_model import DISMISS, NOTIFY, RulesModel
from queenright.runtime.events import AgentEvent, EventType
from queenright.runtime.llm.model import Message, ModelError, ModelReply, ToolSpec
from tests.judge.conftest import AGENT, SESSION, JudgedFleet, TalkingModel, reply_with_call

ANALYSIS = "The worker repeats itself; restart it with another instruction."


def read_ticket(messages: Sequence[Message]) -> dict[str, object]:
    [*_, question] = [message for message in messages if message.role == "user"]
    ticket = unquote("ticket", question.content)
    assert ticket is not None
    return ticket


def make_deciding_model(tool: str, **arguments: str) -> TalkingModel:
    """Return a queen that calls ``tool`` on every ticket."""

    def answer(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> ModelReply:
        if messages[-1].role == "tool":
            return reply_with_call("set_output", intervention_decision="done")
        return reply_with_call(tool, **({"ticket_id": str(read_ticket(messages)["ticket_id"])} | arguments))

    return TalkingModel(answer)


def raise_model_error(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> ModelReply:
    raise ModelError("down")


def count_decisions(fleet: JudgedFleet, decision: str) -> float:
    return fleet.get_metric("queenright_triage_total", decision=decision)


async def test_each_triage_message_has_the_whole_ticket(fleet: JudgedFleet) -> None:
    """B44: this holds for the first event and every later one."""
    model = make_deciding_model(NOTIFY, analysis=ANALYSIS, urgency="high")
    fleet.queen_model = model
    await fleet.start()
    for agent in ("first", "second", "third"):
        await fleet.start_worker(agent)
        await fleet.report_bad_steps(16, agent)

    requests = [conversation for conversation in model.conversations if conversation[-1].role == "user"]
    tickets = [read_ticket(messages) for messages in requests]

    stored_tickets = {
        ticket.agent_id: ticket.model_dump(mode="json") for ticket in await fleet.tickets.history(10)
    }
    assert [ticket["agent_id"] for ticket in tickets] == ["first", "second", "third"]
    for ticket in tickets:
        stored_ticket = stored_tickets[str(ticket["agent_id"])]
        assert ticket.keys() == stored_ticket.keys()
        assert ticket["evidence_snippet"] == stored_ticket["evidence_snippet"] == "same error"


async def test_every_ticket_of_a_burst_is_triaged(fleet: JudgedFleet) -> None:
    """B45: twenty tickets arrive at once, while the model is busy with the first."""
    gate = asyncio.Event()
    rules = RulesModel()

    async def answer_after_gate(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> ModelReply:
        await gate.wait()
        return await rules.complete(messages, tools)

    fleet.queen_model = TalkingModel(answer_after_gate)
    await fleet.start()
    agents = [f"agent-{n}" for n in range(20)]
    for agent in agents:
        await fleet.report_event(EventType.EXECUTION_STARTED, agent, start_records=True)
    await fleet.pass_time(121)
    for agent in agents:
        await fleet.report_bad_steps(15, agent)
    assert {ticket.status for ticket in fleet.tickets.open_tickets()} == {TicketStatus.OPEN}
    gate.set()
    await fleet.settle()

    assert len(fleet.tickets.open_tickets()) == 20
    assert {ticket.status for ticket in fleet.tickets.open_tickets()} == {TicketStatus.INTERVENING}
    assert count_decisions(fleet, "intervene") == 20


async def test_high_ticket_is_notified_untriaged_while_triage_fails(fleet: JudgedFleet) -> None:
    """B46: this happens once, after the bypass timeout and not before."""
    fleet.queen_model = TalkingModel(raise_model_error)
    await fleet.start()
    await fleet.start_worker()
    await fleet.report_bad_steps(16)
    await fleet.pass_time(119)
    assert (await fleet.get_ticket()).status is TicketStatus.OPEN

    await fleet.pass_time(1)
    ticket = await fleet.get_ticket()
    await fleet.pass_time(600)

    assert (ticket.status, ticket.untriaged, ticket.triaged_by) == (TicketStatus.INTERVENING, True, "rules")
    assert "120 s" in ticket.analysis
    assert AGENT in ticket.analysis
    requests = fleet.list_events(EventType.QUEEN_INTERVENTION_REQUESTED)
    assert [request.data["untriaged"] for request in requests] == [True]
    assert count_decisions(fleet, "bypass") == 1


async def test_medium_ticket_waits_while_triage_fails(fleet: JudgedFleet) -> None:
    """B46: low and medium tickets wait, and are retried."""
    fleet.queen_model = model = TalkingModel(raise_model_error)
    await fleet.start()
    await fleet.start_worker()
    await fleet.report_bad_steps(11)
    await fleet.pass_time(200)
    assert (await fleet.get_ticket()).status is TicketStatus.OPEN
    assert len(model.conversations) >= 3
    model.answer = RulesModel().complete

    await fleet.pass_time(60)

    assert (await fleet.get_ticket()).status is TicketStatus.INTERVENING
    assert count_decisions(fleet, "bypass") == 0


async def test_hanging_queen_is_bypassed(fleet: JudgedFleet) -> None:
    """B46: this also holds for a ticket behind the one that hangs."""

    async def hang(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> ModelReply:
        await asyncio.Event().wait()
        raise AssertionError

    fleet.queen_model = TalkingModel(hang)
    await fleet.start()
    for agent in ("a", "b"):
        await fleet.report_event(EventType.EXECUTION_STARTED, agent, start_records=True)
    await fleet.pass_time(121)
    for agent in ("a", "b"):
        await fleet.report_bad_steps(16, agent)
    await fleet.pass_time(120)

    assert [ticket.untriaged for ticket in fleet.tickets.open_tickets()] == [True, True]


async def test_model_cannot_dismiss_a_high_ticket_that_still_holds(fleet: JudgedFleet) -> None:
    """B52: the ticket goes to the operator, and the model's decision is recorded."""
    model = make_deciding_model(DISMISS, reason="the worker says that it is fine")
    fleet.queen_model = model
    await fleet.start()
    await fleet.start_worker()
    await fleet.report_bad_steps(16)

    ticket = await fleet.get_ticket()

    assert (ticket.status, ticket.triaged_by) == (TicketStatus.INTERVENING, "rules")
    assert "'the worker says that it is fine'" in ticket.analysis
    assert "high" in ticket.analysis
    assert count_decisions(fleet, "dismiss") == 0


async def test_model_may_dismiss_a_medium_ticket(fleet: JudgedFleet) -> None:
    """B48: the ticket is kept, counted, and not triaged again until it worsens."""
    model = make_deciding_model(DISMISS, reason="it is only warming up")
    fleet.queen_model = model
    await fleet.start()
    await fleet.start_worker()
    await fleet.report_bad_steps(11)
    for _ in range(5):
        await fleet.report_event(EventType.STEP_COMPLETED, verdict="CONTINUE", text="thinking")
        await fleet.tick()

    ticket = await fleet.get_ticket()
    assert (ticket.status, ticket.triage_reason) == (TicketStatus.DISMISSED, "it is only warming up")
    assert count_decisions(fleet, "dismiss") == 1
    assert len([conversation for conversation in model.conversations if conversation[-1].role == "user"]) == 1

    await fleet.report_bad_steps(5)
    assert (await fleet.get_ticket()).severity is Severity.HIGH
    assert (await fleet.get_ticket()).status is TicketStatus.INTERVENING
    assert len([conversation for conversation in model.conversations if conversation[-1].role == "user"]) == 2


async def test_worker_recovered_before_triage_is_not_notified(fleet: JudgedFleet) -> None:
    """B47: the worker is checked before the model's call and before the notification."""
    gate = asyncio.Event()

    async def notify_at_gate(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> ModelReply:
        if messages[-1].role == "tool":
            return reply_with_call("set_output", intervention_decision="done")
        await gate.wait()
        return reply_with_call(
            NOTIFY, ticket_id=str(read_ticket(messages)["ticket_id"]), analysis=ANALYSIS, urgency="high"
        )

    fleet.queen_model = TalkingModel(notify_at_gate)
    await fleet.start()
    await fleet.start_worker()
    await fleet.report_bad_steps(16)
    await fleet.report_event(EventType.STEP_COMPLETED, verdict="ACCEPT", text="done")
    gate.set()
    await fleet.settle()

    ticket = await fleet.get_ticket()

    assert ticket.status is TicketStatus.DISMISSED
    assert ticket.triage_reason.startswith(ticket_policy.RECOVERED)
    assert fleet.list_events(EventType.QUEEN_INTERVENTION_REQUESTED) == []
    assert fleet.changes == []


async def test_untriaged_ticket_is_triaged_once_after_a_restart(fleet: JudgedFleet) -> None:
    """B43: the ticket is stored, and the process is killed before triage."""
    fleet.queen_model = TalkingModel(raise_model_error)
    await fleet.start()
    await fleet.start_worker()
    await fleet.report_bad_steps(16)
    await fleet.stop()
    fleet.queen_model = RulesModel()
    await fleet.start(keep_monitor=True)
    await fleet.settle()

    assert (await fleet.get_ticket()).status is TicketStatus.INTERVENING
    assert count_decisions(fleet, "intervene") == 1
    assert len(fleet.list_events(EventType.QUEEN_INTERVENTION_REQUESTED)) == 1


async def test_worker_unknown_after_a_restart_does_not_count_as_recovered(fleet: JudgedFleet) -> None:
    """B43: for a worker unknown to the monitor, the ticket's own numbers count."""
    fleet.queen_model = TalkingModel(raise_model_error)
    await fleet.start()
    await fleet.start_worker()
    await fleet.report_bad_steps(16)
    await fleet.stop()
    fleet.queen_model = RulesModel()
    await fleet.start()
    await fleet.settle()

    assert (await fleet.get_ticket()).status is TicketStatus.INTERVENING


@pytest.mark.parametrize("tool", [NOTIFY, DISMISS])
async def test_decision_about_an_unknown_or_closed_ticket_is_an_error(fleet: JudgedFleet, tool: str) -> None:
    """B49, B130: the model gets an error, and the rules' text is sent instead of the model's."""
    arguments = {"analysis": ANALYSIS, "urgency": "high"} if tool == NOTIFY else {"reason": "because"}
    first_model = make_deciding_model(tool, ticket_id="no-such-ticket", **arguments)
    fleet.queen_model = first_model
    await fleet.start()
    await fleet.start_worker()
    await fleet.report_bad_steps(16)
    assert "'no-such-ticket'" in first_model.conversations[-1][-1].content
    assert [
        event.data["untriaged"] for event in fleet.list_events(EventType.QUEEN_INTERVENTION_REQUESTED)
    ] == [True]

    closed_ticket = await fleet.get_ticket()
    await fleet.report_event(EventType.EXECUTION_COMPLETED)
    await fleet.update_tickets()
    second_model = make_deciding_model(tool, ticket_id=closed_ticket.ticket_id, **arguments)
    first_model.answer = second_model.answer
    await fleet.start_worker("other")
    await fleet.report_bad_steps(16, "other")

    assert (
        await fleet.tickets.find(closed_ticket.ticket_id) or closed_ticket
    ).status is TicketStatus.WORKER_GONE
    assert "not about ticket" in first_model.conversations[-1][-1].content
    assert [
        event.data["untriaged"] for event in fleet.list_events(EventType.QUEEN_INTERVENTION_REQUESTED)
    ] == [
        True,
        True,
    ]


async def test_decision_after_the_bypass_is_rejected(fleet: JudgedFleet) -> None:
    """B49: a ticket is decided once."""
    gate = asyncio.Event()

    async def dismiss_at_gate(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> ModelReply:
        if messages[-1].role == "tool":
            return reply_with_call("set_output", intervention_decision="done")
        await gate.wait()
        return reply_with_call(DISMISS, ticket_id=str(read_ticket(messages)["ticket_id"]), reason="too late")

    model = TalkingModel(dismiss_at_gate)
    fleet.queen_model = model
    await fleet.start()
    await fleet.start_worker()
    await fleet.report_bad_steps(16)
    ticket = await fleet.get_ticket()
    await fleet.tickets.intervene(ticket.ticket_id, ANALYSIS, "high", by="rules", is_untriaged=True)
    gate.set()
    await fleet.settle()

    assert "is intervening already" in model.conversations[-1][-1].content
    assert (await fleet.get_ticket()).analysis == ANALYSIS


async def test_urgency_is_never_below_the_severity(fleet: JudgedFleet) -> None:
    fleet.queen_model = make_deciding_model(NOTIFY, analysis=ANALYSIS, urgency="low")
    await fleet.start()
    await fleet.start_worker()
    await fleet.report_bad_steps(20)

    assert (await fleet.get_ticket()).urgency == "critical"


async def test_intervention_request_names_the_queens_graph_and_stream(fleet: JudgedFleet) -> None:
    """B63: the event names the queen's graph and stream."""
    await fleet.start()
    await fleet.start_worker()
    await fleet.report_bad_steps(16)

    [request] = fleet.list_events(EventType.QUEEN_INTERVENTION_REQUESTED)

    assert request.data["queen_graph_id"] == "queen"
    assert request.data["queen_stream_id"] == "queen::ticket_receiver"
    assert json.dumps(dict(request.data))


@pytest.mark.parametrize("relapses", [False, True], ids=["it is well", "it fails again"])
async def test_restarted_worker_is_not_recovered_within_its_start_grace(
    fleet: JudgedFleet, relapses: bool
) -> None:
    """B47: a missing finding in the start grace does not mean that the worker has recovered."""
    gate, rules = asyncio.Event(), RulesModel()

    async def triage_at_gate(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> ModelReply:
        await gate.wait()
        return await rules.complete(messages, tools)

    fleet.queen_model = TalkingModel(triage_at_gate)
    await fleet.start()
    await fleet.start_worker()
    await fleet.report_bad_steps(21)
    event = AgentEvent(
        type=EventType.EXECUTION_STARTED,
        time=fleet.time.now,
        agent_id=AGENT,
        session_id=SESSION,
        incarnation_id="life-2",
        node_id="researcher",
        data={"start_records": True},
    )
    fleet.monitor.apply(event, fleet.time.now)
    gate.set()
    await fleet.pass_time(110)
    assert (await fleet.get_ticket()).status is TicketStatus.OPEN
    if relapses:
        event.id, event.type, event.data = "n", EventType.STEP_COMPLETED, {"verdict": "RETRY", "text": "no"}
        for _ in range(21):
            fleet.monitor.apply(event, fleet.time.now)
    await fleet.pass_time(11)
    await fleet.advance_monitor()
    await fleet.pass_time(45)

    ticket = await fleet.get_ticket()
    if relapses:
        assert ticket.status is TicketStatus.INTERVENING
    else:
        assert ticket.status is TicketStatus.DISMISSED
        assert ticket.triage_reason.startswith(ticket_policy.RECOVERED)
