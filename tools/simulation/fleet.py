"""
A fleet on a clock of its own, watched by the real monitor and acted on by the real services.

What is simulated: agents, the processes and the people around them. What is real: monitor, tickets,
interventions, recovery, the store they keep everything in, and the rules that judge and queen go by.
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
LOOK: Final = 1.0
"""The service's loop wakes once a second: nothing is seen sooner than at the next full second."""
SWEEP: Final = 600.0
PEOPLE: Final = 6 * 3600.0
"""After so long an agent's people restart it, if nothing has helped."""
_QUIET: Final = 120.0
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
    """How the world answers; all of it seeded."""

    faults_per_worker_day: float = 0.25
    heeds_nudge: float = 0.5
    heeds_hand_off: float = 0.7
    stops_for_certain: float = 0.98
    does_not_start: float = 0.03
    crashes_once_more: float = 0.08
    beyond_help: float = 0.03
    """Lost workers that crash in every incarnation."""
    sleeps_per_week: float = 2.0
    """How often the host sleeps for hours."""


@dataclass
class Tally:
    """What happened, counted where it is known for certain."""

    events: int = 0
    faults: list[Fault] = field(default_factory=list)
    false_alarms: list[tuple[float, str, str, str]] = field(default_factory=list)
    """When, who, what, why."""
    interventions: Counter[str] = field(default_factory=Counter)
    tickets: Counter[str] = field(default_factory=Counter)
    restarted_finished: int = 0
    acted_wrongly: int = 0
    beyond_help: set[str] = field(default_factory=set)
    """Sessions that no recovery could have saved."""
    host_slept: int = 0
    recoveries: list[Recovery] = field(default_factory=list)


