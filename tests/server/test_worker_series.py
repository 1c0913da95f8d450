"""The worker series of the service. Each known agent without metrics of its own is counted once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from queenright.health.monitoring.monitor import HealthMonitor
from queenright.health.settings import HealthSettings
from queenright.instrumentation.metrics import MAX_AGENTS
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.build import build
from queenright.server.metrics.metrics import ServiceMetrics
from queenright.server.metrics.worker_series import KEPT_SECONDS, WorkerSeries
from queenright.server.service import Service
from queenright.server.settings import load_settings

START_TIME = 1_000_000.0


class MonitoredWorkers:
    """A monitor, and the worker series of its workers, at a time that tests set."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.now = START_TIME
        self.monitor = HealthMonitor(HealthSettings())
        self.series = WorkerSeries(
            self.registry, self.monitor.workers, self.monitor.get, clock=lambda: self.now
        )

    def apply_event(
        self, kind: EventType, agent: str = "bee", session: str = "s", node: str = "", **data: Any
    ) -> None:
        event = AgentEvent(
            type=kind, time=self.now, agent_id=agent, session_id=session, node_id=node, data=data
        )
        for applied_event in [event, *self.monitor.apply(event, self.now)]:
            self.series.count(applied_event)

    def read_value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"queenright_worker_{name}", {"agent": "bee", **labels})

    def list_agents(self, name: str) -> set[str]:
        return {
            sample.labels["agent"]
            for family in self.registry.collect()
            for sample in family.samples
            if sample.name == f"queenright_worker_{name}"
        }


@pytest.fixture
def watched_workers() -> MonitoredWorkers:
    return MonitoredWorkers()


def test_events_fill_the_series_that_the_agents_process_would_serve(
    watched_workers: MonitoredWorkers,
) -> None:
    """This way, an agent that only sends events is in Prometheus too."""
    watched_workers.apply_event(
        EventType.EXECUTION_STARTED, framework="langgraph", version="1.2", start_records=True
    )
    watched_workers.apply_event(EventType.LLM_CALL_COMPLETED, model="m", input_tokens=70, output_tokens=5)
    watched_workers.apply_event(EventType.LLM_CALL_COMPLETED, cost_usd=0.25, amends=True)
    watched_workers.apply_event(
        EventType.TOOL_CALL_COMPLETED, tool="search", outcome="error", error_type="Timeout", duration=0.2
    )
    watched_workers.apply_event(
        EventType.STEP_COMPLETED, node="plan", error_type="Timeout", error="x", duration=3.0
    )
    watched_workers.now += 10
    watched_workers.apply_event(EventType.STEP_COMPLETED, node="plan", verdict="RETRY", duration=1.0)
    watched_workers.apply_event(EventType.WORKER_WAITING, reason="user_input")

    assert watched_workers.read_value("info", framework="langgraph", version="1.2") == 1
    assert watched_workers.read_value("tokens_total", model="m", direction="input") == 70
    assert watched_workers.read_value("tokens_total", model="m", direction="output") == 5
    assert (
        watched_workers.registry.get_sample_value("queenright_agent_cost_dollars_total", {"agent": "bee"})
        == 0.25
    )
    assert watched_workers.read_value("tool_calls_total", tool="search", outcome="error") == 1
    assert watched_workers.read_value("tool_calls_total", tool="search", outcome="ok") == 0
    assert watched_workers.read_value("tool_duration_seconds_sum", tool="search") == 0.2
    assert watched_workers.read_value("steps_total", node="plan", verdict="error") == 1
    assert watched_workers.read_value("steps_total", node="plan", verdict="retry") == 1
    assert watched_workers.read_value("step_duration_seconds_sum", node="plan") == 4.0
    assert watched_workers.read_value("errors_total", error_type="Timeout") == 1, (
        "the step failed with its call's error"
    )
    assert watched_workers.read_value("steps_since_accept") == 2
    assert watched_workers.read_value("last_activity_timestamp_seconds") == START_TIME + 10
    assert watched_workers.read_value("waiting", reason="user_input") == 1
    watched_workers.apply_event(EventType.CLIENT_INPUT_RECEIVED)
    assert watched_workers.read_value("waiting", reason="user_input") == 0


