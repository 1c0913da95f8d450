"""
A simulated fleet on a simulated clock, with the real monitor and services.

Agents, their processes and the people around them are simulated. Monitor, tickets, interventions, recovery,
the store, and the rules of judge and queen are real.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from queenright.health.findings import WorkerKey
from queenright.health.interventions.emergency_stop import EmergencyStop
from queenright.health.interventions.escalation import Escalation, EscalationAnswer
from queenright.health.interventions.intervention_service import InterventionService
from queenright.health.interventions.ledger import InterventionLedger
from queenright.health.interventions.storm import StormWatch
from queenright.health.interventions.target import Target
from queenright.health.interventions.worker_control import NudgeDelivery, StopResult, WorkerUnreachableError
from queenright.health.monitoring.monitor import HealthMonitor
from queenright.health.monitoring.worker_summary import summarise
from queenright.health.recovery.recovery import Recovery
from queenright.health.recovery.recovery_service import RecoveryService
from queenright.health.recovery.respawner import CheckpointRef, RespawnRefusedError
from queenright.health.recovery.table import recovery_table
from queenright.health.settings import HealthSettings
from queenright.health.store.store import Store
from queenright.health.ticket_service import TicketService
from queenright.health.tickets import ticket_rules as rules
from queenright.health.tickets.ticket import TicketDraft, TicketRejectedError
from queenright.judge import escalation_policy
from queenright.runtime.events import ALERT_CLASS, AgentEvent, EventType
from tools.simulation.faults import Fault, FaultKind
from tools.simulation.gaps import Gaps
from tools.simulation.worker import HEARTBEAT, Worker

DAY: Final = 86_400.0
TICK: Final = 1.0
"""The service's loop wakes once a second, so nothing is detected before the next full second."""
SWEEP: Final = 600.0
RESTART_SECONDS: Final = 6 * 3600.0
"""Seconds after which people restart an agent if nothing else helped."""
_CLOCK_JUMP_HOLD: Final = 120.0
_CHANGES: Final = frozenset(
    {
        EventType.FINDING_OPENED,
        EventType.FINDING_CLEARED,
        EventType.HEALTH_STATE_CHANGED,
        EventType.EXECUTION_COMPLETED,
        EventType.EXECUTION_FAILED,
        EventType.AGENT_TERMINATED,
        EventType.EXECUTION_STARTED,
    }
)


@dataclass
class Odds:
    """Probabilities and rates of the simulated world. Everything is seeded."""

    faults_per_worker_day: float = 0.25
    follows_nudge: float = 0.5
    follows_hand_off: float = 0.7
    confirms_stop: float = 0.98
    fails_to_start: float = 0.03
    crashes_again: float = 0.08
    unrecoverable: float = 0.03
    """Share of lost workers that crash in every incarnation."""
    sleeps_per_week: float = 2.0
    """How often the host is suspended for hours."""


@dataclass
class Tally:
    """Counts of what happened, from the ground truth."""

    events: int = 0
    faults: list[Fault] = field(default_factory=list)
    false_alarms: list[tuple[float, str, str, str]] = field(default_factory=list)
    """Time, agent, alarm and reason."""
    interventions: Counter[str] = field(default_factory=Counter)
    tickets: Counter[str] = field(default_factory=Counter)
    finished_restarts: int = 0
    wrong_actions: int = 0
    unrecoverable: set[str] = field(default_factory=set)
    """Sessions that no recovery can save."""
    host_sleeps: int = 0
    recoveries: list[Recovery] = field(default_factory=list)


