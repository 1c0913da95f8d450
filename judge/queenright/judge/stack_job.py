"""
The judge as a job: judge and queen on the user's own Prometheus and Tempo, with no access to our bus.

They are the same judge and queen, with the same rules, prompts and tickets. Only their eyes are others:
the workers are found and read anew, by metrics, at every look.
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

from queenright.health import ticket_table
from queenright.health.findings import Finding
from queenright.health.monitor import HealthMonitor, WorkerHealth
from queenright.health.settings import HealthSettings
from queenright.health.store import Store
from queenright.health.ticket_rules import reasons
from queenright.health.ticket_service import OnChange, TicketService
from queenright.health.tickets import EscalationTicket, TicketError, TicketStatus
from queenright.judge import policy
from queenright.judge.judge import HEALTH_CHECK, JUDGE_GRAPH
from queenright.judge.judge_and_queen import JudgeAndQueen
from queenright.judge.queen import QUEEN_GRAPH, TICKET_RECEIVER
from queenright.judge.settings import RULES, JudgeSettings
from queenright.judge.stack.http import StackError
from queenright.judge.stack.prometheus import Prometheus
from queenright.judge.stack.reading import health_of, over
from queenright.judge.stack.samples import Samples
from queenright.judge.stack.stale_tickets import (
    DOUBTFUL,
    DOWN_LATELY,
    SIGNS_OF_LIFE,
    StaleTickets,
    Unseen,
    explain_stale,
)
from queenright.judge.stack.targets import ask_again
from queenright.judge.stack.tempo import Tempo
from queenright.judge.stack.tools import stack_tools
from queenright.judge.stack.traces import TraceSpan
from queenright.judge.stack.workers import Sighting, find_workers, prometheus_time
from queenright.runtime.bus import EventBus
from queenright.runtime.events import Clock
from queenright.runtime.execution import Trigger
from queenright.runtime.llm.model import LLMProvider

_log = logging.getLogger(__name__)

_TRACES_A_LOOK: Final = 50
_TRACES_BACK: Final = 24 * 3600.0
_NEVER: Final = 31_536_000.0
_GRACE: Final = 30.0
_NO_DECISION: Final = "Triage gave no decision when this was seen; it comes to you as the rules see it."


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What one look came to."""

    at: float
    """Prometheus' time."""
    workers: tuple[WorkerHealth, ...]
    tickets: tuple[EscalationTicket, ...]
    """Those that a person should know of, oldest first."""
    closed: tuple[EscalationTicket, ...]
    """Those that are over since the look before."""
    dismissed: int
    """Tickets about what still holds that triage kept from the operator."""
    unknown: int
    """Workers that nobody could judge: the model gave no answer that can be used."""
    unseen: Mapping[str, Unseen] = field(default_factory=dict)
    """Tickets, by id, of whose workers nothing is seen, nor that they are no more: they stay as they are."""
    down: int = 0
    """Workers whose target is down: their processes ended, or died."""
    skipped: int = 0
    """Samples that were left out, as no worker can have such."""

    @property
    def blind(self) -> bool:
        """Nobody is seen, though there are tickets: that is more likely Prometheus' trouble than an end."""
        return not self.workers and any(ticket.ticket_id in self.unseen for ticket in self.tickets)


class ScrapedMonitor(HealthMonitor):
    """A monitor that is told who there is and how they are, where others hear of it event by event."""

    def show(self, healths: Iterable[WorkerHealth]) -> None:
        """Forget everybody, and know these."""
        for key in list(self.keys()):
            self.forget(key)
        for health in healths:
            self._workers[health.key] = health
            self._sessions.setdefault(health.vitals.agent_id, []).append(health.vitals.session_id)


