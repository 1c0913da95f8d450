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

COLONY = """
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

def worker(session):
    found = Finding(kind=FindingKind.DOOM_LOOP, severity=Severity.HIGH, evidence="e", since=1.0)
    return WorkerHealth(VitalSigns("bee", session, 1.0), (found,), HealthState.STUCK, 1.0, "")

def service(store, publish):
    return TicketService(store, settings=HealthSettings(), clock=time.time, publish=publish)

DRAFT = TicketDraft(
    severity=Severity.HIGH, cause="c", judge_reasoning="r", suggested_action="a", evidence_snippet="e"
)

def acknowledged(what, which):
    os.write(1, f"{what} {which}\\n".encode())
"""

WORKS_UNTIL_KILLED = (
    COLONY
    + """
async def appends(store, name):
    for number in itertools.count():
        fields = dict(type=EventType.STEP_COMPLETED, time=time.time(), agent_id=name)
        events = [AgentEvent(**fields) for _ in range(number % 5 + 1)]
        await store.append(events)
        for event in events:
            acknowledged("event", event.id)

async def tickets(store):
    keeper = service(store, lambda *events: None)
    await keeper.load()
    for number in itertools.count():
        raised = await keeper.raise_ticket(worker(f"s{number % 7}"), DRAFT)
        acknowledged("counted", f"{raised.ticket.ticket_id} {raised.ticket.occurrences}")
        if raised.ticket.status == "open" and number % 2:
            ticket = await keeper.intervene(raised.ticket.ticket_id, "a", "high")
            acknowledged("intervened", ticket.ticket_id)

async def main():
    store = Store.open(sys.argv[1])
    acknowledged("ready", os.getpid())
    await asyncio.gather(tickets(store), *(appends(store, f"worker-{n}") for n in range(3)))

# One process imports everything; each line it reads is one more life of a child that is going to be killed.
for line in sys.stdin:
    if (child := os.fork()) == 0:
        asyncio.run(main())
    status = os.waitpid(child, 0)[1]
    acknowledged("dead", os.WTERMSIG(status))
"""
)

DIES_BEFORE_PUBLISHING = (
    COLONY
    + """
async def main():
    keeper = service(Store.open(sys.argv[1]), lambda *events: os.kill(os.getpid(), signal.SIGKILL))
    await keeper.raise_ticket(worker("s1"), DRAFT)

asyncio.run(main())
"""
)


def everything(conn: Connection) -> list[tuple[int, AgentEvent]]:
    return read_events(conn, limit=1_000_000)


def start(program: str, url: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


async def load(url: str) -> tuple[list[EscalationTicket], list[AgentEvent]]:
    store = Store.open(url)
    service = TicketService(store, settings=HealthSettings(), clock=lambda: 0.0, publish=lambda *_: None)
    waiting = await service.load()
    logged = [event for _, event in await store.read(everything)]
    await store.close()
    return waiting, logged


async def test_ticket_of_a_killed_process_is_notified_after_the_restart(
    database_url: str,
) -> None:
    """
    B43: a process is killed after it stores a ticket and before it publishes it. The restart publishes it
    once.
    """
    child = start(DIES_BEFORE_PUBLISHING, database_url)
    child.communicate(timeout=30)
    assert child.returncode == -signal.SIGKILL

    [waiting], logged = await load(database_url)

    [event] = logged
    assert event.type is EventType.WORKER_ESCALATION_TICKET
    assert event.data["ticket"]["ticket_id"] == waiting.ticket_id
    [again], logged = await load(database_url)
    assert again == waiting
    assert len(logged) == 1


async def test_acknowledged_data_survives_a_kill(database_url: str) -> None:
    """B77: ``kill -9`` at any time loses no event or ticket, and stores none twice."""
    chance = random.Random(77)
    acknowledged: dict[str, set[str]] = {
        "ready": set(),
        "event": set(),
        "counted": set(),
        "intervened": set(),
    }

    mother = start(WORKS_UNTIL_KILLED, database_url)
    for _ in range(ROUNDS):
        for what, which in one_life(mother, chance.randrange(1, 400)):
            acknowledged[what].add(which)
        verification = verify_log(database_url)
        assert verification.ok, verification.reason

    mother.communicate(timeout=30)
    waiting, logged = await load(database_url)
    store = Store.open(database_url)
    tickets = {ticket.ticket_id: ticket for ticket in await store.read(all_tickets)}
    await store.close()
    assert acknowledged["event"] <= {event.id for event in logged}
    assert len({event.id for event in logged}) == len(logged)
    for which in acknowledged["counted"]:
        ticket_id, occurrences = which.split()
        assert tickets[ticket_id].occurrences >= int(occurrences)
    assert all(
        tickets[ticket_id].status is TicketStatus.INTERVENING for ticket_id in acknowledged["intervened"]
    )
    assert len({ticket.fingerprint for ticket in tickets.values()}) == len(tickets) == 7
    opened = [e for e in logged if e.type is EventType.WORKER_ESCALATION_TICKET]
    assert sorted(e.data["ticket"]["ticket_id"] for e in opened) == sorted(tickets)
    notified_ids = {e.data["ticket_id"] for e in logged if e.type is EventType.QUEEN_INTERVENTION_REQUESTED}
    assert notified_ids == {t.ticket_id for t in tickets.values() if t.status is TicketStatus.INTERVENING}
    assert {ticket.ticket_id for ticket in waiting} == tickets.keys() - notified_ids
    assert len(acknowledged["event"]) > 100
    assert acknowledged["counted"]


def one_life(mother: subprocess.Popen[str], lines: int) -> list[tuple[str, str]]:
    """Run a child until it has acknowledged ``lines`` lines, kill it, and return what it acknowledged."""
    assert mother.stdin is not None
    assert mother.stdout is not None
    print(file=mother.stdin, flush=True)
    output = [next_line(mother.stdout)]
    while output[-1][0] != "dead":
        if len(output) == lines:
            os.kill(int(output[0][1]), signal.SIGKILL)
        output.append(next_line(mother.stdout))
    assert output.pop() == ("dead", str(int(signal.SIGKILL)))
    return output


def next_line(stream: IO[str]) -> tuple[str, str]:
    what, which = stream.readline().strip().split(" ", 1)
    return what, which


def all_tickets(conn: Connection) -> list[EscalationTicket]:
    return ticket_history(conn, limit=1000)
