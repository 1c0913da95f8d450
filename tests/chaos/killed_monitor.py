"""
Kill the monitor repeatedly, at any moment: ``python -m tests.chaos.killed_monitor --kills 1000``.

This module simulates workers that hang, loop, crash, finish and make progress on a simulated clock. Like any
client, it sends unacknowledged events again to the next process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import IO, Any

from sqlalchemy import Connection, select

from queenright.health.interventions.intervention import Intervention, InterventionOutcome, intervention_table
from queenright.health.recovery.recovery import Recovery
from queenright.health.recovery.table import recovery_table
from queenright.health.store.event_log import read_events
from queenright.health.store.store import Store
from queenright.health.store.tables import OUTBOX
from queenright.health.tickets.ticket import EscalationTicket, TicketStatus
from queenright.health.tickets.ticket_table import ticket_history
from queenright.runtime.events import EventType
from tests.databases import verify_log

WORKER_COUNT = 6
NUDGE_INTERVAL_SECONDS = 600.0
"""Seconds between two nudges of one worker, according to the settings."""


@dataclass
class SimulatedWorker:
    """A worker, whose ``state`` decides its next event."""

    agent: str
    number: int = 0
    incarnation: str = ""
    state: str = "new"
    nudges_since_progress: list[tuple[str, float]] = field(default_factory=list)
    """Nudges of this incarnation since its last progress, with their times."""

    @property
    def session(self) -> str:
        return f"{self.agent}-{self.number}"


@dataclass
class ActionLog:
    """Everything that the monitor acknowledged, and its forbidden actions as ``differences``."""

    events: set[str] = field(default_factory=set)
    tickets: set[str] = field(default_factory=set)
    notified_tickets: set[str] = field(default_factory=set)
    nudges: Counter[str] = field(default_factory=Counter)
    terminations: dict[str, tuple[str, ...]] = field(default_factory=dict)
    interventions: dict[str, str] = field(default_factory=dict)
    recoveries: set[str] = field(default_factory=set)
    kinds: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)


class SimulatedFleet:
    """The workers, their events, and the effects of the monitor's actions on them."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now = 1_700_000_000.0
        self.workers = {f"bee{n}": SimulatedWorker(f"bee{n}") for n in range(WORKER_COUNT)}
        self.log = ActionLog()
        self.batch: dict[str, Any] | None = None
        self._ids = 0
        self._batches = 0

    def next_batch(self) -> str:
        """Return the next batch as a line of JSON. It is the last batch again if that is not acknowledged."""
        if self.batch is None:
            self.now += self.random.choice((1.0, 30.0, 240.0, 300.0, 600.0, 900.0))
            events = [event for worker in self.workers.values() for event in self._next_events(worker)]
            self._batches += 1
            self.batch = {"n": self._batches, "now": self.now, "events": events}
        return json.dumps(self.batch) + "\n"

    def _next_events(self, worker: SimulatedWorker) -> list[dict[str, Any]]:
        roll = self.random.random()
        if worker.state in ("new", "finished"):
            worker.number += 1
            worker.incarnation = f"{worker.session}-first"
            worker.state, worker.nudges_since_progress = "healthy", []
            return [self._make_start_event(worker)]
        if worker.state == "respawned":
            worker.state = "healthy"
            return [self._make_start_event(worker), *self._make_step_events(worker)]
        if worker.state == "healthy":
            if roll < 0.25:
                worker.state = "hanging"
            elif roll < 0.35:
                worker.state = "looping"
            elif roll < 0.42:
                worker.state = "down"
                return [self._make_event(worker, EventType.EXECUTION_FAILED, error_type="OSError")]
            elif roll < 0.47:
                worker.state = "finished"
                return [self._make_event(worker, EventType.EXECUTION_COMPLETED)]
            return self._make_step_events(worker)
        if worker.state == "looping":
            call = {"tool": "t", "args_hash": "a", "result_hash": "b"}
            return [
                self._make_event(worker, EventType.TOOL_CALL_COMPLETED, **call, turn=f"{self._ids}")
                for _ in range(3)
            ]
        if worker.state == "down" and roll < 0.02:
            worker.state = "new"  # the worker's owner starts another task
        return []

    def _make_start_event(self, worker: SimulatedWorker) -> dict[str, Any]:
        # Every other task is repeatable. People handle the failures of the others.
        fields = {"start_records": True, "repeatable": worker.number % 2 == 0}
        return self._make_event(worker, EventType.EXECUTION_STARTED, **fields)

    def _make_step_events(self, worker: SimulatedWorker) -> list[dict[str, Any]]:
        worker.nudges_since_progress = []
        return [self._make_event(worker, EventType.STEP_COMPLETED, verdict="ACCEPT")]

    def _make_event(self, worker: SimulatedWorker, type_: EventType, **data: Any) -> dict[str, Any]:
        self._ids += 1
        return {
            "id": f"w{self._ids}",
            "type": type_.value,
            "time": self.now,
            "agent_id": worker.agent,
            "session_id": worker.session,
            "incarnation_id": worker.incarnation,
            "node_id": "n",
            "data": data,
        }

    def record_line(self, line: str) -> str:
        """Record a line that the monitor wrote, and return its first word."""
        word, *arguments = line.split()
        log = self.log
        log.kinds[word] += 1
        if word == "published":
            self._record_event(*arguments)
        elif word == "ticket":
            log.tickets.add(arguments[0])
        elif word == "notified":
            log.notified_tickets.add(arguments[0])
        elif word == "nudge":
            self._record_nudge(*arguments)
        elif word == "terminate":
            self._record_termination(*arguments)
        elif word == "respawn":
            self._record_respawn(*arguments)
        elif word == "done" and self.batch is not None and int(arguments[0]) == self.batch["n"]:
            self.batch = None
        return word

    def _record_event(self, event_id: str, type_: str, agent: str, *details: str) -> None:
        self.log.events.add(event_id)
        self.log.kinds[type_] += 1
        if type_ == EventType.INTERVENTION_RECORDED.value:
            intervention_id, kind, outcome, _ = details
            self.log.interventions[intervention_id] = outcome
            self.log.kinds[f"{kind} {outcome}"] += 1
        elif details and details[3] != "-":
            self.log.recoveries.add(details[3])

    def _is_current(self, worker: SimulatedWorker, session: str, incarnation: str) -> bool:
        return (worker.session, worker.incarnation) == (session, incarnation)

    def _record_nudge(self, nudge_id: str, agent: str, session: str, incarnation: str) -> None:
        worker, log = self.workers[agent], self.log
        log.nudges[nudge_id] += 1
        if not self._is_current(worker, session, incarnation):
            log.differences.append(
                f"nudge {nudge_id} for {session}/{incarnation}, {agent} is {worker.incarnation}"
            )
            return
        for other, at in worker.nudges_since_progress:
            if self.now - at < NUDGE_INTERVAL_SECONDS:
                log.differences.append(f"{agent} was nudged twice within an interval: {other}, {nudge_id}")
        worker.nudges_since_progress.append((nudge_id, self.now))
        if worker.state in ("hanging", "looping") and self.random.random() < 0.15:
            worker.state = "healthy"

    def _record_termination(self, intervention_id: str, agent: str, session: str, incarnation: str) -> None:
        worker, log = self.workers[agent], self.log
        log.terminations[intervention_id] = (agent, session, incarnation)
        if not self._is_current(worker, session, incarnation):
            log.differences.append(f"{session}/{incarnation} was terminated, {agent} is {worker.incarnation}")
            return
        worker.state = "down"

    def _record_respawn(
        self, attempt: str, agent: str, session: str, old: str, incarnation: str, checkpoint: str
    ) -> None:
        worker, log = self.workers[agent], self.log
        if worker.session != session:
            return  # the worker's owner has started another task
        if worker.state == "finished" or checkpoint != "c1":
            log.differences.append(f"{session} was recovered from {checkpoint}, it is {worker.state}")
        worker.incarnation, worker.state, worker.nudges_since_progress = incarnation, "respawned", []


