"""
The judge as a job: the judge and the queen work on the user's Prometheus and Tempo, without the event bus.

Rules, prompts and tickets are the same as in the service. The workers are read from metrics at every check.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from opentelemetry.trace import Tracer, get_tracer
from prometheus_client import CollectorRegistry

from queenright.health.findings import Finding
from queenright.health.monitoring.monitor import HealthMonitor, WorkerHealth
from queenright.health.settings import HealthSettings
from queenright.health.store.store import Store
from queenright.health.ticket_service import TicketService
from queenright.health.tickets import ticket_table
from queenright.health.tickets.ticket import EscalationTicket, TicketStatus
from queenright.health.tickets.ticket_rules import reasons
from queenright.health.tickets.ticket_transaction import OnChange
from queenright.judge import ticket_policy
from queenright.judge.judge import HEALTH_CHECK, JUDGE_GRAPH
from queenright.judge.judge_and_queen import JudgeAndQueen
from queenright.judge.queen_triage import QUEEN_GRAPH, TICKET_RECEIVER, analyse_by_rules, pass_on
from queenright.judge.settings import JudgeSettings
from queenright.judge.stack.http import StackError
from queenright.judge.stack.prometheus import Prometheus
from queenright.judge.stack.reading import build_health, ended_health
from queenright.judge.stack.samples import Samples
from queenright.judge.stack.stale_tickets import (
    DOUBTFUL,
    DOWN_RECENTLY,
    SIGNS_OF_LIFE,
    MissingWorker,
    StaleTickets,
    explain_stale,
)
from queenright.judge.stack.targets import query_targets
from queenright.judge.stack.tempo import Tempo
from queenright.judge.stack.tools import stack_tools
from queenright.judge.stack.traces import TraceSpan
from queenright.judge.stack.workers import Sighting, find_workers, prometheus_time
from queenright.runtime.bus import EventBus
from queenright.runtime.events import Clock
from queenright.runtime.execution import Trigger
from queenright.runtime.llm.model import LLMProvider

_log = logging.getLogger(__name__)

_TRACES_PER_CHECK: Final = 50
_TRACE_AGE_SECONDS: Final = 24 * 3600.0
_NEVER_SECONDS: Final = 31_536_000.0
_GRACE_SECONDS: Final = 30.0
_NO_DECISION: Final = "Triage gave no decision in time; this is the analysis of the rules."


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The result of a check."""

    at: float
    """When the check ran, by the clock of Prometheus, in seconds since the epoch."""
    workers: tuple[WorkerHealth, ...]
    tickets: tuple[EscalationTicket, ...]
    """The open tickets, oldest first."""
    closed_tickets: tuple[EscalationTicket, ...]
    """The tickets that closed since the last check."""
    dismissed: int
    """The number of dismissed tickets whose condition still holds."""
    unknown: int
    """The number of workers that were not judged, because the model gave no valid answer."""
    missing: Mapping[str, MissingWorker] = field(default_factory=dict)
    """The workers, by ticket id, that have no metrics and may still be running. Their tickets stay open."""
    down: int = 0
    """The number of workers whose target is down, because their processes ended or died."""
    skipped_samples: int = 0
    """The number of invalid samples."""

    @property
    def is_blind(self) -> bool:
        """
        Whether no worker has metrics although there are tickets. Prometheus is then probably at fault.
        """
        return not self.workers and any(ticket.ticket_id in self.missing for ticket in self.tickets)


class ScrapedMonitor(HealthMonitor):
    """A monitor whose workers come from scraped metrics instead of events."""

    def replace(self, healths: Iterable[WorkerHealth]) -> None:
        """Replace all workers."""
        for key in list(self.keys()):
            self.forget(key)
        for health in healths:
            self._workers[health.key] = health
            self._sessions.setdefault(health.vitals.agent_id, []).append(health.vitals.session_id)


