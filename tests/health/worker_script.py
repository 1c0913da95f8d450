"""A simulated worker that reports events to a real monitor, on a clock that the test advances."""

from __future__ import annotations

from typing import Any

from queenright.health.detection.health_state import HealthState
from queenright.health.findings import Finding, FindingKind
from queenright.health.monitoring.monitor import HealthMonitor, WorkerHealth
from queenright.health.settings import HealthSettings
from queenright.runtime.events import AgentEvent, EventType

START = 1_700_000_000.0


class WorkerScript:
    """One worker and its monitor. Each report first advances the clock by ``after`` seconds."""

    def __init__(
        self,
        *,
        agent: str = "agent",
        session: str = "session",
        settings: HealthSettings | None = None,
        monitor: HealthMonitor | None = None,
        at: float = START,
    ) -> None:
        self.monitor = monitor or HealthMonitor(settings or HealthSettings())
        self.now = at
        self.agent, self.session, self.incarnation, self.node = agent, session, "i1", "work"
        self.worker_events: list[AgentEvent] = []
        self.monitor_events: list[AgentEvent] = []
        self.turn = 0
        self.trace = ""
        self.lag = 0.0
        """Seconds by which the worker's clock is behind the monitor's."""

    def report_event(
        self, type_: EventType, data: dict[str, Any] | None = None, *, after: float = 1.0
    ) -> None:
        self.now += after
        event = AgentEvent(
            type=type_,
            time=self.now - self.lag,
            agent_id=self.agent,
            session_id=self.session,
            incarnation_id=self.incarnation,
            node_id=self.node,
            trace_id=self.trace,
            span_id="00f067aa0ba902b7" if self.trace else "",
            data=data or {},
        )
        self.worker_events.append(event)
        self.monitor_events += self.monitor.apply(event, self.now)

    def start(self, **data: Any) -> WorkerScript:
        self.report_event(EventType.EXECUTION_STARTED, {"start_records": True, **data}, after=0.0)
        return self

    def report_step(
        self, verdict: str | None = None, *, times: int = 1, after: float = 1.0, **data: Any
    ) -> None:
        for _ in range(times):
            self.report_event(EventType.STEP_COMPLETED, {"verdict": verdict, **data}, after=after)

    def report_call(
        self,
        tool: str = "search",
        args: str | None = "a",
        result: str | None = "r",
        *,
        after: float = 1.0,
        turn: Any = None,
        outcome: str = "ok",
        **data: Any,
    ) -> None:
        self.turn += 1
        self.report_event(
            EventType.TOOL_CALL_COMPLETED,
            {
                "tool": tool,
                "args_hash": args,
                "result_hash": result,
                "outcome": outcome,
                "turn": self.turn if turn is None else turn,
                **data,
            },
            after=after,
        )

    def report_wait(self, reason: str | None, *, after: float = 1.0) -> None:
        self.report_event(EventType.WORKER_WAITING, {"reason": reason}, after=after)

    def stay_silent(self, seconds: float) -> list[AgentEvent]:
        """Advance the clock, and evaluate the workers that are due."""
        self.now += seconds
        events = self.monitor.advance(self.now)
        self.monitor_events += events
        return events

    @property
    def health(self) -> WorkerHealth:
        health = self.monitor.get(self.agent, self.session)
        assert health is not None
        return health

    @property
    def state(self) -> HealthState:
        return self.health.state

    def get_finding(self, kind: FindingKind) -> Finding | None:
        return next((finding for finding in self.health.findings if finding.kind is kind), None)

    def list_finding_kinds(self) -> set[FindingKind]:
        return {finding.kind for finding in self.health.findings}
