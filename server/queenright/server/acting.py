"""Acting on workers, wired together: breakers, instructions, interventions, recovery."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final

from queenright.health.audit_key import AuditKey
from queenright.health.breakers.breaker import BreakerState
from queenright.health.breakers.store import BreakerStore
from queenright.health.findings import HealthState
from queenright.health.interventions.approvals import Approvals
from queenright.health.interventions.instructions import Instructions
from queenright.health.interventions.permissions import Permissions
from queenright.health.interventions.runtime_control import RuntimeControl
from queenright.health.interventions.service import InterventionService
from queenright.health.interventions.storm import StormWatch
from queenright.health.interventions.switch import EmergencyStop
from queenright.health.interventions.target import Target
from queenright.health.monitor import HealthMonitor, WorkerHealth
from queenright.health.recovery.runtime_respawner import RuntimeRespawner
from queenright.health.recovery.service import RecoveryService
from queenright.health.service import HealthMonitoringService
from queenright.health.store import Store, StoreError
from queenright.instrumentation.identity import new_id
from queenright.judge.judge_and_queen import JudgeAndQueen
from queenright.judge.queen_actions import WorkerActions
from queenright.runtime.bus import EventBus
from queenright.runtime.events import AgentEvent, Clock, EventType
from queenright.server.agents.control import LoadedControl, LoadedRespawner, Runtimes
from queenright.server.ops.secret_files import orchestrators_secret, respawners_secret
from queenright.server.settings import Settings
from queenright.server.webhooks.orchestrator import OrchestratorWebhook
from queenright.server.webhooks.respawn import RespawnWebhook

_log = logging.getLogger(__name__)

_EXPIRE_SECONDS: Final = 30.0

_AT_ONCE: Final = 200
"""Workers looked at before others have the loop: some 5 ms."""


class Acting:
    """
    Everything that does something to workers.

    It is made before judge and queen, who are given ``breakers``, ``decide`` and ``hands``; then ``join``.

    Args:
        store: Where it is all kept.
        settings: All settings.
        monitor: Knows the workers.
        bus: Carries the events.
        ingest: Takes in events as from a worker; durable on return.
        clock: Seconds since the epoch.

    Raises:
        AuditKeyError, InvalidSecretError: A file that signs something cannot be used.
    """

    interventions: InterventionService

    def __init__(
        self,
        store: Store,
        settings: Settings,
        *,
        monitor: HealthMonitor,
        bus: EventBus,
        ingest: Callable[[Sequence[AgentEvent]], Awaitable[None]],
        clock: Clock,
    ) -> None:
        self._store = store
        self._settings = settings.health_monitoring
        self._api = str(settings.alerting.console_url)
        self._monitor = monitor
        self._bus = bus
        self._ingest = ingest
        self._clock = clock
        publish = bus.fan_out
        self._key = AuditKey.load_or_create(settings.storage)
        self._breakers = BreakerStore(
            store, settings=self._settings.circuit_breaker, clock=clock, publish=publish
        )
        self.breakers = self._breakers.registry
        self.instructions = Instructions(
            store,
            clock=clock,
            closed=lambda instruction: self.interventions.answered(instruction),
            withheld=self._withheld,
        )
        self.stop_switch = EmergencyStop(store, clock=clock, publish=publish)
        self.storm = StormWatch(self._settings.intervention.storm, ids=new_id)
        termination = self._settings.intervention.termination
        self.approvals = Approvals(
            store,
            timeout=termination.approval_timeout_seconds,
            monitor=monitor,
            terminate=lambda *who, **how: self.interventions.terminate(*who, **how),
            stopped=lambda: self.stop_switch.reason,
            clock=clock,
            publish=publish,
        )
        self.permissions = Permissions(
            self._settings.intervention.permission.wait_seconds,
            answer=lambda *what, **how: self.interventions.answer_permission(*what, **how),
            clock=clock,
        )
        self.hands = WorkerActions(
            lambda: self.interventions, self.approvals, monitor=monitor, settings=termination
        )
        """What the queen may do to workers."""
        self._webhook = self._orchestrator()
        self._respawn_webhook: RespawnWebhook | None = None
        self._quiet_until = 0.0

    def join(self, judging: JudgeAndQueen, loaded: Runtimes = tuple) -> None:
        """Wire what needs the runtime that judge and queen are on, and those of agents that are loaded."""
        publish = self._bus.fan_out
        ours = RuntimeRespawner(judging.runtime)
        if (url := self._settings.recovery.webhook_url) is not None:
            secret = respawners_secret(self._settings)
            self._respawn_webhook = RespawnWebhook(url, self._store, local=ours, secret=secret)
        elsewhere = [] if self._respawn_webhook is None else [self._respawn_webhook]
        self.recovery = RecoveryService(
            self._store,
            settings=self._settings,
            monitor=self._monitor,
            respawners=[ours, LoadedRespawner(loaded), *elsewhere],
            breakers=self.breakers,
            clock=self._clock,
            publish=publish,
            held=lambda: self.stop_switch.reason,
            stop=lambda target, reason: self.interventions.take_down(target, reason, by="recovery"),
        )
        self.interventions = InterventionService(
            self._store,
            settings=self._settings,
            monitor=self._monitor,
            controls=[RuntimeControl(judging.runtime), LoadedControl(loaded), self.instructions],
            recovery=self.recovery,
            stop=self.stop_switch,
            storm=self.storm,
            clock=self._clock,
            publish=publish,
            sign=self._key.sign,
            orchestrator=self._webhook.ask if self._webhook is not None else None,
        )
        self.health = HealthMonitoringService(
            self._store,
            monitor=self._monitor,
            interventions=self.interventions,
            recovery=self.recovery,
            breakers=self.breakers,
            written=self._breakers.flush,
            stop=self.stop_switch,
            ingest=self._ingest,
            clock=self._clock,
        )

    def _orchestrator(self) -> OrchestratorWebhook | None:
        escalation = self._settings.intervention.escalation
        if escalation.orchestrator != "webhook" or escalation.webhook_url is None:
            return None
        secret = orchestrators_secret(self._settings)
        return OrchestratorWebhook(escalation.webhook_url, api=self._api, secret=secret)

    def _withheld(self, target: Target) -> str | None:
        """Return why a worker must not be told anything now, although something waits for it."""
        if (reason := self.stop_switch.reason) is not None:
            return reason
        worker = self._monitor.get(*target.key)
        waits = worker is not None and worker.vitals.waiting is not None
        return "it waits rightly" if waits else None

    async def decide(self, escalation_id: str, decision: Any, **said: Any) -> object:
        """Carry out what the queen decides on an escalation."""
        return await self.interventions.decide(escalation_id, decision, **said)

    # -- life ---------------------------------------------------------------------------------------

    async def load(self, away: float = 0.0) -> None:
        """
        Know again how everything stood; the monitor knows its workers by now.

        Args:
            away: For how many seconds nobody was here: they count towards no wait.
        """
        await self._breakers.load()
        self._know_breakers_again()
        await self.instructions.load()
        await self.stop_switch.load()
        self._hold(self._clock())
        await self.recovery.load()
        await self.interventions.load()
        await self.interventions.was_away(away)
        await self.approvals.load()

    def _know_breakers_again(self) -> None:
        """
        Let the monitor know of breakers that opened before the events which were read again.

        Nothing is logged, and what it says of them was said when they opened.
        """
        now = self._clock()
        for breaker in self.breakers.all():
            if breaker.agent_id and breaker.state is not BreakerState.CLOSED:
                self._monitor.apply(
                    AgentEvent(
                        type=EventType.CIRCUIT_BREAKER_STATE_CHANGED,
                        time=now,
                        agent_id=breaker.agent_id,
                        data={"name": breaker.name, "to": breaker.state.value},
                    ),
                    now,
                )

    def tasks(self) -> dict[str, Coroutine[Any, Any, None]]:
        """Return what runs for as long as the service does, by name."""
        return {"breakers": self._breakers.run(), "instructions": self._expire()}

    async def close(self) -> None:
        """Leave off; what was begun is gone on with after the next start."""
        await self.approvals.close()
        await self.interventions.close()
        await self.recovery.close()
        await self._breakers.close()
        if self._webhook is not None:
            await self._webhook.close()
        if self._respawn_webhook is not None:
            await self._respawn_webhook.close()

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(_EXPIRE_SECONDS)
            try:
                await self.instructions.expire(self._clock())
            except StoreError as error:
                _log.error("instructions that are over cannot be let go of, and are tried again: %s", error)

    # -- time and events ----------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """Return when ``advance`` has something to do; None if time alone brings nothing."""
        quiet = [self.recovery.next_deadline(), self.approvals.next_deadline()]
        if self._clock() < self._quiet_until:
            quiet = [at if at is None or at > self._clock() else self._quiet_until for at in quiet]
        deadlines = (self.interventions.next_deadline(), self.recovery.next_asked_for(), *quiet)
        return min((at for at in deadlines if at is not None), default=None)

    async def advance(self, now: float) -> None:
        """Begin what is due; does not wait until it is done."""
        await self.recovery.advance(now, begin=now >= self._quiet_until)
        await self.interventions.advance(now)
        await self.approvals.advance(now, begin=now >= self._quiet_until)

    def clock_jumped(self, now: float, by: float) -> None:
        """Let some time pass before anything is done, and every wait go on: ages mean nothing now."""
        self._hold(now)
        self.interventions.clock_jumped(now)
        self.recovery.clock_jumped(by)

    def _hold(self, now: float) -> None:
        self._quiet_until = now + self._settings.intervention.quiet_seconds
        self.interventions.hold_until(self._quiet_until)

    async def look_at_all(self) -> None:
        """Look at everybody who is in trouble, a safety net below what changes say."""
        for number, key in enumerate(list(self._monitor.keys())):
            worker = self._monitor.get(*key)
            if worker is not None and worker.state.rank >= HealthState.STUCK.rank:
                self.interventions.consider(worker)
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)

    async def changed(self, worker: WorkerHealth) -> None:
        """Let a worker that changed act on its recovery and its ladder."""
        await self.recovery.observe(worker)
        self.interventions.consider(worker)
        await self.approvals.observe(worker)

    async def ticket_decided(self, event: AgentEvent) -> None:
        """Let go of what was asked about a ticket that was dismissed, or has closed."""
        if event.type is EventType.TICKET_RESOLVED or event.data.get("decision") == "dismiss":
            became = str(event.data.get("status", "dismissed")).replace("_", " ")
            await self.approvals.ticket_closed(str(event.data["ticket_id"]), f"its ticket is {became}")