def test_agent_without_heartbeats_or_checkpoints_lacks_their_series(
    watched_workers: MonitoredWorkers,
) -> None:
    """A gauge at 0 would mean a last heartbeat in 1970, and an alert would fire."""
    watched_workers.apply_event(EventType.EXECUTION_STARTED)

    assert watched_workers.read_value("last_heartbeat_timestamp_seconds") is None
    assert watched_workers.read_value("last_checkpoint_timestamp_seconds") is None
    watched_workers.apply_event(EventType.EXECUTION_STARTED, session="beats", heartbeat_interval=60)
    assert watched_workers.read_value("last_heartbeat_timestamp_seconds") == START_TIME, (
        "the worker has the interval until the first heartbeat"
    )
    watched_workers.now += 50
    watched_workers.apply_event(EventType.AGENT_HEARTBEAT, session="beats", interval=60)
    assert watched_workers.read_value("last_heartbeat_timestamp_seconds") == START_TIME + 50


def test_stall_that_the_monitor_finds_is_counted(watched_workers: MonitoredWorkers) -> None:
    watched_workers.apply_event(EventType.EXECUTION_STARTED, start_records=True)
    watched_workers.apply_event(EventType.TOOL_CALL_STARTED, tool="search", call_id="1")
    watched_workers.now += 700

    for event in watched_workers.monitor.advance(watched_workers.now):
        watched_workers.series.count(event)

    assert watched_workers.read_value("stalls_total", phase="tool") == 1
    assert watched_workers.read_value("stalls_total", phase="idle") == 0


def test_agent_that_serves_its_own_metrics_is_excluded(watched_workers: MonitoredWorkers) -> None:
    """An agent that Prometheus scrapes is not counted twice. Another run with the same name is counted."""
    watched_workers.apply_event(EventType.EXECUTION_STARTED, start_records=True, metrics_served=True)
    watched_workers.apply_event(EventType.STEP_COMPLETED, node="plan", verdict="RETRY")

    assert (
        watched_workers.list_agents("steps_total")
        == watched_workers.list_agents("last_activity_timestamp_seconds")
        == set()
    )

    watched_workers.apply_event(EventType.EXECUTION_STARTED, session="elsewhere", start_records=True)
    watched_workers.apply_event(EventType.STEP_COMPLETED, session="elsewhere", node="plan", verdict="RETRY")
    assert watched_workers.read_value("steps_total", node="plan", verdict="retry") == 1


def test_ended_agent_keeps_counters_and_loses_gauges(watched_workers: MonitoredWorkers) -> None:
    """
    A run shorter than a scrape interval is counted, the next run adds to it, and no alert fires about ended
    runs.
    """
    for _ in range(2):
        watched_workers.apply_event(EventType.EXECUTION_STARTED)
        watched_workers.apply_event(EventType.STEP_COMPLETED, node="plan", verdict="RETRY")
        watched_workers.apply_event(EventType.EXECUTION_COMPLETED)
        assert watched_workers.list_agents("last_activity_timestamp_seconds") == set()
        watched_workers.now += 60

    assert watched_workers.read_value("steps_total", node="plan", verdict="retry") == 2
    assert watched_workers.read_value("steps_since_accept") is None
    assert watched_workers.list_agents("info") == set()
    watched_workers.now += KEPT_SECONDS
    watched_workers.list_agents("steps_total")
    assert watched_workers.list_agents("steps_total") == set()


