"""Data that survives ``kill -9``, tested with real processes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from typing import IO

from sqlalchemy import Connection

from queenright.health.settings import HealthSettings
from queenright.health.store.event_log import read_events
from queenright.health.store.store import Store
from queenright.health.ticket_service import TicketService
from queenright.health.tickets.ticket import EscalationTicket, TicketStatus
from queenright.health.tickets.ticket_table import ticket_history
from queenright.runtime.events import AgentEvent, EventType
from tests.databases import verify_log

ROUNDS = 15

COMMON_SOURCE = """
import asyncio, itertools, os, signal, sys, time
from queenright.health.findings import Finding, FindingKind, Severity
from queenright.health.detection.health_state import HealthState
from queenright.health.monitoring.monitor import WorkerHealth
from queenright.health.settings import HealthSettings, LoopSettings
from queenright.health.store.store import Store
from queenright.health.ticket_service import TicketService
from queenright.health.tickets.ticket import TicketDraft
from queenright.health.vitals.vital_signs import VitalSigns
from queenright.instrumentation.identity import new_id
from queenright.runtime.events import AgentEvent, EventType

def make_worker(session):
    finding = Finding(kind=FindingKind.DOOM_LOOP, severity=Severity.HIGH, evidence="e", since=1.0)
    return WorkerHealth(VitalSigns("bee", session, 1.0), (finding,), HealthState.STUCK, 1.0, "")

def make_service(store, publish):
    return TicketService(store, settings=HealthSettings(), clock=time.time, publish=publish)

DRAFT = TicketDraft(
    severity=Severity.HIGH, cause="c", judge_reasoning="r", suggested_action="a", evidence_snippet="e"
)

def acknowledge(kind, value):
    os.write(1, f"{kind} {value}\\n".encode())
"""

WORKS_UNTIL_KILLED = (
    COMMON_SOURCE
    + """
async def append_events(store, name):
    for number in itertools.count():
        fields = dict(type=EventType.STEP_COMPLETED, time=time.time(), agent_id=name)
        events = [AgentEvent(**fields) for _ in range(number % 5 + 1)]
        await store.append(events)
        for event in events:
            acknowledge("event", event.id)

async def write_tickets(store):
    ticket_service = make_service(store, lambda *events: None)
    await ticket_service.load()
    for number in itertools.count():
        report = await ticket_service.raise_ticket(make_worker(f"s{number % 7}"), DRAFT)
        acknowledge("counted", f"{report.ticket.ticket_id} {report.ticket.occurrences}")
        if report.ticket.status == "open" and number % 2:
            ticket = await ticket_service.intervene(report.ticket.ticket_id, "a", "high")
            acknowledge("intervened", ticket.ticket_id)

async def main():
    store = Store.open(sys.argv[1])
    acknowledge("ready", os.getpid())
    await asyncio.gather(write_tickets(store), *(append_events(store, f"worker-{n}") for n in range(3)))

# One process does the slow imports, and forks a child, to be killed, for each line that it reads.
for line in sys.stdin:
    if (child := os.fork()) == 0:
        asyncio.run(main())
    status = os.waitpid(child, 0)[1]
    acknowledge("dead", os.WTERMSIG(status))
"""
)

DIES_BEFORE_PUBLISHING = (
    COMMON_SOURCE
    + """
async def main():
    store = Store.open(sys.argv[1])
    ticket_service = make_service(store, lambda *events: os.kill(os.getpid(), signal.SIGKILL))
    await ticket_service.raise_ticket(make_worker("s1"), DRAFT)