class Fleet:
    """
    The simulation.

    Args:
        settings: The settings of the health layer; by default the defaults.
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
        self.began = self.now
        self._ids = itertools.count(1)
        self._order = itertools.count()
        self._due: list[tuple[float, int, Worker | None, Any]] = []
        self._pending_events: deque[AgentEvent] = deque()
        self._changed_workers: dict[WorkerKey, None] = {}
        self._kinds: list[FaultKind] = []
        self._handed_off: set[WorkerKey] = set()
        self.settings = settings or HealthSettings()
        self._ledger = InterventionLedger(store, publish=self.publish)
        self.monitor = HealthMonitor(self.settings, is_stopping=self._ledger.is_stopping)
        self._build()
        self.workers = [Worker(self, n, Random(f"{seed}/{n}")) for n in range(workers)]
        self.of_agent = {worker.agent_id: worker for worker in self.workers}

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
        """Return the time."""
        return self.now

    def new_id(self, prefix: str) -> str:
        """Return an id that there was not yet."""
        return f"{prefix}{next(self._ids):09d}"

    # -- time ---------------------------------------------------------------------------------------

    async def run(self, days: float) -> Tally:
        """Let days go by, and return what happened."""
        until = self.now + days * DAY
        self._plan(days)
        sweep = self.now + SWEEP
        while self.now < until:
            look = self._next_look()
            due = self._due[0][0]
            if sweep <= min(due, look):
                self.now = max(self.now, sweep)
                sweep += SWEEP
                self._pending_events += self.monitor.sweep(self.now)[1]
            elif look <= due:
                self.now = max(self.now, look)
                await self._look()
            else:
                self._go_on()
            if self._pending_events or self._changed_workers:
                await self._speak()
        self.tally.recoveries = await self.store.read(lambda conn: recovery_table.newest(conn, 100_000))
        await self.acting.close()
        await self.recovery.close()
        return self.tally

    def at(self, when: float, what: Callable[[], object]) -> None:
        """Have something happen."""
        heapq.heappush(self._due, (when, next(self._order), None, what))

    def resume(self, worker: Worker, acts: Any) -> None:
        """Let a worker do something else from now on."""
        worker.acts = acts
        heapq.heappush(self._due, (self.now, next(self._order), worker, acts))

    def _plan(self, days: float) -> None:
        for worker in self.workers:
            self.resume(worker, worker.acts)
            self.at(self.now + HEARTBEAT * self.random.random(), lambda w=worker: self._beat(w))  # type: ignore[misc]
        for _ in range(self._number(self.odds.faults_per_worker_day * days * len(self.workers))):
            self.at(self.now + self.random.random() * days * DAY, self._something_goes_wrong)
        for _ in range(self._number(self.odds.sleeps_per_week * days / 7)):
            self.at(self.now + self.random.random() * days * DAY, self._host_sleeps)

    def _number(self, average: float) -> int:
        return int(average + self.random.random())

    def _go_on(self) -> None:
        when, _, worker, what = heapq.heappop(self._due)
        self.now = max(self.now, when)
        if worker is None:
            what()
        elif worker.acts is what:
            seconds = next(what)
            if seconds is not None:
                heapq.heappush(self._due, (self.now + seconds, next(self._order), worker, what))

    def _beat(self, worker: Worker) -> None:
        if worker.alive and not worker.over:
            worker.beat()
        self.at(self.now + HEARTBEAT * self.random.uniform(0.9, 1.1), lambda: self._beat(worker))

    def _host_sleeps(self) -> None:
        """Everything on this machine stands still for hours; then the clock has jumped."""
        by = self.random.uniform(1800, 8 * 3600)
        self._due = [(when + by, order, worker, what) for when, order, worker, what in self._due]
        heapq.heapify(self._due)
        self.now += by
        self.tally.host_slept += 1
        for fault in self.tally.faults:
            if fault.over is None and fault.seen_at is None:
                fault.set_aside = True
        self.monitor.handle_clock_jump(self.now)
        self.acting.hold_until(self.now + _QUIET)

    # -- the service's loop -------------------------------------------------------------------------

    def _next_look(self) -> float:
        open_tickets = (
            self.monitor.next_deadline(),
            self.acting.next_deadline(),
            self.tickets.next_deadline(),
            self.recovery.next_deadline(),
        )
        first = min((at for at in open_tickets if at is not None), default=math.inf)
        return (
            math.inf
            if first == math.inf
            else max(math.ceil(first / LOOK) * LOOK, math.floor(self.now) + LOOK)
        )

    async def _look(self) -> None:
        now = self.now
        self._pending_events += self.monitor.advance(now)
        if self._pending_events:
            await self._speak()
        if _due(self.tickets.next_deadline(), now):
            await self.tickets.settle(now)
        if _due(self.recovery.next_deadline(), now):
            await self.recovery.advance(now, stop=self.acting.stop_for_recovery)
            await self.recovery.wait_until_idle()
        if _due(self.acting.next_deadline(), now):
            await self.acting.advance(now)
            await self.acting.wait_until_idle()
            await self.recovery.wait_until_idle()

    def hear(self, worker: Worker, type_: EventType, data: dict[str, Any]) -> None:
        """Take in what a worker says."""
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
        """Let what a service says be known."""
        for event in events:
            self._note(event)
            self._pending_events += self.monitor.apply(event, self.now)
            if event.type in _CHANGES:
                self._changed_workers[event.agent_id, event.session_id] = None

    async def _speak(self) -> None:
        """Store what the monitor says, then let everybody act on it."""
        while self._pending_events or self._changed_workers:
            result = list(self._pending_events)
            self._pending_events.clear()
            alerts = [event for event in result if event.type in ALERT_CLASS]
            if alerts:
                await self.store.append(alerts)
            for event in result:
                self._note(event)
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
        """Do as judge and queen do by their rules: a ticket for every reason there is."""
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

    # -- what is known for certain ------------------------------------------------------------------

    def _note(self, event: AgentEvent) -> None:
        """Compare the reported states with the actual ones."""
        type_, data = event.type, event.data
        worker = self.of_agent.get(event.agent_id)
        if worker is None:
            return
        if type_ is EventType.FINDING_OPENED or type_ is EventType.HEALTH_STATE_CHANGED:
            if worker.fault is not None:
                self.look_for(worker.fault)
            if type_ is EventType.HEALTH_STATE_CHANGED and data["to"] in ("stuck", "failing"):
                self._alarm(event, str(data["to"]), str(data["reason"]))
        elif type_ is EventType.INTERVENTION_RECORDED:
            self.tally.interventions[f"{data['kind']} {data['outcome']}"] += 1
            if data["outcome"] not in ("refused", "dry_run"):
                self._alarm(event, str(data["kind"]), str(data["reason"]))
                fault = worker.fault or self._last_of(event)
                if fault is not None:
                    fault.actions[str(data["kind"])] += 1
                    fault.acted_at = self.now if fault.acted_at is None else fault.acted_at
        elif type_ is EventType.WORKER_ESCALATION_TICKET and data["change"] == "opened":
            self.tally.tickets[str(data["ticket"]["kind"])] += 1
            self._alarm(event, "ticket", str(data["ticket"]["kind"]))

    def _last_of(self, event: AgentEvent) -> Fault | None:
        return next((f for f in reversed(self.tally.faults) if f.session_id == event.session_id), None)

    def _alarm(self, event: AgentEvent, what: str, why: str) -> None:
        of_worker = [fault for fault in self.tally.faults if fault.agent_id == event.agent_id]
        has_ended = event.session_id in self.of_agent[event.agent_id].ended
        if not any(fault.explains(event.session_id, self.now, has_ended=has_ended) for fault in of_worker):
            self.tally.false_alarms.append((self.now, event.agent_id, what, why))

    def _something_goes_wrong(self) -> None:
        if not self._kinds:
            # Each kind once, in any order, then each again: none is left out however short the run.
            self._kinds = list(FaultKind)
            self.random.shuffle(self._kinds)
        kind = self._kinds.pop()
        free = [w for w in self.workers if w.wanted is None and w.fault is None]
        if kind is FaultKind.CHECKPOINTS_STOP:
            free = [w for w in free if w.saves]
        if free:
            self.random.choice(free).wanted = kind

    def begins(self, worker: Worker, kind: FaultKind) -> Fault:
        """Note that something has gone wrong with a worker."""
        fault = Fault(kind, worker.agent_id, worker.session_id, self.now)
        worker.fault = fault
        self.tally.faults.append(fault)
        if kind in (FaultKind.CRASH, FaultKind.KILLED, FaultKind.NO_HEARTBEATS):
            dice = self.random.random()
            if dice < self.odds.beyond_help:
                worker.doomed = 1_000
                self.tally.beyond_help.add(worker.session_id)
            elif dice < self.odds.beyond_help + self.odds.crashes_once_more:
                worker.doomed = 1
        self.at(self.now + PEOPLE, lambda: self._people_come(worker, fault))
        return fault

    def look_for(self, fault: Fault) -> None:
        """See whether the monitor shows a fault by now."""
        if fault.seen_at is not None or fault.over is not None:
            return
        health = self.monitor.get(fault.agent_id, fault.session_id)
        if health is not None and (
            fault.is_seen_as(health.vitals.status)
            or any(fault.is_seen_in(finding) for finding in health.findings)
        ):
            fault.seen_at = self.now

    def cure(self, worker: Worker) -> None:
        """Note that nothing is wrong with a worker any more."""
        if worker.fault is not None:
            worker.fault.over = self.now
        worker.fault = None
        worker.doomed = 0

    def _people_come(self, worker: Worker, fault: Fault) -> None:
        if worker.fault is not fault:
            return
        if worker.doomed or worker.over or self.recovery.is_recovering((worker.agent_id, worker.session_id)):
            worker.alive = True
            self.resume(worker, worker.given_up())
            return
        self.cure(worker)
        worker.start()
        self.resume(worker, worker.comes_to(5.0))

    def breaker(self, worker: Worker, name: str, to: str) -> None:
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

    # -- the outside of workers: control ------------------------------------------------------------

    def _whom(self, target: Target) -> Worker:
        """Return the worker that is about to be acted on; that it must not be is counted."""
        worker = self.of_agent[target.agent_id]
        same = (worker.session_id, worker.incarnation_id) == (target.session_id, target.incarnation_id)
        if not same or worker.waits or worker.over:
            self.tally.acted_wrongly += 1
        return worker

    def can_reach(self, target: Target) -> bool:
        """Return whether there is such a worker."""
        return target.agent_id in self.of_agent

    async def nudge(
        self, target: Target, message: str, *, instruction_id: str, expires_at: float
    ) -> NudgeDelivery:
        """Speak to a worker; some heed it."""
        worker = self._whom(target)
        if not worker.alive:
            raise WorkerUnreachableError("its process is gone")
        ends = message.startswith("HAND OFF")
        heeds = self.random.random() < (self.odds.heeds_hand_off if ends else self.odds.heeds_nudge)
        if heeds and worker.fault is not None and ends:
            self.resume(worker, worker.hands_off(self.random.uniform(5, 60)))
        elif heeds and worker.fault is not None and worker.fault.kind is not FaultKind.OPEN_BREAKER:
            after = self.random.uniform(5, 60)
            self.at(self.now + after, lambda: self._obey(worker, target))
        return NudgeDelivery.INJECTED

    def _obey(self, worker: Worker, target: Target) -> None:
        if worker.incarnation_id == target.incarnation_id and worker.fault is not None and worker.alive:
            self.cure(worker)
            worker.saving = True
            self.resume(worker, worker.comes_to(0.0))

    async def terminate(
        self, target: Target, reason: str, *, instruction_id: str, within: float
    ) -> StopResult:
        """Stop a worker; of some nobody knows whether it has."""
        worker = self._whom(target)
        if self.random.random() >= self.odds.stops_for_certain:
            return StopResult(is_confirmed=False, detail="no answer")
        worker.alive = False
        self.resume(worker, iter((None,)))
        return StopResult(
            is_confirmed=True, checkpoint_id=worker.chain[-1].checkpoint_id if worker.chain else None
        )

    # -- the outside of workers: respawning ---------------------------------------------------------

    async def chain(self, target: Target) -> Sequence[CheckpointRef]:
        """Return the checkpoints of a worker's session, newest first, some of them broken."""
        worker = self.of_agent[target.agent_id]
        self._may_live_again(worker, target)
        return [
            CheckpointRef(checkpoint_id=c.checkpoint_id, created_at=c.at, valid=c.whole, reason="torn")
            for c in reversed(worker.chain)
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
        """Start a worker again; some do not start."""
        worker = self.of_agent[target.agent_id]
        self._may_live_again(worker, target)
        if target.session_id in worker.ended:
            self.tally.restarted_finished += 1
        if self.random.random() < self.odds.does_not_start:
            raise RespawnRefusedError("no machine is free")
        saved = next(
            (c for c in worker.chain if checkpoint and c.checkpoint_id == checkpoint.checkpoint_id), None
        )
        if saved is not None:
            worker.left = max(1, saved.left)
        worker.over = False
        worker.start()
        self.resume(worker, worker.lives_again())
        return Target(
            agent_id=worker.agent_id, session_id=worker.session_id, incarnation_id=worker.incarnation_id
        )

    def _may_live_again(self, worker: Worker, target: Target) -> None:
        if worker.session_id != target.session_id or worker.session_id in worker.ended:
            # Whoever restarts work looks at its session first, as a real respawner does.
            raise RespawnRefusedError("the session is over", over=True)


def _due(at: float | None, now: float) -> bool:
    return at is not None and at <= now