class StackJudge:
    """
    Checks workers, judges them, and triages their tickets, one check at a time.

    Args:
        selector: Label matchers that select the workers, such as ``{cluster="x"}``.
        removed_targets: Targets that an operator has removed. Their tickets close if they have no metrics.
        on_change: Called in the transaction of each change that must be notified, to write to the outbox.
        once: Whether no later check can notify the operator.
        models: The judge's and the queen's model, to use instead of those in ``judge``.
    """

    def __init__(
        self,
        *,
        prometheus: Prometheus,
        tempo: Tempo | None,
        settings: HealthSettings,
        judge: JudgeSettings,
        storage: Path,
        selector: str = "",
        removed_targets: Collection[str] = (),
        registry: CollectorRegistry | None = None,
        tracer: Tracer | None = None,
        on_change: OnChange | None = None,
        once: bool = False,
        models: tuple[LLMProvider, LLMProvider] | None = None,
        monotonic: Clock = time.monotonic,
    ) -> None:
        self._monotonic = monotonic
        self._prometheus = prometheus
        self._tempo = tempo
        self._settings = settings
        self._judge = judge
        self._storage = storage
        self._selector = selector
        self._removed_targets = frozenset(removed_targets)
        self._samples = Samples()
        self._stale = StaleTickets(storage / "unseen.json")
        self._registry = registry or CollectorRegistry()
        self._tracer = tracer or get_tracer("queenright")
        self._on_change = on_change
        self._runs_once = once
        self._models = models
        self._checked_at = 0.0
        self._monotonic_at = 0.0
        self._is_running = False

    def clock(self) -> float:
        """Return the time by the clock of Prometheus: that of the last check, plus the time since."""
        return self._checked_at + self._monotonic() - self._monotonic_at

    async def open(self) -> None:
        """
        Open the store.

        Raises:
            StoreError: The database cannot be used.
            ModelUnavailableError: A configured model cannot be used.
        """
        self._storage.mkdir(parents=True, exist_ok=True)
        self.store = await asyncio.to_thread(Store.open, f"sqlite:///{self._storage / 'judge.db'}")
        await asyncio.to_thread(self._stale.load)
        self.bus = EventBus()
        self.monitor = ScrapedMonitor(self._settings)
        self.tickets = TicketService(
            self.store,
            settings=self._settings,
            clock=self.clock,
            publish=self.bus.fan_out,
            on_change=self._on_change,
        )
        # Disable the judge's own timer, because it would judge stale metrics.
        never = self._settings.judge.model_copy(update={"interval_seconds": _NEVER_SECONDS})
        self._judging = JudgeAndQueen(
            bus=self.bus,
            monitor=self.monitor,
            tickets=self.tickets,
            settings=self._settings.model_copy(update={"judge": never}),
            judge=self._judge,
            clock=self.clock,
            storage=self._storage,
            registry=self._registry,
            tracer=self._tracer,
            models=self._models,
            read_tools=stack_tools(prometheus=self._prometheus, traces=self._tempo, clock=self.clock),
        )

    async def close(self) -> None:
        """Stop. Decisions are already in the store."""
        if self._is_running:
            await self._judging.stop()
        await self.bus.close()
        await self.store.close()
        await self._prometheus.aclose()
        if self._tempo is not None:
            await self._tempo.aclose()

    async def check(self) -> CheckResult:
        """
        Check all workers once: judge them, triage tickets, and close tickets whose condition has cleared.

        Raises:
            StackError: Prometheus cannot be queried. Nothing has changed.
            StoreError: The database is unavailable.
        """
        now = await prometheus_time(self._prometheus)
        skipped_before = self._samples.skipped_count
        sightings = await find_workers(
            self._prometheus, self._settings, now, self._selector, samples=self._samples
        )
        live_tickets = await self._list_live_tickets()
        _end_grace(sightings, live_tickets)
        missing = await self._find_missing(live_tickets, sightings, now)
        self._checked_at, self._monotonic_at = now, self._monotonic()
        healths = await self._read_health(sightings, now)
        self.monitor.replace(healths)
        if not self._is_running:
            # Start only when the workers are known, because the start triages the tickets from before.
            await self._judging.start()
            self._is_running = True
        closures = await self._update_tickets(now, missing)
        unknown = await self._judge_and_triage()
        if self._runs_once:
            await self._pass_on()
        return CheckResult(
            at=now,
            workers=tuple(healths),
            tickets=tuple(self.tickets.open_tickets()),
            closed_tickets=tuple(closures),
            dismissed=await self._count_dismissed(),
            unknown=unknown,
            missing=await asyncio.to_thread(self._stale.note, missing, now),
            down=sum(sighting.is_down for sighting in sightings),
            skipped_samples=self._samples.skipped_count - skipped_before,
        )

    # -- workers ------------------------------------------------------------------------------------

    async def _find_missing(
        self, live: Iterable[EscalationTicket], sightings: Sequence[Sighting], now: float
    ) -> dict[str, str]:
        """
        Return why the workers of tickets have no usable metrics, by ticket id.

        Raises:
            StackError: Prometheus cannot be queried.
        """
        by_key = {sighting.key: sighting for sighting in sightings}
        absent_tickets, missing = [], {}
        for ticket in live:
            sighting = by_key.get((ticket.agent_id, ticket.session_id))
            if sighting is None and ticket.session_id not in self._removed_targets:
                absent_tickets.append(ticket)
                continue
            if sighting is None or self._list_reasons(sighting, now):
                continue
            if sighting.is_doubtful:
                missing[ticket.ticket_id] = DOUBTFUL
            elif sighting.is_down and ticket.session_id not in self._removed_targets:
                missing[ticket.ticket_id] = DOWN_RECENTLY
        targets = {ticket.session_id for ticket in absent_tickets}
        answer = await query_targets(self._prometheus, targets, SIGNS_OF_LIFE, self._selector, now)
        for ticket in absent_tickets:
            if reason := explain_stale(ticket.agent_id, ticket.session_id, answer):
                missing[ticket.ticket_id] = reason
        return missing

    def _list_reasons(self, sighting: Sighting, now: float) -> list[Finding]:
        return reasons(build_health(sighting, self._settings, now))

    async def _read_health(self, sightings: Sequence[Sighting], now: float) -> list[WorkerHealth]:
        counts = Counter(sighting.agent for sighting in sightings)
        healths, traces = [], 0
        for sighting in sightings:
            health = build_health(sighting, self._settings, now)
            is_suspect = health.findings or sighting.bad_steps >= self._settings.bands.warning
            # A trace does not name its process, so it is ambiguous if the agent has several processes.
            if (
                is_suspect
                and self._tempo is not None
                and counts[sighting.agent] == 1
                and traces < _TRACES_PER_CHECK
            ):
                traces += 1
                trace_id, spans = await self._find_newest_trace(self._tempo, sighting, now)
                health = build_health(sighting, self._settings, now, spans=spans, trace_id=trace_id)
            healths.append(health)
        return healths

    async def _find_newest_trace(
        self, tempo: Tempo, sighting: Sighting, now: float
    ) -> tuple[str, Sequence[TraceSpan]]:
        """
        Return the id and spans of the worker's newest trace, or empty values if Tempo does not answer. A
        trace is optional.
        """
        try:
            trace_id = await tempo.newest(sighting.agent, now - _TRACE_AGE_SECONDS, now)
            return trace_id, (await tempo.trace(trace_id) if trace_id else [])
        except StackError as error:
            _log.warning("cannot get a trace of %s: %s", sighting.agent, error)
            return "", []

    # -- judging ------------------------------------------------------------------------------------

    async def _update_tickets(self, now: float, missing: Collection[str]) -> list[EscalationTicket]:
        """Update the live tickets except those in ``missing``, and return the open tickets that closed."""
        tickets = [ticket for ticket in await self._list_live_tickets() if ticket.ticket_id not in missing]
        for ticket in tickets:
            agent, target = ticket.agent_id, ticket.session_id
            health = self.monitor.get(agent, target) or ended_health(agent, target, self._settings, now)
            await self.tickets.observe(health)
        await self.tickets.settle(self.clock(), exclude=missing)
        return [
            updated_ticket
            for ticket in tickets
            if (updated_ticket := self.tickets.get(ticket.ticket_id)) is not None
            and not updated_ticket.is_live
            and ticket.is_open
        ]

    async def _list_live_tickets(self) -> list[EscalationTicket]:
        return await self.store.read(ticket_table.live_tickets)

    async def _count_dismissed(self) -> int:
        return sum(ticket.status is TicketStatus.DISMISSED for ticket in await self._list_live_tickets())

    async def _judge_and_triage(self) -> int:
        """Run the judge and wait for triage. Return the number of workers that were not judged."""
        stream = self._judging.runtime.get_stream(HEALTH_CHECK, graph_id=JUDGE_GRAPH)
        result = await stream.fire(Trigger(tick=0)).wait()
        if not result.succeeded:
            raise StackError("the judge", f"the check failed: {result.error}")
        outcomes = result.value or {}
        triage = self._judging.runtime.get_stream(TICKET_RECEIVER, graph_id=QUEEN_GRAPH)
        try:
            async with asyncio.timeout(self._settings.judge.triage_timeout_seconds + _GRACE_SECONDS):
                await self.bus.drain()
                while (executions := triage.executions) and not all(run.done for run in executions):
                    await asyncio.gather(*(run.wait() for run in executions))
                    await self.bus.drain()
        except TimeoutError:
            _log.warning("triage takes too long; undecided tickets are triaged at the next check")
        return sum(outcome == "unknown" for outcome in outcomes.values())

    async def _pass_on(self) -> None:
        """Notify the operator of undecided binding tickets, because the bypass time ends after the job."""
        await self.tickets.intervene_all(
            [
                pass_on(ticket, f"{analyse_by_rules(ticket)} {_NO_DECISION}")
                for ticket in self.tickets.open_tickets()
                if is_undecided(ticket) and ticket_policy.is_binding(ticket.severity)
            ]
        )


def is_undecided(ticket: EscalationTicket) -> bool:
    """Return whether a ticket's condition holds and triage has not decided it."""
    return ticket.status is TicketStatus.OPEN and ticket.condition_cleared_at is None


def _end_grace(sightings: Iterable[Sighting], tickets: Iterable[EscalationTicket]) -> None:
    """End the start grace of workers with a ticket. They only seem new after a gap in the metrics."""
    ticket_keys = {(ticket.agent_id, ticket.session_id) for ticket in tickets}
    for sighting in sightings:
        if sighting.key in ticket_keys:
            sighting.is_in_grace = False
