"""
B131: when many agents are in trouble at once, tickets are written and passed on in batches, not one per model
turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from sqlalchemy import Connection

from queenright.health import ticket_service
from queenright.health.interventions.storm import StormWatch
from queenright.health.settings import StormSettings
from queenright.health.tickets.ticket import TicketStatus
from queenright.health.tickets.ticket_reports import Report, prepare_report
from queenright.health.tickets.ticket_table import write_ticket
from queenright.judge.settings import RULES
from queenright.runtime.events import EventType
from queenright.runtime.llm.model import Message, ModelReply, ToolSpec
from tests.alerting.parts import make_ticket
from tests.judge.conftest import JudgedFleet, TalkingModel

CROWD = 200


class TransactionCounter:
    """Counts the transactions of the store."""

    def __init__(self, fleet: JudgedFleet, monkeypatch: pytest.MonkeyPatch) -> None:
        self.transactions = 0
        transact = fleet.store.transact

        async def count_and_run(work: Callable[..., Any]) -> Any:
            self.transactions += 1
            return await transact(work)

        monkeypatch.setattr(fleet.store, "transact", count_and_run)


async def let_workers_loop(
    fleet: JudgedFleet, count: int, steps: int = 21, *, before_settling: Callable[[], None] = lambda: None
) -> None:
    """Let many workers loop after their start grace, call ``before_settling``, and wait until all is idle."""
    agents = [f"agent-{number:03}" for number in range(count)]
    for agent in agents:
        await fleet.report_event(EventType.EXECUTION_STARTED, agent, start_records=True)
    await fleet.pass_time(121)
    for agent in agents:
        for _ in range(steps):
            await fleet.report_event(EventType.STEP_COMPLETED, agent, verdict="RETRY", text="same error")
    before_settling()
    await fleet.settle()
    async with asyncio.timeout(60):
        while len(fleet.tickets.open_tickets()) < count:
            await fleet.settle()
    await fleet.settle()


async def test_crowd_gets_tickets_and_triage_in_few_transactions(
    fleet: JudgedFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B131: a ticket needs no separate transaction and no separate graph visit."""
    await fleet.start()
    counter = TransactionCounter(fleet, monkeypatch)

    await let_workers_loop(fleet, CROWD)

    tickets = fleet.tickets.open_tickets()
    assert {ticket.status for ticket in tickets} == {TicketStatus.INTERVENING}
    # A ticket passed on before its worker had finished has risen since, and the rules wrote the update.
    assert {(ticket.triaged_by, ticket.untriaged) for ticket in tickets} <= {
        ("queen", False),
        ("rules", False),
    }
    # The first few are written one by one; then 50 at a time, once by the judge and once by the queen.
    assert counter.transactions < CROWD
    assert fleet.get_metric("queenright_triage_total", decision="intervene") >= CROWD
    assert fleet.get_metric("queenright_judge_checks_total", outcome="ticket") >= CROWD


