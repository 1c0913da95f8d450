import asyncio
import json
from collections.abc import Sequence

import pytest

from queenright.health.findings import Severity
from queenright.health.tickets import TicketStatus
from queenright.judge import policy
from queenright.judge.quoting import unquote
from queenright.judge.rules import DISMISS, NOTIFY, RulesModel
from queenright.runtime.events import AgentEvent, EventType
from queenright.runtime.llm.model import Message, ModelError, ModelReply, ToolSpec
from tests.judge.conftest import AGENT, SESSION, Hive, TalkingModel, call

ANALYSIS = "The worker repeats itself; restart it with another instruction."


def ticket_in(messages: Sequence[Message]) -> dict[str, object]:
    [*_, question] = [m for m in messages if m.role == "user"]
    ticket = unquote("ticket", question.content)
    assert ticket is not None
    return ticket


def deciding(tool: str, **arguments: str) -> TalkingModel:
    """A queen that calls ``tool`` on whatever ticket she is shown, then ends."""

    def speak(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> ModelReply:
        if messages[-1].role == "tool":
            return call("set_output", intervention_decision="done")
        return call(tool, **({"ticket_id": str(ticket_in(messages)["ticket_id"])} | arguments))

    return TalkingModel(speak)


def failing(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> ModelReply:
    raise ModelError("down")


def decisions(hive: Hive, decision: str) -> float:
    return hive.metric("queenright_triage_total", decision=decision)


async def test_each_triage_message_has_the_whole_ticket(hive: Hive) -> None:
    """B44: on the first event and on every later one."""
    model = deciding(NOTIFY, analysis=ANALYSIS, urgency="high")
    hive.queen_model = model
    await hive.start()
    for agent in ("first", "second", "third"):
        await hive.begin(agent)
        await hive.bad_steps(16, agent)

    requests = [m for m in model.shown if m[-1].role == "user"]
    tickets = [ticket_in(messages) for messages in requests]

    result = {t.agent_id: t.model_dump(mode="json") for t in await hive.tickets.history(10)}
    assert [t["agent_id"] for t in tickets] == ["first", "second", "third"]
    for ticket in tickets:
        stored = result[str(ticket["agent_id"])]
        assert ticket.keys() == stored.keys()
        assert ticket["evidence_snippet"] == stored["evidence_snippet"] == "same error"


async def test_every_ticket_of_a_burst_is_triaged(hive: Hive) -> None:
    """B45: twenty at once, while the first is still being thought about."""
    gate = asyncio.Event()
    rules = RulesModel()

    async def slow(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> ModelReply:
        await gate.wait()
        return await rules.complete(messages, tools)

    hive.queen_model = TalkingModel(slow)
    await hive.start()
    agents = [f"agent-{n}" for n in range(20)]
    for agent in agents:
        await hive.worker(EventType.EXECUTION_STARTED, agent, start_records=True)
    await hive.pass_time(121)
    for agent in agents:
        await hive.bad_steps(15, agent)
    assert {t.status for t in hive.tickets.open_tickets()} == {TicketStatus.OPEN}
    gate.set()
    await hive.settle()

    assert len(hive.tickets.open_tickets()) == 20
    assert {t.status for t in hive.tickets.open_tickets()} == {TicketStatus.INTERVENING}
    assert decisions(hive, "intervene") == 20


async def test_high_ticket_is_notified_untriaged_while_triage_fails(hive: Hive) -> None:
    """B46: after the bypass time, and not before; once."""
    hive.queen_model = TalkingModel(failing)
    await hive.start()
    await hive.begin()
    await hive.bad_steps(16)
    await hive.pass_time(119)
    assert (await hive.ticket()).status is TicketStatus.OPEN

    await hive.pass_time(1)
    ticket = await hive.ticket()
    await hive.pass_time(600)

    assert (ticket.status, ticket.untriaged, ticket.triaged_by) == (TicketStatus.INTERVENING, True, "rules")
    assert "120 s" in ticket.analysis
    assert AGENT in ticket.analysis
    requests = hive.of(EventType.QUEEN_INTERVENTION_REQUESTED)
    assert [r.data["untriaged"] for r in requests] == [True]
    assert decisions(hive, "bypass") == 1


async def test_medium_ticket_waits_while_triage_fails(hive: Hive) -> None:
    """B46: low and medium wait, and are retried."""
    hive.queen_model = model = TalkingModel(failing)
    await hive.start()
    await hive.begin()
    await hive.bad_steps(11)
    await hive.pass_time(200)
    assert (await hive.ticket()).status is TicketStatus.OPEN
    assert len(model.shown) >= 3
    model.speak = RulesModel().complete

    await hive.pass_time(60)

    assert (await hive.ticket()).status is TicketStatus.INTERVENING
    assert decisions(hive, "bypass") == 0


async def test_hanging_queen_is_bypassed(hive: Hive) -> None:
    """B46: a ticket behind the one she hangs on as well."""

    async def hang(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> ModelReply:
        await asyncio.Event().wait()
        raise AssertionError

    hive.queen_model = TalkingModel(hang)
    await hive.start()
    for agent in ("a", "b"):
        await hive.worker(EventType.EXECUTION_STARTED, agent, start_records=True)
    await hive.pass_time(121)
    for agent in ("a", "b"):
        await hive.bad_steps(16, agent)
    await hive.pass_time(120)

    assert [t.untriaged for t in hive.tickets.open_tickets()] == [True, True]


async def test_model_cannot_dismiss_a_high_ticket_that_still_holds(hive: Hive) -> None:
    """B52: it goes to the operator, and what the model wanted is recorded."""
    model = deciding(DISMISS, reason="the worker says that it is fine")
    hive.queen_model = model
    await hive.start()
    await hive.begin()
    await hive.bad_steps(16)

    ticket = await hive.ticket()

    assert (ticket.status, ticket.triaged_by) == (TicketStatus.INTERVENING, "rules")
    assert "'the worker says that it is fine'" in ticket.analysis
    assert "high" in ticket.analysis
    assert decisions(hive, "dismiss") == 0


async def test_model_may_dismiss_a_medium_ticket(hive: Hive) -> None:
    """B48: kept, counted, and not triaged again until it worsens."""
    model = deciding(DISMISS, reason="it is only warming up")
    hive.queen_model = model
    await hive.start()
    await hive.begin()
    await hive.bad_steps(11)
    for _ in range(5):
        await hive.worker(EventType.STEP_COMPLETED, verdict="CONTINUE", text="thinking")
        await hive.tick()

    ticket = await hive.ticket()
    assert (ticket.status, ticket.triage_reason) == (TicketStatus.DISMISSED, "it is only warming up")
    assert decisions(hive, "dismiss") == 1
    assert len([m for m in model.shown if m[-1].role == "user"]) == 1

    await hive.bad_steps(5)
    assert (await hive.ticket()).severity is Severity.HIGH
    assert (await hive.ticket()).status is TicketStatus.INTERVENING
    assert len([m for m in model.shown if m[-1].role == "user"]) == 2


async def test_worker_recovered_before_triage_is_not_notified(hive: Hive) -> None:
    """B47: re-checked before the model is asked, and again before the operator is told."""
    gate = asyncio.Event()

    async def late(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> ModelReply:
        if messages[-1].role == "tool":
            return call("set_output", intervention_decision="done")
        await gate.wait()
        return call(
            NOTIFY, ticket_id=str(ticket_in(messages)["ticket_id"]), analysis=ANALYSIS, urgency="high"
        )

    hive.queen_model = TalkingModel(late)
    await hive.start()
    await hive.begin()
    await hive.bad_steps(16)
    await hive.worker(EventType.STEP_COMPLETED, verdict="ACCEPT", text="done")
    gate.set()
    await hive.settle()

    ticket = await hive.ticket()

    assert (ticket.status, ticket.triage_reason) == (TicketStatus.DISMISSED, policy.RECOVERED)
    assert hive.of(EventType.QUEEN_INTERVENTION_REQUESTED) == []
    assert hive.changes == []


async def test_untriaged_ticket_is_triaged_once_after_a_restart(hive: Hive) -> None:
    """B43: stored, then killed before anybody saw it."""
    hive.queen_model = TalkingModel(failing)
    await hive.start()
    await hive.begin()
    await hive.bad_steps(16)
    await hive.stop()
    hive.queen_model = RulesModel()
    await hive.start(keep_monitor=True)
    await hive.settle()

    assert (await hive.ticket()).status is TicketStatus.INTERVENING
    assert decisions(hive, "intervene") == 1
    assert len(hive.of(EventType.QUEEN_INTERVENTION_REQUESTED)) == 1


async def test_forgotten_worker_is_not_recovered_after_a_restart(hive: Hive) -> None:
    """B43: without vital signs the ticket's own numbers count."""
    hive.queen_model = TalkingModel(failing)
    await hive.start()
    await hive.begin()
    await hive.bad_steps(16)
    await hive.stop()
    hive.queen_model = RulesModel()
    await hive.start()
    await hive.settle()

    assert (await hive.ticket()).status is TicketStatus.INTERVENING


@pytest.mark.parametrize("tool", [NOTIFY, DISMISS])
async def test_deciding_on_an_unknown_or_closed_ticket_is_an_error(hive: Hive, tool: str) -> None:
    """B49: the model is told which; what it wrote is not sent, the rules' word is (B130)."""
    extra = {"analysis": ANALYSIS, "urgency": "high"} if tool == NOTIFY else {"reason": "because"}
    unknown = deciding(tool, ticket_id="no-such-ticket", **extra)
    hive.queen_model = unknown
    await hive.start()
    await hive.begin()
    await hive.bad_steps(16)
    assert "'no-such-ticket'" in unknown.shown[-1][-1].content
    assert [e.data["untriaged"] for e in hive.of(EventType.QUEEN_INTERVENTION_REQUESTED)] == [True]

    old = await hive.ticket()
    await hive.worker(EventType.EXECUTION_COMPLETED)
    await hive.update_tickets_of_worker()
    other = deciding(tool, ticket_id=old.ticket_id, **extra)
    unknown.speak = other.speak
    await hive.begin("other")
    await hive.bad_steps(16, "other")

    assert (await hive.tickets.find(old.ticket_id) or old).status is TicketStatus.WORKER_GONE
    assert "not about ticket" in unknown.shown[-1][-1].content
    assert [e.data["untriaged"] for e in hive.of(EventType.QUEEN_INTERVENTION_REQUESTED)] == [True, True]


async def test_decision_after_the_bypass_is_rejected(hive: Hive) -> None:
    """B49: one ticket, one decision."""
    gate = asyncio.Event()

    async def late(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> ModelReply:
        if messages[-1].role == "tool":
            return call("set_output", intervention_decision="done")
        await gate.wait()
        return call(DISMISS, ticket_id=str(ticket_in(messages)["ticket_id"]), reason="too late")

    model = TalkingModel(late)
    hive.queen_model = model
    await hive.start()
    await hive.begin()
    await hive.bad_steps(16)
    ticket = await hive.ticket()
    await hive.tickets.intervene(ticket.ticket_id, ANALYSIS, "high", by="rules", untriaged=True)
    gate.set()
    await hive.settle()

    assert "is intervening already" in model.shown[-1][-1].content
    assert (await hive.ticket()).analysis == ANALYSIS


async def test_the_urgency_is_never_below_the_severity(hive: Hive) -> None:
    hive.queen_model = deciding(NOTIFY, analysis=ANALYSIS, urgency="low")
    await hive.start()
    await hive.begin()
    await hive.bad_steps(20)

    assert (await hive.ticket()).urgency == "critical"


async def test_intervention_request_names_the_queens_graph_and_stream(hive: Hive) -> None:
    """B63: the event names the queen's graph and stream."""
    await hive.start()
    await hive.begin()
    await hive.bad_steps(16)

    [request] = hive.of(EventType.QUEEN_INTERVENTION_REQUESTED)

    assert request.data["queen_graph_id"] == "queen"
    assert request.data["queen_stream_id"] == "queen::ticket_receiver"
    assert json.dumps(dict(request.data))


@pytest.mark.parametrize("again", [False, True], ids=["it is well", "it goes on as before"])
async def test_restarted_worker_is_not_recovered_within_its_start_grace(hive: Hive, again: bool) -> None:
    """B47: in the start grace nothing is said of a worker, which is no sign that it is well."""
    gate, rules = asyncio.Event(), RulesModel()

    async def late(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> ModelReply:
        await gate.wait()
        return await rules.complete(messages, tools)

    hive.queen_model = TalkingModel(late)
    await hive.start()
    await hive.begin()
    await hive.bad_steps(21)
    event = AgentEvent(
        type=EventType.EXECUTION_STARTED,
        time=hive.time.now,
        agent_id=AGENT,
        session_id=SESSION,
        incarnation_id="life-2",
        node_id="researcher",
        data={"start_records": True},
    )
    hive.monitor.apply(event, hive.time.now)
    gate.set()
    await hive.pass_time(110)
    assert (await hive.ticket()).status is TicketStatus.OPEN
    if again:
        event.id, event.type, event.data = "n", EventType.STEP_COMPLETED, {"verdict": "RETRY", "text": "no"}
        for _ in range(21):
            hive.monitor.apply(event, hive.time.now)
    await hive.pass_time(11)
    await hive.look()
    await hive.pass_time(45)

    ticket = await hive.ticket()
    if again:
        assert ticket.status is TicketStatus.INTERVENING
    else:
        assert (ticket.status, ticket.triage_reason) == (TicketStatus.DISMISSED, policy.RECOVERED)