class StackJudge:
    """
    Looks, judges and triages, one look at a time.

    Args:
        prometheus: Where the workers are found.
        tempo: Where evidence about them is, if anywhere.
        settings: The thresholds.
        judge: Which models think.
        storage: Tickets, trends and conversations are kept here from look to look.
        selector: Label matchers, ``{cluster="x"}``, for the workers that are to be looked at.
        gone: Targets that are no more, as a person says: their tickets close if nothing is seen of them.
        registry: Where the metrics live.
        tracer: Makes the spans.
        on_change: Is told, in the transaction, of what the outside must hear: the outbox.
        once: There is one look only: nothing comes after it that would tell the operator later.
        models: In place of those that ``judge`` names: (judge's, queen's).
        monotonic: The clock of the time between two looks.
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
        gone: Collection[str] = (),
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
        self._gone = frozenset(gone)
        self._samples = Samples()
        self._unseen = StaleTickets(storage / "unseen.json")
        self._registry = registry or CollectorRegistry()
        self._tracer = tracer or get_tracer("queenright")
        self._on_change = on_change
        self._once = once
        self._models = models
        self._seen_at = 0.0
        self._monotonic_at = 0.0
        self._started = False

    def clock(self) -> float:
        """Return Prometheus' time: that of the last look, and what has passed since."""
        return self._seen_at + self._monotonic() - self._monotonic_at

    async def open(self) -> None:
        """
        Open the store.

        Raises:
            StoreError: The database cannot be used.
            ModelUnavailableError: A model is set that cannot be used here.
        """
        self._storage.mkdir(parents=True, exist_ok=True)
        self.store = await asyncio.to_thread(Store.open, f"sqlite:///{self._storage / 'judge.db'}")
        await asyncio.to_thread(self._unseen.load)
        self.bus = EventBus()
        self.monitor = ScrapedMonitor(self._settings)
        self.tickets = TicketService(
            self.store,
            settings=self._settings,
            clock=self.clock,
            publish=self.bus.fan_out,
            on_change=self._on_change,
        )
        # It looks when it is told to: its own timer would judge what is not fresh.
        never = self._settings.judge.model_copy(update={"interval_seconds": _NEVER})
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
        """Stop; what was decided is in the store already."""
        if self._started:
            await self._judging.stop()
        await self.bus.close()
        await self.store.close()
        await self._prometheus.aclose()
        if self._tempo is not None:
            await self._tempo.aclose()

    async def look(self) -> Look:
        """
        Look at everybody once: judge who needs it, triage what comes of it, close what is over.

        Raises:
            StackError: Prometheus could not be asked: nothing is known, and nothing was changed.
            StoreError: The database refused.
        """
        now = await prometheus_time(self._prometheus)
        skipped = self._samples.skipped
        sightings = await find_workers(
            self._prometheus, self._settings, now, self._selector, samples=self._samples
        )
        live = await self._live()
        _know_again(sightings, live)
        unseen = await self._what_is_unseen(live, sightings, now)
        self._seen_at, self._monotonic_at = now, self._monotonic()
        healths = await self._read(sightings, now)
        self.monitor.show(healths)
        if not self._started:
            # Not before somebody is known: tickets of before are looked at anew at once.
            await self._judging.start()
            self._started = True
        closed = await self._bring_up_to_date(now, unseen)
        unknown = await self._check()
        if self._once:
            await self._pass_on()
        return Look(
            at=now,
            workers=tuple(healths),
            tickets=tuple(self.tickets.open_tickets()),
            closed=tuple(closed),
            dismissed=await self._dismissed(),
            unknown=unknown,
            unseen=await asyncio.to_thread(self._unseen.note, unseen, now),
            down=sum(sighting.down for sighting in sightings),
            skipped=self._samples.skipped - skipped,
        )

    # -- seeing -------------------------------------------------------------------------------------

    async def _what_is_unseen(
        self, live: Iterable[EscalationTicket], sightings: Sequence[Sighting], now: float
    ) -> dict[str, str]:
        """
        Return the tickets, by id, of whose workers nothing is known, and why.

        Raises:
            StackError: Prometheus could not be asked.
        """
        seen = {sighting.key: sighting for sighting in sightings}
        left, unseen = [], {}
        for ticket in live:
            sighting = seen.get((ticket.worker_agent_id, ticket.worker_session_id))
            if sighting is None and ticket.worker_session_id not in self._gone:
                left.append(ticket)
                continue
            if sighting is None or self._reasons(sighting, now):
                continue
            if sighting.doubtful:
                unseen[ticket.ticket_id] = DOUBTFUL
            elif sighting.down and ticket.worker_session_id not in self._gone:
                unseen[ticket.ticket_id] = DOWN_LATELY
        targets = {ticket.worker_session_id for ticket in left}
        told = await ask_again(self._prometheus, targets, SIGNS_OF_LIFE, self._selector, now)
        for ticket in left:
            if why := explain_stale(ticket.worker_agent_id, ticket.worker_session_id, told):
                unseen[ticket.ticket_id] = why
        return unseen

    def _reasons(self, sighting: Sighting, now: float) -> list[Finding]:
        return reasons(health_of(sighting, self._settings, now))

    async def _read(self, sightings: Sequence[Sighting], now: float) -> list[WorkerHealth]:
        often = Counter(sighting.agent for sighting in sightings)
        healths, traces = [], 0
        for sighting in sightings:
            health = health_of(sighting, self._settings, now)
            suspect = health.findings or sighting.bad_steps >= self._settings.bands.warning
            # Which process a trace is of it does not say: of an agent that runs twice it proves nothing.
            if suspect and self._tempo is not None and often[sighting.agent] == 1 and traces < _TRACES_A_LOOK:
                traces += 1
                trace_id, spans = await self._newest_trace(self._tempo, sighting, now)
                health = health_of(sighting, self._settings, now, spans=spans, trace_id=trace_id)
            healths.append(health)
        return healths

    async def _newest_trace(
        self, tempo: Tempo, sighting: Sighting, now: float
    ) -> tuple[str, Sequence[TraceSpan]]:
        """Return the worker's newest trace; nothing where Tempo does not answer: it is a help, no need."""
        try:
            trace_id = await tempo.newest(sighting.agent, now - _TRACES_BACK, now)
            return trace_id, (await tempo.trace(trace_id) if trace_id else [])
        except StackError as error:
            _log.warning("there is no trace of %s: %s", sighting.agent, error)
            return "", []

    # -- judging ------------------------------------------------------------------------------------

    async def _bring_up_to_date(self, now: float, unseen: Collection[str]) -> list[EscalationTicket]:
        """Let what is seen now act on the tickets of before, but those ``unseen``; return what it closed."""
        before = [ticket for ticket in await self._live() if ticket.ticket_id not in unseen]
        for ticket in before:
            agent, target = ticket.worker_agent_id, ticket.worker_session_id
            health = self.monitor.get(agent, target) or over(agent, target, self._settings, now)
            await self.tickets.observe(health)
        await self.tickets.settle(self.clock(), exclude=unseen)
        return [
            after
            for ticket in before
            if (after := self.tickets.get(ticket.ticket_id)) is not None and not after.live and ticket.is_open
        ]

    async def _live(self) -> list[EscalationTicket]:
        return await self.store.read(ticket_table.live_tickets)

    async def _dismissed(self) -> int:
        return sum(ticket.status is TicketStatus.DISMISSED for ticket in await self._live())

    async def _check(self) -> int:
        """Have everybody judged who needs it, and all tickets triaged; return how many nobody could judge."""
        stream = self._judging.runtime.get_stream(HEALTH_CHECK, graph_id=JUDGE_GRAPH)
        result = await stream.fire(Trigger(tick=0)).wait()
        if not result.succeeded:
            raise StackError("the judge", f"its check failed: {result.error}")
        outcomes = result.value or {}
        triage = self._judging.runtime.get_stream(TICKET_RECEIVER, graph_id=QUEEN_GRAPH)
        try:
            async with asyncio.timeout(self._settings.judge.triage_timeout_seconds + _GRACE):
                await self.bus.drain()
                while (waiting := triage.executions) and not all(run.done for run in waiting):
                    await asyncio.gather(*(run.wait() for run in waiting))
                    await self.bus.drain()
        except TimeoutError:
            _log.warning("triage takes too long; what it has not decided is triaged at the next look")
        return sum(outcome == "unknown" for outcome in outcomes.values())

    async def _pass_on(self) -> None:
        """Tell the operator of what binds and has no decision: the bypass time would end after the job."""
        for ticket in self.tickets.open_tickets():
            if not undecided(ticket) or not policy.binding(ticket.severity):
                continue
            analysis = policy.analysis(ticket.model_dump(mode="json"))
            try:
                await self.tickets.intervene(
                    ticket.ticket_id,
                    f"{analysis} {_NO_DECISION}",
                    ticket.severity.value,
                    by="rules",
                    untriaged=True,
                    graph_id=QUEEN_GRAPH,
                    stream_id=f"{QUEEN_GRAPH}::{TICKET_RECEIVER}",
                    model=RULES,
                )
            except TicketError as error:
                _log.info("ticket %s was decided meanwhile: %s", ticket.ticket_id, error)


def undecided(ticket: EscalationTicket) -> bool:
    """Whether what a ticket is about still holds, and triage has not said who is to know of it."""
    return ticket.status is TicketStatus.OPEN and ticket.condition_cleared_at is None


def _know_again(sightings: Iterable[Sighting], tickets: Iterable[EscalationTicket]) -> None:
    """
    Let nobody who has a ticket pass for new because Prometheus had a gap.

    A process that is new says so itself, where it tells its start.
    """
    known = {(ticket.worker_agent_id, ticket.worker_session_id) for ticket in tickets}
    for sighting in sightings:
        if sighting.key in known:
            sighting.in_grace = False