async def test_crowd_does_not_wait_for_models(fleet: JudgedFleet) -> None:
    """B131: the rules write and pass on binding tickets; the models are called for only a few of them."""

    all_in_trouble = asyncio.Event()

    async def answer_when_all_are_in_trouble(
        messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> ModelReply:
        # Otherwise the model might finish one worker before the next one is in trouble.
        await all_in_trouble.wait()
        return ModelReply(text="All is well.")

    fleet.judge_model, fleet.queen_model = judges, queens = (
        TalkingModel(answer_when_all_are_in_trouble),
        TalkingModel(answer_when_all_are_in_trouble),
    )
    await fleet.start()

    await let_workers_loop(fleet, CROWD, before_settling=all_in_trouble.set)

    tickets = fleet.tickets.open_tickets()
    assert {ticket.status for ticket in tickets} == {TicketStatus.INTERVENING}
    assert sum("too many at once" in ticket.judge_reasoning for ticket in tickets) > CROWD / 2
    assert all(ticket.judge_model == RULES for ticket in tickets)
    assert len(judges.conversations) + len(queens.conversations) < CROWD / 2


async def test_crowd_of_medium_findings_is_left_to_the_model(fleet: JudgedFleet) -> None:
    """B131: even in a crowd, the model decides where the rules do not bind."""
    fleet.judge_model = model = TalkingModel(lambda messages, tools: ModelReply(text="All is well."))
    await fleet.start()
    agents = [f"agent-{number:03}" for number in range(30)]
    for agent in agents:
        await fleet.report_event(EventType.EXECUTION_STARTED, agent, start_records=True)
    await fleet.pass_time(121)
    for agent in agents:
        for _ in range(11):
            await fleet.report_event(EventType.STEP_COMPLETED, agent, verdict="RETRY", text="same error")

    await fleet.tick()

    assert fleet.tickets.open_tickets() == []
    assert len(model.conversations) >= 30


def test_worker_belongs_to_its_storm_after_the_storm_ends() -> None:
    """B131: tickets that are written after the storm has ended are in its group."""
    ids = iter(["storm-1", "storm-2"])
    storm_watch = StormWatch(StormSettings(workers=3), ids=lambda: next(ids))
    for number in range(4):
        storm_watch.record_worse((f"agent-{number}", "s"), 100.0)

    assert storm_watch.storm(1000.0) == ""
    assert [storm_watch.storm_of((f"agent-{number}", "s")) for number in range(5)] == ["storm-1"] * 4 + [""]


def test_worker_that_degrades_alone_later_is_in_no_storm() -> None:
    storm_watch = StormWatch(StormSettings(workers=3), ids=lambda: "storm-1")
    for number in range(3):
        storm_watch.record_worse((f"agent-{number}", "s"), 100.0)

    storm_watch.record_worse(("agent-0", "s"), 1000.0)

    assert storm_watch.storm_of(("agent-0", "s")) == ""


async def test_waiting_tickets_share_one_timer(fleet: JudgedFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """B131: tickets that wait for triage need no separate tasks, and few transactions when they time out."""
    triage_started = asyncio.Event()

    async def never_answer(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> ModelReply:
        triage_started.set()
        await asyncio.Event().wait()
        return ModelReply(text="")

    fleet.queen_model = TalkingModel(never_answer)
    await fleet.start()
    await let_workers_loop(fleet, 1)
    await asyncio.wait_for(triage_started.wait(), 60)

    await let_workers_loop(fleet, CROWD)
    timers = [task for task in asyncio.all_tasks() if task.get_name().startswith("triage-bypass")]
    counter = TransactionCounter(fleet, monkeypatch)
    await fleet.pass_time(fleet.settings.judge.triage_timeout_seconds)

    assert len(timers) == 1
    assert {ticket.status for ticket in fleet.tickets.open_tickets()} == {TicketStatus.INTERVENING}
    assert fleet.get_metric("queenright_triage_total", decision="bypass") == CROWD
    assert counter.transactions < CROWD / 4


async def test_restart_in_crowd_triages_every_ticket(fleet: JudgedFleet) -> None:
    """B131: more tickets may be left than the usual limit of waiting runs of an entry point."""
    count = 1_100

    def insert_all(conn: Connection) -> None:
        for number in range(count):
            suffix = f"{number:04}"
            write_ticket(
                conn,
                make_ticket(
                    ticket_id=suffix,
                    fingerprint=suffix,
                    agent_id=f"agent-{suffix}",
                    status=TicketStatus.OPEN,
                    analysis="",
                ),
            )

    await fleet.start()
    await fleet.store.transact(insert_all)
    await fleet.stop()
    await fleet.start()
    await fleet.settle()

    assert len(fleet.tickets.open_tickets()) == count
    assert {ticket.status for ticket in fleet.tickets.open_tickets()} == {TicketStatus.INTERVENING}


async def test_new_findings_are_judged_before_earlier_ones(
    fleet: JudgedFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B131: new tickets do not wait for repeated ones."""
    await fleet.start()
    await let_workers_loop(fleet, 30)
    reported_agents: list[str] = []

    def record_report(report: Report, *args: Any) -> Any:
        reported_agents.append(report.health.vitals.agent_id)
        return prepare_report(report, *args)

    monkeypatch.setattr(ticket_service, "prepare_report", record_report)
    await fleet.report_event(EventType.EXECUTION_STARTED, "new", start_records=True)
    # No timer fires, so one check handles the new finding and the overdue ones.
    fleet.time.now += 10 * fleet.settings.judge.interval_seconds
    for _ in range(21):
        await fleet.report_event(EventType.STEP_COMPLETED, "new", verdict="RETRY", text="same error")
    await fleet.settle()

    assert len(set(reported_agents)) == 31
    assert reported_agents.index("new") == 0