asyncio.run(main())
"""
)


def read_all_events(conn: Connection) -> list[tuple[int, AgentEvent]]:
    return read_events(conn, limit=1_000_000)


def start_process(program: str, url: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


async def load_database(url: str) -> tuple[list[EscalationTicket], list[AgentEvent]]:
    store = Store.open(url)
    service = TicketService(store, settings=HealthSettings(), clock=lambda: 0.0, publish=lambda *_: None)
    untriaged_tickets = await service.load()
    events = [event for _, event in await store.read(read_all_events)]
    await store.close()
    return untriaged_tickets, events


async def test_ticket_of_a_killed_process_is_notified_after_the_restart(
    database_url: str,
) -> None:
    """
    B43: a process is killed after it stores a ticket and before it publishes it. The restart publishes it
    once.
    """
    child = start_process(DIES_BEFORE_PUBLISHING, database_url)
    child.communicate(timeout=30)
    assert child.returncode == -signal.SIGKILL

    [untriaged_ticket], events = await load_database(database_url)

    [event] = events
    assert event.type is EventType.WORKER_ESCALATION_TICKET
    assert event.data["ticket"]["ticket_id"] == untriaged_ticket.ticket_id
    [reloaded_ticket], events = await load_database(database_url)
    assert reloaded_ticket == untriaged_ticket
    assert len(events) == 1


async def test_acknowledged_data_survives_a_kill(database_url: str) -> None:
    """B77: ``kill -9`` at any time loses no event or ticket, and stores none twice."""
    generator = random.Random(77)
    acknowledged_values: dict[str, set[str]] = {
        "ready": set(),
        "event": set(),
        "counted": set(),
        "intervened": set(),
    }

    launcher = start_process(WORKS_UNTIL_KILLED, database_url)
    for _ in range(ROUNDS):
        for kind, value in run_until_killed(launcher, generator.randrange(1, 400)):
            acknowledged_values[kind].add(value)
        verification = verify_log(database_url)
        assert verification.ok, verification.reason

    launcher.communicate(timeout=30)
    untriaged_tickets, events = await load_database(database_url)
    store = Store.open(database_url)
    tickets = {ticket.ticket_id: ticket for ticket in await store.read(list_all_tickets)}
    await store.close()
    assert acknowledged_values["event"] <= {event.id for event in events}
    assert len({event.id for event in events}) == len(events)
    for value in acknowledged_values["counted"]:
        ticket_id, occurrences = value.split()
        assert tickets[ticket_id].occurrences >= int(occurrences)
    assert all(
        tickets[ticket_id].status is TicketStatus.INTERVENING
        for ticket_id in acknowledged_values["intervened"]
    )
    assert len({ticket.fingerprint for ticket in tickets.values()}) == len(tickets) == 7
    ticket_events = [event for event in events if event.type is EventType.WORKER_ESCALATION_TICKET]
    assert sorted(event.data["ticket"]["ticket_id"] for event in ticket_events) == sorted(tickets)
    notified_ids = {
        event.data["ticket_id"] for event in events if event.type is EventType.QUEEN_INTERVENTION_REQUESTED
    }
    assert notified_ids == {
        ticket.ticket_id for ticket in tickets.values() if ticket.status is TicketStatus.INTERVENING
    }
    assert {ticket.ticket_id for ticket in untriaged_tickets} == tickets.keys() - notified_ids
    assert len(acknowledged_values["event"]) > 100
    assert acknowledged_values["counted"]


def run_until_killed(launcher: subprocess.Popen[str], lines: int) -> list[tuple[str, str]]:
    """Run a child until it has acknowledged ``lines`` lines, kill it, and return what it acknowledged."""
    assert launcher.stdin is not None
    assert launcher.stdout is not None
    print(file=launcher.stdin, flush=True)
    output = [read_line(launcher.stdout)]
    while output[-1][0] != "dead":
        if len(output) == lines:
            os.kill(int(output[0][1]), signal.SIGKILL)
        output.append(read_line(launcher.stdout))
    assert output.pop() == ("dead", str(int(signal.SIGKILL)))
    return output


def read_line(stream: IO[str]) -> tuple[str, str]:
    kind, value = stream.readline().strip().split(" ", 1)
    return kind, value


def list_all_tickets(conn: Connection) -> list[EscalationTicket]:
    return ticket_history(conn, limit=1000)
