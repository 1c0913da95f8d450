"""
Kill the monitor at any moment, repeatedly: ``python -m tests.chaos.killed_monitor --kills 1000``.

This module simulates the workers, which hang, loop, crash, finish and progress on their own clock. Like any
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

WORKERS = 6
INTERVAL = 600.0
"""Seconds between two nudges of one worker, according to the settings."""


@dataclass
class SimulatedWorker:
    """A worker; ``mood`` decides its next event."""

    agent: str
    number: int = 0
    incarnation: str = ""
    mood: str = "new"
    nudged: list[tuple[str, float]] = field(default_factory=list)
    """Nudges of this incarnation since its last progress, with their times."""

    @property
    def session(self) -> str:
        return f"{self.agent}-{self.number}"


@dataclass
class ActionLog:
    """Everything that was acknowledged, and all forbidden actions."""

    events: set[str] = field(default_factory=set)
    tickets: set[str] = field(default_factory=set)
    told: set[str] = field(default_factory=set)
    nudges: Counter[str] = field(default_factory=Counter)
    ended: dict[str, tuple[str, ...]] = field(default_factory=dict)
    interventions: dict[str, str] = field(default_factory=dict)
    recoveries: set[str] = field(default_factory=set)
    kinds: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


class World:
    """The workers, and the actions of the monitor on them."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now = 1_700_000_000.0
        self.bees = {f"bee{n}": SimulatedWorker(f"bee{n}") for n in range(WORKERS)}
        self.heard = ActionLog()
        self.batch: dict[str, Any] | None = None
        self._ids = 0
        self._batches = 0

    def next_batch(self) -> str:
        """Return the next batch: unacknowledged events first, then new ones."""
        if self.batch is None:
            self.now += self.random.choice((1.0, 30.0, 240.0, 300.0, 600.0, 900.0))
            events = [event for worker in self.bees.values() for event in self._lives(worker)]
            self._batches += 1
            self.batch = {"n": self._batches, "now": self.now, "events": events}
        return json.dumps(self.batch) + "\n"

    def _lives(self, worker: SimulatedWorker) -> list[dict[str, Any]]:
        dice = self.random.random()
        if worker.mood in ("new", "finished"):
            worker.number += 1
            worker.incarnation = f"{worker.session}-first"
            worker.mood, worker.nudged = "well", []
            return [self._began(worker)]
        if worker.mood == "reborn":
            worker.mood = "well"
            return [self._began(worker), *self._step(worker)]
        if worker.mood == "well":
            if dice < 0.25:
                worker.mood = "hangs"
            elif dice < 0.35:
                worker.mood = "loops"
            elif dice < 0.42:
                worker.mood = "gone"
                return [self._event(worker, EventType.EXECUTION_FAILED, error_type="OSError")]
            elif dice < 0.47:
                worker.mood = "finished"
                return [self._event(worker, EventType.EXECUTION_COMPLETED)]
            return self._step(worker)
        if worker.mood == "loops":
            call = {"tool": "t", "args_hash": "a", "result_hash": "b"}
            return [
                self._event(worker, EventType.TOOL_CALL_COMPLETED, **call, turn=f"{self._ids}")
                for _ in range(3)
            ]
        if worker.mood == "gone" and dice < 0.02:
            worker.mood = "new"  # its owner starts another task
        return []

    def _began(self, worker: SimulatedWorker) -> dict[str, Any]:
        # Every other task is repeatable; failures of the others are left to people.
        facts = {"start_records": True, "repeatable": worker.number % 2 == 0}
        return self._event(worker, EventType.EXECUTION_STARTED, **facts)

    def _step(self, worker: SimulatedWorker) -> list[dict[str, Any]]:
        worker.nudged = []
        return [self._event(worker, EventType.STEP_COMPLETED, verdict="ACCEPT")]

    def _event(self, worker: SimulatedWorker, type_: EventType, **data: Any) -> dict[str, Any]:
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

    def hear(self, line: str) -> str:
        """Record one line of a monitor, and return its first word."""
        word, *rest = line.split()
        log = self.heard
        log.kinds[word] += 1
        if word == "said":
            self._said(*rest)
        elif word == "ticket":
            log.tickets.add(rest[0])
        elif word == "told":
            log.told.add(rest[0])
        elif word == "nudge":
            self._nudged(*rest)
        elif word == "terminate":
            self._terminated(*rest)
        elif word == "respawn":
            self._respawned(*rest)
        elif word == "done" and self.batch is not None and int(rest[0]) == self.batch["n"]:
            self.batch = None
        return word

    def _said(self, event_id: str, type_: str, agent: str, *what: str) -> None:
        self.heard.events.add(event_id)
        self.heard.kinds[type_] += 1
        if type_ == EventType.INTERVENTION_RECORDED.value:
            intervention_id, kind, outcome, _ = what
            self.heard.interventions[intervention_id] = outcome
            self.heard.kinds[f"{kind} {outcome}"] += 1
        elif what and what[3] != "-":
            self.heard.recoveries.add(what[3])

    def _is_it(self, worker: SimulatedWorker, session: str, incarnation: str) -> bool:
        return (worker.session, worker.incarnation) == (session, incarnation)

    def _nudged(self, nudge_id: str, agent: str, session: str, incarnation: str) -> None:
        worker, log = self.bees[agent], self.heard
        log.nudges[nudge_id] += 1
        if not self._is_it(worker, session, incarnation):
            log.wrong.append(f"nudge {nudge_id} for {session}/{incarnation}, {agent} is {worker.incarnation}")
            return
        for other, at in worker.nudged:
            if self.now - at < INTERVAL:
                log.wrong.append(f"{agent} was nudged twice within an interval: {other}, {nudge_id}")
        worker.nudged.append((nudge_id, self.now))
        if worker.mood in ("hangs", "loops") and self.random.random() < 0.15:
            worker.mood = "well"

    def _terminated(self, intervention_id: str, agent: str, session: str, incarnation: str) -> None:
        worker, log = self.bees[agent], self.heard
        log.ended[intervention_id] = (agent, session, incarnation)
        if not self._is_it(worker, session, incarnation):
            log.wrong.append(f"{session}/{incarnation} was terminated, {agent} is {worker.incarnation}")
            return
        worker.mood = "gone"

    def _respawned(
        self, attempt: str, agent: str, session: str, old: str, incarnation: str, checkpoint: str
    ) -> None:
        worker, log = self.bees[agent], self.heard
        if worker.session != session:
            return  # its owner started another task without a report
        if worker.mood == "finished" or checkpoint != "c1":
            log.wrong.append(f"{session} was recovered from {checkpoint}, it is {worker.mood}")
        worker.incarnation, worker.mood, worker.nudged = incarnation, "reborn", []