class Fleet:
    """
    The simulation.

    Args:
        settings: Settings of the health layer.
    """

    def __init__(
        self,
        store: Store,
        *,
        workers: int,
        seed: int,
        gaps: Gaps,
        odds: Odds | None = None,
        settings: HealthSettings | None = None,
    ) -> None:
        self.store = store
        self.gaps = gaps
        self.odds = odds or Odds()
        self.random = Random(seed)
        self.tally = Tally()
        self.now = 1_700_000_000.0
        self.began_at = self.now
        self._ids = itertools.count(1)
        self._order = itertools.count()
        self._pending_calls: list[tuple[float, int, Worker | None, Any]] = []
        self._pending_events: deque[AgentEvent] = deque()
        self._changed_workers: dict[WorkerKey, None] = {}
        self._remaining_kinds: list[FaultKind] = []
        self._handed_off: set[WorkerKey] = set()
        self.settings = settings or HealthSettings()
        self._ledger = InterventionLedger(store, publish=self.publish)
        self.monitor = HealthMonitor(self.settings, is_stopping=self._ledger.is_stopping)
        self._build()
        self.workers = [Worker(self, n, Random(f"{seed}/{n}")) for n in range(workers)]
        self.workers_by_id = {worker.agent_id: worker for worker in self.workers}

    def _build(self) -> None:
        self.stop = EmergencyStop(self.store, clock=self.clock, publish=self.publish)
        self.storm = StormWatch(self.settings.intervention.storm, ids=lambda: self.new_id("storm"))
        self.recovery = RecoveryService(
            self.store,
            settings=self.settings,
            monitor=self.monitor,
            respawners=[self],
            clock=self.clock,
            ids=lambda: self.new_id("r"),
            random=self.random,
            publish=self.publish,
            stop_reason=lambda: self.stop.reason,
        )
        self.acting = InterventionService(
            self.store,
            self._ledger,
            settings=self.settings,
            monitor=self.monitor,
            controls=[self],
            recovery=self.recovery,
            stop=self.stop,
            storm=self.storm,
            clock=self.clock,
            sign=lambda event: event,
            orchestrator=self._orchestrate,
            ids=lambda: self.new_id("a"),
        )
        self.tickets = TicketService(
            self.store,
            settings=self.settings,
            clock=self.clock,
            ids=lambda: self.new_id("t"),
            publish=self.publish,
            group=lambda health, finding: self.storm.storm_of(health.key),
        )

    def clock(self) -> float:
        """Return the simulated time, in seconds since the epoch."""
        return self.now

    def new_id(self, prefix: str) -> str:
        """Return a new id."""
        return f"{prefix}{next(self._ids):09d}"

    # -- time ---------------------------------------------------------------------------------------

    async def run(self, days: float) -> Tally:
        """Simulate ``days``, and return the tally."""
        end = self.now + days * DAY
        self._plan(days)
        sweep = self.now + SWEEP
        while self.now < end:
            wakeup = self._next_wakeup()
            due = self._pending_calls[0][0]
            if sweep <= min(due, wakeup):
                self.now = max(self.now, sweep)
                sweep += SWEEP
                self._pending_events += self.monitor.sweep(self.now)[1]
            elif wakeup <= due:
                self.now = max(self.now, wakeup)
                await self._advance()
            else:
                self._run_next()
            if self._pending_events or self._changed_workers:
                await self._publish_pending()
        self.tally.recoveries = await self.store.read(lambda conn: recovery_table.newest(conn, 100_000))
        await self.acting.close()
        await self.recovery.close()
        return self.tally

    def call_at(self, when: float, function: Callable[[], object]) -> None:
        """Call a function at a simulated time."""
        heapq.heappush(self._pending_calls, (when, next(self._order), None, function))

    def schedule(self, worker: Worker, actions: Any) -> None:
        """Replace the actions of a worker from now on."""
        worker.actions = actions
        heapq.heappush(self._pending_calls, (self.now, next(self._order), worker, actions))

    def _plan(self, days: float) -> None:
        for worker in self.workers:
            self.schedule(worker, worker.actions)
            self.call_at(self.now + HEARTBEAT * self.random.random(), lambda w=worker: self._beat(w))  # type: ignore[misc]
        for _ in range(self._draw_count(self.odds.faults_per_worker_day * days * len(self.workers))):
            self.call_at(self.now + self.random.random() * days * DAY, self._assign_fault)
        for _ in range(self._draw_count(self.odds.sleeps_per_week * days / 7)):
            self.call_at(self.now + self.random.random() * days * DAY, self._suspend_host)

    def _draw_count(self, average: float) -> int:
        return int(average + self.random.random())

    def _run_next(self) -> None:
        when, _, worker, action = heapq.heappop(self._pending_calls)
        self.now = max(self.now, when)
        if worker is None:
            action()
        elif worker.actions is action:
            seconds = next(action)
            if seconds is not None:
                heapq.heappush(self._pending_calls, (self.now + seconds, next(self._order), worker, action))

    def _beat(self, worker: Worker) -> None:
        if worker.is_alive and not worker.is_finished:
            worker.send_heartbeat()
        self.call_at(self.now + HEARTBEAT * self.random.uniform(0.9, 1.1), lambda: self._beat(worker))

    def _suspend_host(self) -> None:
        """Suspend the host for hours, after which the clock has jumped."""
        seconds = self.random.uniform(1800, 8 * 3600)
        self._pending_calls = [
            (when + seconds, order, worker, action) for when, order, worker, action in self._pending_calls
        ]
        heapq.heapify(self._pending_calls)
        self.now += seconds
        self.tally.host_sleeps += 1
        for fault in self.tally.faults:
            if fault.ended_at is None and fault.detected_at is None:
                fault.is_excluded = True
        self.monitor.handle_clock_jump(self.now)
        self.acting.hold_until(self.now + _CLOCK_JUMP_HOLD)

    # -- the service's loop -------------------------------------------------------------------------

    def _next_wakeup(self) -> float:
        deadlines = (
            self.monitor.next_deadline(),
            self.acting.next_deadline(),
            self.tickets.next_deadline(),
            self.recovery.next_deadline(),
        )
        earliest = min((at for at in deadlines if at is not None), default=math.inf)
        return (
            math.inf
            if earliest == math.inf
            else max(math.ceil(earliest / TICK) * TICK, math.floor(self.now) + TICK)
        )

    async def _advance(self) -> None:
        now = self.now
        self._pending_events += self.monitor.advance(now)
        if self._pending_events:
            await self._publish_pending()
        if _is_due(self.tickets.next_deadline(), now):
            await self.tickets.settle(now)
        if _is_due(self.recovery.next_deadline(), now):
            await self.recovery.advance(now, stop=self.acting.stop_for_recovery)
            await self.recovery.wait_until_idle()
        if _is_due(self.acting.next_deadline(), now):
            await self.acting.advance(now)
            await self.acting.wait_until_idle()
            await self.recovery.wait_until_idle()

    def receive_event(self, worker: Worker, type_: EventType, data: dict[str, Any]) -> None:
        """Apply an event of a worker to the monitor."""
        self.tally.events += 1
        event = AgentEvent(
            type=type_,
            time=self.now + worker.skew,
            agent_id=worker.agent_id,
            session_id=worker.session_id,
            incarnation_id=worker.incarnation_id,
            node_id="work",
            data=data,
            id="",
        )
        new_events = self.monitor.apply(event, self.now)
        if new_events:
            self._pending_events += new_events
        if type_ in _CHANGES:
            self._changed_workers[worker.agent_id, worker.session_id] = None

    def publish(self, *events: AgentEvent) -> None:
        """Apply the events that a service publishes."""
        for event in events:
            self._record_outcome(event)
            self._pending_events += self.monitor.apply(event, self.now)
            if event.type in _CHANGES:
                self._changed_workers[event.agent_id, event.session_id] = None

    async def _publish_pending(self) -> None:
        """Store the monitor's events, then let the services act on them."""
        while self._pending_events or self._changed_workers:
            result = list(self._pending_events)
            self._pending_events.clear()
            alerts = [event for event in result if event.type in ALERT_CLASS]
            if alerts:
                await self.store.append(alerts)
            for event in result:
                self._record_outcome(event)
                if event.type is EventType.HEALTH_STATE_CHANGED:
                    self.acting.note_worse(event)
                if event.type in _CHANGES:
                    self._changed_workers[event.agent_id, event.session_id] = None
            changes, self._changed_workers = self._changed_workers, {}
            for key in changes:
                worker = self.monitor.get(*key)
                if worker is not None:
                    await self.tickets.observe(worker)
                    await self._judge(key)
                    await self.recovery.observe(worker)
                    self.acting.consider(worker)

    async def _judge(self, key: WorkerKey) -> None:
        """Stand in for judge and queen with their rules: raise a ticket if there is a reason."""
        worker = self.monitor.get(*key)
        if worker is None or not (reasons := rules.reasons(worker)) or worker.vitals.waiting is not None:
            return
        open_tickets = self.tickets.open_for(*key)
        if open_tickets is not None and set(rules.kinds_of(reasons)) <= set(open_tickets.active_kinds):
            return
        draft = TicketDraft(
            severity=reasons[0].severity,
            cause=reasons[0].kind.value,
            judge_reasoning="by the rules",
            suggested_action="look at it",
            evidence_snippet=reasons[0].evidence,
        )
        try:
            report = await self.tickets.raise_ticket(worker, draft)
        except TicketRejectedError:
            return
        if report.change == "opened":
            await self.tickets.intervene(report.ticket.ticket_id, "by the rules", "high")

    async def _orchestrate(self, question: Escalation) -> EscalationAnswer | None:
        worker = self.monitor.get(question.agent_id, question.session_id)
        result = question.model_dump(mode="json") | {"asked_at": question.created_at}
        decision = escalation_policy.answer(
            result, summarise(worker, self.now) if worker is not None else None
        )
        return EscalationAnswer(decision=decision.decision, reason=decision.reason)

    # -- ground truth -------------------------------------------------------------------------------

    def _record_outcome(self, event: AgentEvent) -> None:
        """Compare the reported states with the actual ones."""
        type_, data = event.type, event.data
        worker = self.workers_by_id.get(event.agent_id)
        if worker is None:
            return
        if type_ is EventType.FINDING_OPENED or type_ is EventType.HEALTH_STATE_CHANGED:
            if worker.fault is not None:
                self.check_detection(worker.fault)
            if type_ is EventType.HEALTH_STATE_CHANGED and data["to"] in ("stuck", "failing"):
                self._check_false_alarm(event, str(data["to"]), str(data["reason"]))
        elif type_ is EventType.INTERVENTION_RECORDED:
            self.tally.interventions[f"{data['kind']} {data['outcome']}"] += 1
            if data["outcome"] not in ("refused", "dry_run"):
                self._check_false_alarm(event, str(data["kind"]), str(data["reason"]))
                fault = worker.fault or self._find_last_fault(event)
                if fault is not None:
                    fault.actions[str(data["kind"])] += 1
                    fault.first_action_at = (
                        self.now if fault.first_action_at is None else fault.first_action_at
                    )
        elif type_ is EventType.WORKER_ESCALATION_TICKET and data["change"] == "opened":
            self.tally.tickets[str(data["ticket"]["kind"])] += 1
            self._check_false_alarm(event, "ticket", str(data["ticket"]["kind"]))

    def _find_last_fault(self, event: AgentEvent) -> Fault | None:
        return next((f for f in reversed(self.tally.faults) if f.session_id == event.session_id), None)

    def _check_false_alarm(self, event: AgentEvent, alarm: str, reason: str) -> None:
        faults = [fault for fault in self.tally.faults if fault.agent_id == event.agent_id]
        has_ended = event.session_id in self.workers_by_id[event.agent_id].ended_sessions
        if not any(fault.explains(event.session_id, self.now, has_ended=has_ended) for fault in faults):
            self.tally.false_alarms.append((self.now, event.agent_id, alarm, reason))

    def _assign_fault(self) -> None:
        if not self._remaining_kinds:
            # Every kind once in random order, then every kind again, so that a short run omits none.
            self._remaining_kinds = list(FaultKind)
            self.random.shuffle(self._remaining_kinds)
        kind = self._remaining_kinds.pop()
        candidates = [w for w in self.workers if w.next_fault is None and w.fault is None]
        if kind is FaultKind.CHECKPOINTS_STOP:
            candidates = [w for w in candidates if w.has_checkpoints]
        if candidates:
            self.random.choice(candidates).next_fault = kind

    def begin_fault(self, worker: Worker, kind: FaultKind) -> Fault:
        """Begin a fault of a worker."""
        fault = Fault(kind, worker.agent_id, worker.session_id, self.now)
        worker.fault = fault
        self.tally.faults.append(fault)
        if kind in (FaultKind.CRASH, FaultKind.KILLED, FaultKind.NO_HEARTBEATS):
            dice = self.random.random()
            if dice < self.odds.unrecoverable:
                worker.crashes_left = 1_000
                self.tally.unrecoverable.add(worker.session_id)
            elif dice < self.odds.unrecoverable + self.odds.crashes_again:
                worker.crashes_left = 1
        self.call_at(self.now + RESTART_SECONDS, lambda: self._restart_by_people(worker, fault))
        return fault

    def check_detection(self, fault: Fault) -> None:
        """Record the time if the monitor now shows the fault."""
        if fault.detected_at is not None or fault.ended_at is not None:
            return
        health = self.monitor.get(fault.agent_id, fault.session_id)
        if health is not None and (
            fault.is_detected_as(health.vitals.status)
            or any(fault.is_detected_by(finding) for finding in health.findings)
        ):
            fault.detected_at = self.now

    def end_fault(self, worker: Worker) -> None:
        """End the fault of a worker."""
        if worker.fault is not None:
            worker.fault.ended_at = self.now
        worker.fault = None
        worker.crashes_left = 0

    def _restart_by_people(self, worker: Worker, fault: Fault) -> None:
        if worker.fault is not fault:
            return
        if (
            worker.crashes_left
            or worker.is_finished
            or self.recovery.is_recovering((worker.agent_id, worker.session_id))
        ):
            worker.is_alive = True
            self.schedule(worker, worker.abandon_task())
            return
        self.end_fault(worker)
        worker.start()
        self.schedule(worker, worker.continue_after(5.0))

    def set_breaker(self, worker: Worker, name: str, to: str) -> None:
        """Open or close a circuit breaker of a worker."""
        data = {"name": name, "kind": "tool_execution", "from": "closed", "to": to}
        self.publish(
            AgentEvent(
                type=EventType.CIRCUIT_BREAKER_STATE_CHANGED,
                time=self.now,
                agent_id=worker.agent_id,
                data=data,
                id=self.new_id("b"),
            )
        )

    # -- control of workers -------------------------------------------------------------------------

    def _find_worker(self, target: Target) -> Worker:
        """Return the target of an action; count the action as wrong if it must not happen."""
        worker = self.workers_by_id[target.agent_id]
        is_same = (worker.session_id, worker.incarnation_id) == (target.session_id, target.incarnation_id)
        if not is_same or worker.is_waiting or worker.is_finished:
            self.tally.wrong_actions += 1
        return worker

    def can_reach(self, target: Target) -> bool:
        """Return whether the worker exists."""
        return target.agent_id in self.workers_by_id

    async def nudge(
        self, target: Target, message: str, *, instruction_id: str, expires_at: float
    ) -> NudgeDelivery:
        """Deliver a nudge; some workers follow it."""
        worker = self._find_worker(target)
        if not worker.is_alive:
            raise WorkerUnreachableError("its process is gone")
        is_hand_off = message.startswith("HAND OFF")
        is_followed = self.random.random() < (
            self.odds.follows_hand_off if is_hand_off else self.odds.follows_nudge
        )
        if is_followed and worker.fault is not None and is_hand_off:
            self.schedule(worker, worker.hand_off(self.random.uniform(5, 60)))
        elif is_followed and worker.fault is not None and worker.fault.kind is not FaultKind.OPEN_BREAKER:
            delay = self.random.uniform(5, 60)
            self.call_at(self.now + delay, lambda: self._follow_nudge(worker, target))
        return NudgeDelivery.INJECTED

    def _follow_nudge(self, worker: Worker, target: Target) -> None:
        if worker.incarnation_id == target.incarnation_id and worker.fault is not None and worker.is_alive:
            self.end_fault(worker)
            worker.is_saving = True
            self.schedule(worker, worker.continue_after(0.0))

    async def terminate(
        self, target: Target, reason: str, *, instruction_id: str, within: float
    ) -> StopResult:
        """Stop a worker; some stops are unconfirmed."""
        worker = self._find_worker(target)
        if self.random.random() >= self.odds.confirms_stop:
            return StopResult(is_confirmed=False, detail="no answer")
        worker.is_alive = False
        self.schedule(worker, iter((None,)))
        return StopResult(
            is_confirmed=True,
            checkpoint_id=worker.checkpoints[-1].checkpoint_id if worker.checkpoints else None,
        )

    # -- respawning ---------------------------------------------------------------------------------

    async def chain(self, target: Target) -> Sequence[CheckpointRef]:
        """Return the checkpoints of a worker's session, newest first; some are damaged."""
        worker = self.workers_by_id[target.agent_id]
        self._check_respawn(worker, target)
        return [
            CheckpointRef(checkpoint_id=c.checkpoint_id, created_at=c.at, valid=c.is_valid, reason="torn")
            for c in reversed(worker.checkpoints)
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
        """Start a worker again; some starts fail."""
        worker = self.workers_by_id[target.agent_id]
        self._check_respawn(worker, target)
        if target.session_id in worker.ended_sessions:
            self.tally.finished_restarts += 1
        if self.random.random() < self.odds.fails_to_start:
            raise RespawnRefusedError("no machine is free")
        saved_checkpoint = next(
            (c for c in worker.checkpoints if checkpoint and c.checkpoint_id == checkpoint.checkpoint_id),
            None,
        )
        if saved_checkpoint is not None:
            worker.remaining_turns = max(1, saved_checkpoint.remaining_turns)
        worker.is_finished = False
        worker.start()
        self.schedule(worker, worker.run_recovered())
        return Target(
            agent_id=worker.agent_id, session_id=worker.session_id, incarnation_id=worker.incarnation_id
        )

    def _check_respawn(self, worker: Worker, target: Target) -> None:
        if worker.session_id != target.session_id or worker.session_id in worker.ended_sessions:
            # A real respawner also checks the session first.
            raise RespawnRefusedError("the session is over", over=True)


def _is_due(at: float | None, now: float) -> bool:
    return at is not None and at <= now