class KilledMonitor:
    """The monitor process that is killed, and its parent process."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder / 'monitor.db'}"
        self._pipes = folder / "in", folder / "out"
        for pipe in self._pipes:
            os.mkfifo(pipe)
        self._parent = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.monitor_process", self.url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )

    def run_process(self, fleet: SimulatedFleet, random: Random, *, kill: bool = True) -> bool:
        """Let a process work, kill it at any moment, and return whether the kill ended it."""
        parent = self._parent
        assert parent.stdin is not None
        assert parent.stdout is not None
        print(*self._pipes, file=parent.stdin, flush=True)
        pid = int(parent.stdout.readline().split()[1])
        with (
            self._pipes[0].open("w", encoding="utf-8") as batch_pipe,
            self._pipes[1].open(encoding="utf-8") as line_pipe,
        ):
            lines = random.randrange(1, 1 + random.choice((1, 3, 10, 30, 100, 200))) if kill else None
            self._send_batches(fleet, batch_pipe, line_pipe, pid, lines, random)
            if not kill:
                batch_pipe.close()
            for line in line_pipe:
                if line.endswith("\n"):
                    fleet.record_line(line)
        return parent.stdout.readline().split() == ["exited", str(int(signal.SIGKILL))]

    def _send_batches(
        self,
        fleet: SimulatedFleet,
        batch_pipe: IO[str],
        line_pipe: IO[str],
        pid: int,
        lines: int | None,
        random: Random,
    ) -> None:
        """Send batches until ``lines`` lines have arrived, then kill the monitor; if None, send 5 batches."""
        batches = count = 0
        batch_pipe.write(fleet.next_batch())
        batch_pipe.flush()
        while line := line_pipe.readline():
            count += 1
            if fleet.record_line(line) == "done":
                batches += 1
                if lines is None and batches == 5:
                    return
                batch_pipe.write(fleet.next_batch())
                batch_pipe.flush()
            if count == lines:
                time.sleep(random.random() * 0.004)
                os.kill(pid, signal.SIGKILL)
                return

    def close(self) -> None:
        """End the parent process."""
        self._parent.communicate(timeout=30)


def kill_repeatedly(folder: Path, *, kills: int, seed: int, seconds: float | None = None) -> dict[str, Any]:
    """
    Kill the monitor ``kills`` times, let the last process end normally, and return counts and differences.

    Args:
        folder: The folder of the monitor's database.
        kills: The number of kills.
        seed: The seed of the workers and of the times of kills.
        seconds: The time limit for kills; None for no limit.
    """
    fleet, random, monitor = SimulatedFleet(seed), Random(seed + 1), KilledMonitor(folder)
    started_at, kill_count = time.monotonic(), 0
    for _ in range(kills):
        kill_count += monitor.run_process(fleet, random)
        if seconds is not None and time.monotonic() - started_at > seconds:
            break
    monitor.run_process(fleet, random, kill=False)
    monitor.close()
    differences = [*fleet.log.differences, *asyncio.run(compare(monitor.url, fleet.log))]
    return {
        "kills": kill_count,
        "seed": seed,
        "seconds": round(time.monotonic() - started_at, 1),
        "simulated_days": round((fleet.now - 1_700_000_000.0) / 86_400, 1),
        "events": len(fleet.log.events),
        "tickets": len(fleet.log.tickets),
        "notifications": len(fleet.log.notified_tickets),
        "interventions": len(fleet.log.interventions),
        "recoveries": len(fleet.log.recoveries),
        "lines": dict(sorted(fleet.log.kinds.items())),
        "differences": differences,
    }


@dataclass
class StoredDecisions:
    """The contents of the database."""

    events: list[str]
    tickets: dict[str, EscalationTicket]
    outbox: list[tuple[str, str, str, bool]]
    """Ticket, key and severity of the alert, and whether it fires."""
    interventions: dict[str, Intervention]
    recoveries: list[Recovery]


def _read_decisions(conn: Connection) -> StoredDecisions:
    columns = (OUTBOX.c.ticket_id, OUTBOX.c.alert_key, OUTBOX.c.labels, OUTBOX.c.ends_at)
    rows = conn.execute(select(*columns)).all()
    return StoredDecisions(
        [event.id for _, event in read_events(conn, limit=10_000_000)],
        {ticket.ticket_id: ticket for ticket in ticket_history(conn, limit=1_000_000)},
        [(row.ticket_id, row.alert_key, row.labels["severity"], row.ends_at is None) for row in rows],
        {
            intervention.intervention_id: intervention
            for intervention in intervention_table.newest(conn, 1_000_000)
        },
        recovery_table.newest(conn, 1_000_000),
    )


async def compare(url: str, log: ActionLog) -> list[str]:
    """Compare acknowledged and executed decisions with the store, and describe each difference."""
    verification = verify_log(url)
    store = Store.open(url, read_only=True)
    stored = await store.read(_read_decisions)
    await store.close()
    differences = [] if verification.ok else [f"the log does not verify: {verification.reason}"]

    def find_lost(kind: str, acknowledged: set[str], stored_ids: set[str]) -> None:
        differences.extend(
            f"{kind} {id_} was acknowledged and is lost" for id_ in sorted(acknowledged - stored_ids)
        )

    find_lost("event", log.events, set(stored.events))
    find_lost("ticket", log.tickets, set(stored.tickets))
    find_lost("notification of ticket", log.notified_tickets, {ticket_id for ticket_id, *_ in stored.outbox})
    find_lost("intervention", set(log.interventions), set(stored.interventions))
    find_lost("recovery", log.recoveries, {recovery.recovery_id for recovery in stored.recoveries})
    find_lost("nudge", set(log.nudges), set(stored.interventions))
    find_lost("termination", set(log.terminations), set(stored.interventions))
    for intervention_id, outcome in log.interventions.items():
        intervention = stored.interventions.get(intervention_id)
        if intervention is not None and intervention.outcome.value != outcome:
            differences.append(
                f"intervention {intervention_id} was reported as {outcome}, "
                f"and is {intervention.outcome.value}"
            )
    for intervention_id, target in log.terminations.items():
        intervention = stored.interventions.get(intervention_id)
        if (
            intervention is not None
            and (intervention.agent_id, intervention.session_id, intervention.incarnation_id) != target
        ):
            differences.append(
                f"termination {intervention_id} of {target} is stored for {intervention.target}"
            )
    differences.extend(
        f"nudge {nudge_id} was delivered {n} times" for nudge_id, n in log.nudges.items() if n > 1
    )
    differences.extend(_find_duplicates(stored))
    return differences


def _find_duplicates(stored: StoredDecisions) -> list[str]:
    """Describe each decision that is stored under two identities, or was lost."""
    differences = [
        f"event {event_id} is stored {n} times" for event_id, n in Counter(stored.events).items() if n > 1
    ]
    live = Counter(ticket.fingerprint for ticket in stored.tickets.values() if ticket.is_live)
    differences += [
        f"{n} live tickets have the fingerprint {fingerprint}" for fingerprint, n in live.items() if n > 1
    ]
    # A ticket never has two alerts.
    active = Counter(ticket_id for ticket_id, _, _, is_on in stored.outbox if is_on)
    differences += [f"ticket {ticket_id} has {n} notifications" for ticket_id, n in active.items() if n > 1]
    # A ticket whose severity rises is sent again with the new severity, and a reminder with its count.
    requests = {ticket.ticket_id: ticket.requests for ticket in stored.tickets.values()}
    keys = {(ticket_id, severity, key) for ticket_id, key, severity, _ in stored.outbox}
    names = Counter((ticket_id, severity) for ticket_id, severity, _ in keys)
    differences += [
        f"ticket {ticket_id} with severity {severity} was sent under {n} identities"
        for (ticket_id, severity), n in names.items()
        if n > 1 + requests[ticket_id]
    ]
    notified_ids = {ticket_id for ticket_id, *_ in stored.outbox}
    differences += [
        f"ticket {ticket.ticket_id} is {ticket.status.value} and its notification is lost"
        for ticket in stored.tickets.values()
        if ticket.status is TicketStatus.INTERVENING and ticket.ticket_id not in notified_ids
    ]
    differences += [
        f"intervention {intervention.intervention_id} has not ended"
        for intervention in stored.interventions.values()
        if intervention.outcome is InterventionOutcome.STARTED
    ]
    attempts: dict[tuple[str, int], set[str]] = defaultdict(set)
    for recovery in stored.recoveries:
        if recovery.started_at is not None:
            attempts[recovery.task_id, recovery.attempt].add(recovery.recovery_id)
    return differences + [
        f"attempt {key} was started as {sorted(ids)}" for key, ids in attempts.items() if len(ids) > 1
    ]


def main() -> int:
    """Run the command, print the result, and return 1 if there is a difference."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.killed_monitor", description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = kill_repeatedly(Path(folder), kills=args.kills, seed=args.seed)
    print(json.dumps(result, indent=2))
    return 1 if result["differences"] else 0


if __name__ == "__main__":
    sys.exit(main())
