"""
The environment of a scenario: the real monitor, tickets, judge, queen and database, on virtual time.

Only the workers are simulated.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from opentelemetry.trace import NoOpTracer
from prometheus_client import CollectorRegistry

from queenright.health.findings import Finding
from queenright.health.monitoring.monitor import HealthMonitor
from queenright.health.settings import HealthSettings
from queenright.health.store.store import Store
from queenright.health.ticket_service import TicketService
from queenright.health.tickets.ticket import EscalationTicket
from queenright.instrumentation.errors import QueenrightError
from queenright.judge.judge import HEALTH_CHECK, JUDGE_GRAPH
from queenright.judge.judge_and_queen import JudgeAndQueen
from queenright.judge.queen_triage import QUEEN_GRAPH, TICKET_RECEIVER
from queenright.judge.scenarios.recording_model import RecordingModel
from queenright.judge.scenarios.script import Action, Actor, Emits, Happening, HostSleeps, Passes
from queenright.judge.scenarios.virtual_time import VirtualTime
from queenright.judge.settings import JudgeSettings
from queenright.judge.ticket_coverage import reason_for_ticket
from queenright.runtime.bus import EventBus
from queenright.runtime.events import AgentEvent, EventType
from queenright.runtime.llm.model import LLMProvider

_QUIET_ROUNDS: Final = 12
"""The number of idle rounds of the event loop after which the stage counts as settled."""
_STUCK_SECONDS: Final = 5.0
"""The real seconds after which an idle run must be waiting for the virtual clock."""
_MAX_POLL_SECONDS: Final = 0.02
_CHANGE_EVENTS: Final = frozenset(
    {
        EventType.FINDING_OPENED,
        EventType.FINDING_CLEARED,
        EventType.HEALTH_STATE_CHANGED,
        EventType.EXECUTION_STARTED,
        EventType.EXECUTION_COMPLETED,
        EventType.EXECUTION_FAILED,
    }
)


class StageStuckError(QueenrightError):
    """Raised when the stage does not settle."""


@dataclass(slots=True)
class ActorScript:
    """The remaining happenings of an actor."""

    actor: Actor
    acts: Iterator[Happening]
    over: bool = False


class Stage:
    """
    The judge, the queen and the components that they need. Use it as an asynchronous context manager.

    Args:
        judging: The prompts and limits of the judge and the queen. Its models are not used.
        meanwhile: The worker's actions between its first ticket and the triage.
    """

    def __init__(
        self,
        folder: Path,
        *,
        judge: LLMProvider,
        queen: LLMProvider,
        settings: HealthSettings | None = None,
        judging: JudgeSettings | None = None,
        meanwhile: Sequence[Action] = (),
    ) -> None:
        self.time = VirtualTime()
        self.settings = settings or HealthSettings()
        self.judge, self.queen = RecordingModel(judge), RecordingModel(queen)
        self.findings: list[Finding] = []
        """The worst finding at each change of a worker, oldest first."""
        self.monitor = HealthMonitor(self.settings)
        self._meanwhile = list(meanwhile)
        self._judging = judging or JudgeSettings()
        self._folder = folder
        self._order = itertools.count()
        self._timers: list[tuple[float, int, ActorScript | None, Actor]] = []
        self._pending: list[AgentEvent] = []
        self._actors: dict[str, Actor] = {}

    async def __aenter__(self) -> Self:
        self.store = Store.open(f"sqlite:///{self._folder / 'scenario.db'}")
        self.bus = EventBus(log=self.store)
        self.bus.subscribe(self._handle_worker_change, name="tickets", types=_CHANGE_EVENTS)
        self.tickets = TicketService(
            self.store, settings=self.settings, clock=self.time, publish=self._on_publish
        )
        self.judging = JudgeAndQueen(
            bus=self.bus,
            monitor=self.monitor,
            tickets=self.tickets,
            settings=self.settings,
            judge=self._judging,
            clock=self.time,
            storage=self._folder,
            registry=CollectorRegistry(),
            tracer=NoOpTracer(),
            monotonic=self.time,
            sleep=self.time.sleep,
            models=(self.judge, self.queen),
        )
        await self.judging.start()
        await self.settle()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.judging.stop()
        await self.bus.close()
        await self.store.close()

    # -- time ---------------------------------------------------------------------------------------

    def enter(self, actor: Actor, acts: Iterable[Happening]) -> ActorScript:
        """Start an actor now."""
        part = ActorScript(actor, iter(acts))
        self._actors[actor.agent_id] = actor
        self._schedule(0.0, part, actor)
        return part

    async def play(self, part: ActorScript) -> None:
        """Let time pass until ``part`` is over. The other actors continue."""
        while not part.over:
            await self._advance(math.inf)

    async def pass_time(self, seconds: float) -> None:
        """Let time pass. The actors continue."""
        until = self.time.now + seconds
        while await self._advance(until):
            pass

    async def _advance(self, until: float) -> bool:
        """Advance to the next event before ``until``, and return whether there was one."""
        next_action_at = self._timers[0][0] if self._timers else math.inf
        next_deadline = min(
            self.monitor.next_deadline() or math.inf, self.tickets.next_deadline() or math.inf
        )
        moment = min(next_action_at, next_deadline, self.time.next_waking())
        if moment > until or moment == math.inf:
            self.time.move_to(until)
            return False
        is_awake = self.time.move_to(moment)
        if next_deadline <= self.time.now:
            self._pending += self.monitor.advance(self.time.now)
            await self._publish_pending()
            await self.tickets.settle(self.time.now)
        if is_awake:
            await self.settle()
        while self._timers and self._timers[0][0] <= self.time.now:
            self._run_next_action()
            await self._publish_pending()
        await self._publish_pending()
        return True

    def _schedule(self, seconds: float, part: ActorScript | None, actor: Actor) -> None:
        heapq.heappush(self._timers, (self.time.now + seconds, next(self._order), part, actor))

    def _run_next_action(self) -> None:
        _, _, part, actor = heapq.heappop(self._timers)
        if part is None:
            self._send_heartbeat(actor)
            return
        for happening in part.acts:
            if isinstance(happening, Passes):
                self._schedule(happening.seconds, part, actor)
                return
            if isinstance(happening, HostSleeps):
                self._suspend_host(happening.seconds)
            else:
                self._apply(actor, happening)
            if self._pending:
                # Publish before the actor continues.
                self._schedule(0.0, part, actor)
                return
        part.over = True

    def _apply(self, actor: Actor, act: Emits) -> None:
        event = self._make_event(actor, act)
        if act.type is EventType.EXECUTION_STARTED and actor.beats:
            self._schedule(actor.beats, None, actor)
        self._pending += self.monitor.apply(event, self.time.now)
        if act.type in _CHANGE_EVENTS:
            self._pending.insert(0, event)

    def _send_heartbeat(self, actor: Actor) -> None:
        if actor.beats:
            self._pending += self.monitor.apply(
                self._make_event(actor, Emits(EventType.AGENT_HEARTBEAT, {"interval": actor.beats})),
                self.time.now,
            )
            self._schedule(actor.beats, None, actor)

    def _make_event(self, actor: Actor, act: Emits) -> AgentEvent:
        return AgentEvent(
            type=act.type,
            time=self.time.now,
            agent_id=actor.agent_id,
            session_id=actor.session_id,
            incarnation_id=actor.incarnation_id,
            node_id=actor.node_id,
            graph_id="worker",
            data=act.data,
        )

    def _suspend_host(self, seconds: float) -> None:
        self._timers = [(when + seconds, order, part, actor) for when, order, part, actor in self._timers]
        heapq.heapify(self._timers)
        self.time.now += seconds
        self.monitor.handle_clock_jump(self.time.now)

    # -- events -------------------------------------------------------------------------------------

    async def _publish_pending(self) -> None:
        """Publish the pending events as the service does, and let all subscribers handle them."""
        while self._pending:
            events, self._pending = self._pending, []
            await self.bus.publish(*events)
            await self.settle()

    def _on_publish(self, *events: AgentEvent) -> None:
        for event in events:
            if event.type is EventType.WORKER_ESCALATION_TICKET and self._meanwhile:
                actor = self._actors.get(event.agent_id)
                acts, self._meanwhile = self._meanwhile, []
                for happening in (h for act in acts for h in act(actor or Actor(event.agent_id))):
                    if isinstance(happening, Emits) and actor is not None:
                        self._apply(actor, happening)
        self.bus.fan_out(*events)

    async def _handle_worker_change(self, event: AgentEvent) -> None:
        health = self.monitor.get(event.agent_id, event.session_id)
        if health is not None:
            finding = reason_for_ticket(health)
            if finding is not None:
                self.findings.append(finding)
            await self.tickets.observe(health)

    async def all_tickets(self) -> list[EscalationTicket]:
        """Return all tickets, oldest first."""
        return (await self.tickets.history(1_000))[::-1]

    # -- settling -----------------------------------------------------------------------------------

    def _is_busy(self) -> bool:
        return bool(
            self.judge.in_flight or self.queen.in_flight or self.store.depth or self._count_disk_jobs()
        )

    def _count_disk_jobs(self) -> int:
        return self.judging.runtime.disk.pending

    def _count_runs(self) -> int:
        streams = ((HEALTH_CHECK, JUDGE_GRAPH), (TICKET_RECEIVER, QUEEN_GRAPH))
        runtime = self.judging.runtime
        return sum(runtime.get_stream(entry, graph_id=graph).pending for entry, graph in streams)

    async def settle(self) -> None:
        """
        Wait until all events are handled, the database is written, and all runs have ended.

        Raises:
            StageStuckError: A run is idle for several seconds, but does not wait for the virtual clock.
        """
        quiet, poll, since = 0, 0.0, time.monotonic()
        while quiet < _QUIET_ROUNDS:
            await self.bus.drain()
            await asyncio.sleep(poll)
            if self._is_busy():
                quiet, poll, since = 0, min(_MAX_POLL_SECONDS, poll + 0.0002), time.monotonic()
            elif self._count_runs():
                quiet, poll = 0, min(_MAX_POLL_SECONDS, poll + 0.0002)
                if time.monotonic() - since > _STUCK_SECONDS:
                    if self.time.next_waking() < math.inf:
                        return
                    raise StageStuckError(f"{self._count_runs()} runs of judge and queen do not end")
            else:
                quiet, poll = quiet + 1, 0.0