def test_agents_above_the_limit_share_one_row_and_are_counted(watched_workers: MonitoredWorkers) -> None:
    """The number of rows is bounded. The row `other` shows the worst of the remaining agents."""
    for number in range(MAX_AGENTS + 3):
        watched_workers.apply_event(EventType.EXECUTION_STARTED, f"bee-{number}")
        watched_workers.apply_event(EventType.STEP_COMPLETED, f"bee-{number}", node="plan", verdict="RETRY")

    assert len(watched_workers.list_agents("steps_total")) == MAX_AGENTS + 1
    labels = {"agent": "other", "node": "plan", "verdict": "retry"}
    assert watched_workers.registry.get_sample_value("queenright_worker_steps_total", labels) == 3
    limit_labels = {"metric": "queenright_worker_info"}
    assert watched_workers.registry.get_sample_value("queenright_series_limited_total", limit_labels) == 3

    # The next agent gets the row of an agent that has ended.
    watched_workers.apply_event(EventType.EXECUTION_COMPLETED, "bee-0")
    watched_workers.list_agents("info")
    watched_workers.apply_event(EventType.EXECUTION_STARTED, "late")
    assert "late" in watched_workers.list_agents("last_activity_timestamp_seconds")
    assert len(watched_workers.list_agents("last_activity_timestamp_seconds")) == MAX_AGENTS + 1


_odd = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.integers(), max_size=2),
)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(list(EventType)),
            st.dictionaries(
                st.sampled_from(
                    ("verdict", "tool", "outcome", "error_type", "error", "duration", "model", "input_tokens")
                ),
                _odd,
            ),
        ),
        max_size=8,
    )
)
def test_arbitrary_events_keep_the_series_valid(events: list[tuple[EventType, dict[str, Any]]]) -> None:
    series = MonitoredWorkers()
    series.apply_event(EventType.EXECUTION_STARTED)
    worker = series.monitor.get("bee", "s")
    assert worker is not None

    for kind, data in events:
        series.series.count(
            AgentEvent(type=kind, time=START_TIME, agent_id="bee", session_id="s", node_id="n", data=data)
        )

    completed_steps = sum(kind is EventType.STEP_COMPLETED for kind, _ in events)
    counted_steps = sum(
        sample.value
        for family in series.registry.collect()
        for sample in family.samples
        if sample.name == "queenright_worker_steps_total"
    )
    assert counted_steps == completed_steps


async def test_restarted_service_resets_counters_and_restores_gauges(tmp_path: Path) -> None:
    """
    After a restart, a counter starts lower, which rate() and increase() treat as a reset.

    If it were rebuilt from the replayed day of the log, it could be higher or lower than before, and the
    whole day would look like an increase.
    """
    clock_time = START_TIME

    def make_event(kind: EventType, **data: Any) -> AgentEvent:
        return AgentEvent(
            type=kind, time=clock_time, agent_id="bee", session_id="s", node_id="plan", data=data
        )

    def read_sample(service: Service, name: str, **labels: str) -> float | None:
        return service.registry.get_sample_value(f"queenright_worker_{name}", {"agent": "bee", **labels})

    settings = load_settings(storage=tmp_path / "storage", http={"port": 0}, otlp={"port": 0})
    service = await build(settings, clock=lambda: clock_time)
    await service.start()
    await service.ingest(
        [
            make_event(EventType.EXECUTION_STARTED),
            *(make_event(EventType.STEP_COMPLETED, verdict="RETRY"),) * 1,
        ]
    )
    for _ in range(4):
        clock_time += 1
        await service.ingest([make_event(EventType.STEP_COMPLETED, verdict="RETRY")])
    assert read_sample(service, "steps_total", node="plan", verdict="retry") == 5
    await service.stop()

    clock_time += 400
    new_service = await build(settings, clock=lambda: clock_time)
    await new_service.start()
    try:
        assert read_sample(new_service, "steps_since_accept") == 5
        idle_seconds = clock_time - (read_sample(new_service, "last_activity_timestamp_seconds") or 0.0)
        assert idle_seconds < 60, "the agent could not report while the service was down"
        assert read_sample(new_service, "steps_total", node="plan", verdict="retry") is None
        await new_service.ingest([make_event(EventType.STEP_COMPLETED, verdict="RETRY")])
        assert read_sample(new_service, "steps_total", node="plan", verdict="retry") == 1
        assert read_sample(new_service, "steps_since_accept") == 6
    finally:
        await new_service.stop()


def test_metrics_page_lists_each_family_once(watched_workers: MonitoredWorkers) -> None:
    ServiceMetrics(watched_workers.registry, watched_workers.monitor.workers)
    watched_workers.apply_event(EventType.EXECUTION_STARTED)

    families = [family.name for family in watched_workers.registry.collect()]

    assert len(families) == len(set(families))
