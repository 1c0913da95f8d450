"""
A monitor process that will be killed: ``python -m tests.chaos.monitor_process DATABASE``.

The parent process imports everything once. Each line that it reads names two pipes, and starts a monitor as a
child process that reads and writes them until it is killed. The child reads batches of events, one
``{"n", "now", "events"}`` per line, and writes one line per action:

- ``ready PID``: the monitor has restored its state;
- ``published ID TYPE ...``: a durable event was published;
- ``ticket ID``: a ticket was opened or counted;
- ``notified ID``: a ticket was passed to the outbox;
- ``nudge``, ``terminate``, ``respawn`` with the target: the monitor acted on a worker;
- ``done N``: batch N is durable, and everything that was due is done.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from random import Random
from typing import Any

from sqlalchemy import Connection

from queenright.alerting.notification_rules import enqueue
from queenright.alerting.settings import AlertingSettings
from queenright.health.findings import WorkerKey
from queenright.health.interventions.emergency_stop import EmergencyStop
from queenright.health.interventions.escalation import Escalation, EscalationAnswer
from queenright.health.interventions.intervention_service import InterventionService
from queenright.health.interventions.ledger import InterventionLedger
from queenright.health.interventions.storm import StormWatch
from queenright.health.interventions.target import Target
from queenright.health.interventions.worker_control import NudgeDelivery, StopResult
from queenright.health.monitoring.monitor import HealthMonitor
from queenright.health.recovery.recovery_service import RecoveryService
from queenright.health.recovery.respawner import CheckpointRef
from queenright.health.settings import HealthSettings
from queenright.health.store import event_log
from queenright.health.store.store import Store
from queenright.health.ticket_service import TicketService
from queenright.health.tickets import ticket_rules as rules
from queenright.health.tickets.ticket import EscalationTicket, TicketDraft, TicketRejectedError
from queenright.instrumentation.identity import new_id
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.ops.rebuild import rebuild_workers

DAY = 86_400.0
SETTINGS = HealthSettings.model_validate(
    {
        "recovery": {"max_attempts_per_hour": 50},
        # Reminders are off, because a reminder has its own label and would be another identity of a ticket.
        "tickets": {"re_escalation": {"max": 0}},
    }
)


def write_line(*words: object) -> None:
    """Write a line without a buffer, because the output before a kill must arrive."""
    os.write(1, (" ".join(str(word) for word in words) + "\n").encode())


class RemoteActions:
    """A control and a respawner that only report every action to the parent process."""

    def can_reach(self, target: Target) -> bool:
        return True

    async def nudge(
        self, target: Target, message: str, *, instruction_id: str, expires_at: float
    ) -> NudgeDelivery:
        write_line("nudge", instruction_id, target.agent_id, target.session_id, target.incarnation_id)
        return NudgeDelivery.INJECTED

    async def terminate(
        self, target: Target, reason: str, *, instruction_id: str, within: float
    ) -> StopResult:
        write_line("terminate", instruction_id, target.agent_id, target.session_id, target.incarnation_id)
        return StopResult(is_confirmed=True, checkpoint_id="c1")

    async def chain(self, target: Target) -> Sequence[CheckpointRef]:
        return [
            CheckpointRef(checkpoint_id="c2", created_at=2.0, valid=False, reason="torn"),
            CheckpointRef(checkpoint_id="c1", created_at=1.0, valid=True),
        ]

    async def respawn(
        self,
        target: Target,
        checkpoint: CheckpointRef | None,
        *,
        task_id: str,
        attempt: int,
        note: str,
        repeatable: bool,
        may_start_over: bool,
    ) -> Target:
        incarnation = new_id()
        identity = (target.agent_id, target.session_id, target.incarnation_id)
        write_line(
            "respawn", attempt, *identity, incarnation, checkpoint.checkpoint_id if checkpoint else "-"
        )
        return Target(agent_id=target.agent_id, session_id=target.session_id, incarnation_id=incarnation)


class MonitorRun:
    """The parts of a monitor, wired as in the service, on the clock of the batches."""

    def __init__(self, url: str) -> None:
        self.now = 0.0
        self.store = Store.open(url)
        ledger = InterventionLedger(self.store, publish=self.publish)
        self.monitor = HealthMonitor(SETTINGS, is_stopping=ledger.is_stopping)
        self.stored_ids: set[str] = set()
        self._pending_events: list[AgentEvent] = []
        self._changed_workers: dict[WorkerKey, None] = {}
        actions, clock = RemoteActions(), lambda: self.now
        self.tickets = TicketService(
            self.store,
            settings=SETTINGS,
            clock=clock,
            publish=self.publish,
            on_change=self._enqueue_notification,
        )
        self.recovery = RecoveryService(
            self.store,
            settings=SETTINGS,
            monitor=self.monitor,
            respawners=[actions],
            clock=clock,
            random=Random(1),
            publish=self.publish,
        )
        self.acting = InterventionService(
            self.store,
            ledger,
            settings=SETTINGS,
            monitor=self.monitor,
            controls=[actions],
            recovery=self.recovery,
            stop=EmergencyStop(self.store, clock=clock, publish=self.publish),
            storm=StormWatch(SETTINGS.intervention.storm, ids=new_id),
            clock=clock,
            sign=lambda event: event,
            orchestrator=self._decide_escalation,
        )

    @staticmethod
    def _enqueue_notification(conn: Connection, ticket: EscalationTicket) -> None:
        enqueue(conn, ticket, AlertingSettings(), ticket.updated_at)

    async def _decide_escalation(self, question: Escalation) -> EscalationAnswer | None:
        return (
            EscalationAnswer(decision="terminate", reason="it hangs")
            if hash(question.escalation_id) % 2
            else None
        )

    async def restore(self, now: float) -> None:
        """Restore the state, as the service does at its start."""
        self.now = now

        def replay(conn: Connection) -> int:
            self.stored_ids = {event.id for event in event_log.replay(conn, now - DAY)}
            return rebuild_workers(conn, self.monitor, since=now - DAY, now=now).events

        if self.store.read_now(replay):
            self.monitor.handle_clock_jump(now)
        undecided_tickets = await self.tickets.load()
        await self.recovery.load()
        await self.acting.load()
        for ticket in undecided_tickets:
            await self._notify_people(ticket.ticket_id)

    async def handle_batch(self, now: float, events: list[AgentEvent]) -> None:
        """Store and apply the events of a batch, and do everything that is due by then."""
        self.now = now
        events = [event for event in events if event.id not in self.stored_ids]
        await self.store.append(events)
        for event in events:
            self._pending_events += self.monitor.apply(event, now)
            self._changed_workers[event.agent_id, event.session_id] = None
        self._pending_events += self.monitor.advance(now)
        await self._publish_pending()
        await self.tickets.settle(now)
        await self.recovery.advance(now, stop=self.acting.stop_for_recovery)
        await self.recovery.wait_until_idle()
        await self._publish_pending()
        await self.acting.advance(now)
        await self.acting.wait_until_idle()
        await self.recovery.wait_until_idle()
        await self._publish_pending()

    def publish(self, *events: AgentEvent) -> None:
        for event in events:
            data = event.data
            details = [data.get(name, "") for name in ("intervention_id", "kind", "outcome", "recovery_id")]
            write_line(
                "published", event.id, event.type.value, event.agent_id, *(word or "-" for word in details)
            )
            self._pending_events += self.monitor.apply(event, self.now)
            self._changed_workers[event.agent_id, event.session_id] = None

    async def _publish_pending(self) -> None:
        while self._pending_events or self._changed_workers:
            reports, self._pending_events = self._pending_events, []
            await self.store.append(reports)
            for event in reports:
                write_line("published", event.id, event.type.value, event.agent_id)
                if event.type is EventType.HEALTH_STATE_CHANGED:
                    self.acting.note_worse(event)
                self._changed_workers[event.agent_id, event.session_id] = None
            changed, self._changed_workers = self._changed_workers, {}
            for key in changed:
                worker = self.monitor.get(*key)
                if worker is not None:
                    await self.tickets.observe(worker)
                    await self._judge(key)
                    await self.recovery.observe(worker)
                    self.acting.consider(worker)

    async def _judge(self, key: WorkerKey) -> None:
        worker = self.monitor.get(*key)
        if worker is None or not (reasons := rules.reasons(worker)):
            return
        open_ticket = self.tickets.open_for(*key)
        if open_ticket is not None and set(rules.kinds_of(reasons)) <= set(open_ticket.active_kinds):
            return
        draft = TicketDraft(
            severity=reasons[0].severity,
            cause="c",
            judge_reasoning="r",
            suggested_action="a",
            evidence_snippet="e",
        )
        try:
            raised = await self.tickets.raise_ticket(worker, draft)
        except TicketRejectedError:
            return
        write_line("ticket", raised.ticket.ticket_id)
        if raised.change == "opened":
            await self._notify_people(raised.ticket.ticket_id)

    async def _notify_people(self, ticket_id: str) -> None:
        await self.tickets.intervene(ticket_id, "a", "high")
        write_line("notified", ticket_id)


async def run_monitor(url: str) -> None:
    """Handle batches until killed, or until the input ends."""
    monitor_run = MonitorRun(url)
    loop = asyncio.get_running_loop()
    first = True
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        batch: dict[str, Any] = json.loads(line)
        if first:
            await monitor_run.restore(batch["now"])
            write_line("ready", os.getpid())
            first = False
        await monitor_run.handle_batch(batch["now"], [_parse_event(event) for event in batch["events"]])
        write_line("done", batch["n"])
    await monitor_run.acting.close()
    await monitor_run.recovery.close()
    await monitor_run.store.close()


def _parse_event(fields: dict[str, Any]) -> AgentEvent:
    return AgentEvent(**fields | {"type": EventType(fields["type"])})


def main(url: str) -> None:
    """Run as the parent of all monitor processes. Each input line names the pipes of a child."""
    for line in sys.stdin:
        input_pipe, output_pipe = line.split()
        child = os.fork()
        if child == 0:
            os.dup2(os.open(input_pipe, os.O_RDONLY), 0)
            os.dup2(os.open(output_pipe, os.O_WRONLY), 1)
            sys.stdin = os.fdopen(0, "r", encoding="utf-8")
            asyncio.run(run_monitor(url))
            os._exit(0)
        write_line("started", child)
        status = os.waitpid(child, 0)[1]
        write_line("exited", os.WTERMSIG(status) or os.WEXITSTATUS(status))


if __name__ == "__main__":
    main(sys.argv[1])