class Monitor:
    """The process that is killed, and its parent process."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder / 'monitor.db'}"
        self._pipes = folder / "in", folder / "out"
        for pipe in self._pipes:
            os.mkfifo(pipe)
        self._mother = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.monitor_process", self.url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )

    def run_process(self, world: World, chance: Random, *, kill: bool = True) -> bool:
        """Let one process work, then kill it at any moment; return whether the kill ended it."""
        mother = self._mother
        assert mother.stdin is not None
        assert mother.stdout is not None
        print(*self._pipes, file=mother.stdin, flush=True)
        pid = int(mother.stdout.readline().split()[1])
        with (
            self._pipes[0].open("w", encoding="utf-8") as say,
            self._pipes[1].open(encoding="utf-8") as result,
        ):
            lines = chance.randrange(1, 1 + chance.choice((1, 3, 10, 30, 100, 200))) if kill else None
            self._work(world, say, result, pid, lines, chance)
            if not kill:
                say.close()
            for line in result:
                if line.endswith("\n"):
                    world.hear(line)
        return mother.stdout.readline().split() == ["dead", str(int(signal.SIGKILL))]

    def _work(
        self, world: World, say: IO[str], said: IO[str], pid: int, lines: int | None, chance: Random
    ) -> None:
        """Send batches until ``lines`` lines arrived, then kill the monitor; by default after 5 batches."""
        batches = count = 0
        say.write(world.next_batch())
        say.flush()
        while line := said.readline():
            count += 1
            if world.hear(line) == "done":
                batches += 1
                if lines is None and batches == 5:
                    return
                say.write(world.next_batch())
                say.flush()
            if count == lines:
                time.sleep(chance.random() * 0.004)
                os.kill(pid, signal.SIGKILL)
                return

    def close(self) -> None:
        """End the parent process."""
        self._mother.communicate(timeout=30)


def kill_repeatedly(folder: Path, *, kills: int, seed: int, seconds: float | None = None) -> dict[str, Any]:
    """
    Kill the monitor ``kills`` times, let the last process end normally, and return the faults.

    Args:
        folder: The folder of its database.
        kills: Number of kills.
        seed: Seed of the workers and of the times of kills.
        seconds: Time limit for kills.
    """
    world, chance, monitor = World(seed), Random(seed + 1), Monitor(folder)
    began, died = time.monotonic(), 0
    for _ in range(kills):
        died += monitor.run_process(world, chance)
        if seconds is not None and time.monotonic() - began > seconds:
            break
    monitor.run_process(world, chance, kill=False)
    monitor.close()
    wrong = [*world.heard.wrong, *asyncio.run(compare(monitor.url, world.heard))]
    return {
        "kills": died,
        "seed": seed,
        "seconds": round(time.monotonic() - began, 1),
        "simulated_days": round((world.now - 1_700_000_000.0) / 86_400, 1),
        "events": len(world.heard.events),
        "tickets": len(world.heard.tickets),
        "notifications": len(world.heard.told),
        "interventions": len(world.heard.interventions),
        "recoveries": len(world.heard.recoveries),
        "what_was_said": dict(sorted(world.heard.kinds.items())),
        "wrong": wrong,
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


def _read(conn: Connection) -> StoredDecisions:
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


async def compare(url: str, heard: ActionLog) -> list[str]:
    """Compare acknowledged and executed decisions with the store; return each difference."""
    checked = verify_log(url)
    store = Store.open(url, read_only=True)
    result = await store.read(_read)
    await store.close()
    wrong = [] if checked.ok else [f"the log does not verify: {checked.reason}"]

    def lost(what: str, said: set[str], there: set[str]) -> None:
        wrong.extend(f"{what} {which} was acknowledged and is lost" for which in sorted(said - there))

    lost("event", heard.events, set(result.events))
    lost("ticket", heard.tickets, set(result.tickets))
    lost("notification of ticket", heard.told, {one[0] for one in result.outbox})
    lost("intervention", set(heard.interventions), set(result.interventions))
    lost("recovery", heard.recoveries, {recovery.recovery_id for recovery in result.recoveries})
    lost("nudge", set(heard.nudges), set(result.interventions))
    lost("termination", set(heard.ended), set(result.interventions))
    for intervention_id, outcome in heard.interventions.items():
        found = result.interventions.get(intervention_id)
        if found is not None and found.outcome.value != outcome:
            wrong.append(
                f"intervention {intervention_id} was reported as {outcome} and is {found.outcome.value}"
            )
    for intervention_id, who in heard.ended.items():
        found = result.interventions.get(intervention_id)
        if found is not None and (found.agent_id, found.session_id, found.incarnation_id) != who:
            wrong.append(f"termination {intervention_id} of {who} is stored for {found.target}")
    wrong.extend(f"nudge {which} was delivered {n} times" for which, n in heard.nudges.items() if n > 1)
    wrong.extend(_twice(result))
    return wrong


def _twice(kept: StoredDecisions) -> list[str]:
    """Return rows that are stored under two identities."""
    wrong = [f"event {which} is stored {n} times" for which, n in Counter(kept.events).items() if n > 1]
    live = Counter(ticket.fingerprint for ticket in kept.tickets.values() if ticket.is_live)
    wrong += [f"{n} live tickets have the fingerprint {mark}" for mark, n in live.items() if n > 1]
    # A ticket never has two alerts.
    active = Counter(ticket_id for ticket_id, _, _, is_on in kept.outbox if is_on)
    wrong += [f"ticket {ticket_id} has {n} notifications" for ticket_id, n in active.items() if n > 1]
    # A ticket that rises is sent with another severity, and a reminder with a count.
    requests = {ticket.ticket_id: ticket.requests for ticket in kept.tickets.values()}
    keys = {(ticket_id, severity, key) for ticket_id, key, severity, _ in kept.outbox}
    names = Counter((ticket_id, severity) for ticket_id, severity, _ in keys)
    wrong += [
        f"ticket {which} was sent under {n} identities"
        for which, n in names.items()
        if n > 1 + requests[which[0]]
    ]
    notified_ids = {one[0] for one in kept.outbox}
    wrong += [
        f"ticket {ticket.ticket_id} is {ticket.status.value} and its notification is lost"
        for ticket in kept.tickets.values()
        if ticket.status is TicketStatus.INTERVENING and ticket.ticket_id not in notified_ids
    ]
    wrong += [
        f"intervention {intervention.intervention_id} never ended"
        for intervention in kept.interventions.values()
        if intervention.outcome is InterventionOutcome.STARTED
    ]
    tries: dict[tuple[str, int], set[str]] = defaultdict(set)
    for one in kept.recoveries:
        if one.started_at is not None:
            tries[one.task_id, one.attempt].add(one.recovery_id)
    return wrong + [
        f"attempt {key} was started as {sorted(ids)}" for key, ids in tries.items() if len(ids) > 1
    ]


def main() -> int:
    """Parse the command line, kill, print; return 1 if anything is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.killed_monitor", description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = kill_repeatedly(Path(folder), kills=args.kills, seed=args.seed)
    print(json.dumps(found, indent=2))
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
