"""Metrics of interventions, recoveries and circuit breakers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from queenright.health.action_kind import ActionKind
from queenright.health.interventions.intervention import Intervention, InterventionOutcome
from queenright.health.interventions.target import Target
from queenright.health.monitoring.monitor import HealthMonitor
from queenright.health.recovery.recovery_service import RecoveryService
from queenright.health.recovery.respawner import CheckpointRef
from queenright.health.settings import HealthSettings
from queenright.health.store.store import Store
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.metrics.interventions import MAX_BREAKERS
from queenright.server.metrics.metrics import ServiceMetrics

BREAKER_STATES = ("closed", "open", "half_open")


@dataclass
class Breaker:
    name: str
    state: str = "closed"
    failures: int = 0
    half_open_at: float | None = None


class MetricsPage:
    """The metrics of a service that has these breakers."""

    def __init__(self) -> None:
        self.breakers: list[Breaker] = []
        self.registry = CollectorRegistry()
        self.metrics = ServiceMetrics(self.registry, list, breakers=lambda: self.breakers)

    def read_value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"queenright_{name}", labels)

    def record_event(self, kind: EventType, /, **data: object) -> None:
        self.metrics.interventions.count_events(
            [AgentEvent(type=kind, time=1.0, agent_id="bee", session_id="s", data=data)]
        )

    def record_intervention(
        self,
        kind: ActionKind,
        outcome: InterventionOutcome,
        *,
        unhealthy_since: float | None = None,
        at: float = 100.0,
    ) -> None:
        intervention = Intervention(
            intervention_id="i",
            agent_id="bee",
            session_id="s",
            incarnation_id="one",
            kind=kind,
            outcome=outcome,
            by="ladder",
            reason="stuck",
            trouble_since=unhealthy_since,
            created_at=at,
        )
        self.record_event(EventType.INTERVENTION_RECORDED, **intervention.model_dump(mode="json"))


@pytest.fixture
def metrics_page() -> MetricsPage:
    return MetricsPage()


def test_intervention_counters_start_at_0_for_each_kind_and_outcome(metrics_page: MetricsPage) -> None:
    for kind in ActionKind:
        assert metrics_page.read_value("interventions_total", kind=kind.value, outcome="refused") == 0

    metrics_page.record_intervention(ActionKind.NUDGE, InterventionOutcome.EXPIRED)
    metrics_page.record_intervention(ActionKind.NUDGE, InterventionOutcome.EXPIRED)
    metrics_page.record_intervention(ActionKind.TERMINATE, InterventionOutcome.REFUSED)

    assert metrics_page.read_value("interventions_total", kind="nudge", outcome="expired") == 2
    assert metrics_page.read_value("interventions_total", kind="terminate", outcome="refused") == 1


def test_fetched_nudge_is_counted_once_with_its_outcome(metrics_page: MetricsPage) -> None:
    metrics_page.record_intervention(
        ActionKind.NUDGE, InterventionOutcome.QUEUED, unhealthy_since=40.0, at=100.0
    )
    assert metrics_page.read_value("interventions_total", kind="nudge", outcome="done") == 0
    assert metrics_page.read_value("time_to_intervention_seconds_sum", kind="nudge") == 60

    metrics_page.record_intervention(
        ActionKind.NUDGE, InterventionOutcome.DONE, unhealthy_since=40.0, at=100.0
    )

    assert metrics_page.read_value("interventions_total", kind="nudge", outcome="done") == 1
    assert metrics_page.read_value("time_to_intervention_seconds_count", kind="nudge") == 1


def test_time_to_intervention_ends_with_the_first_action(metrics_page: MetricsPage) -> None:
    metrics_page.record_intervention(
        ActionKind.NUDGE, InterventionOutcome.UNREACHABLE, unhealthy_since=40.0, at=100.0
    )
    metrics_page.record_intervention(
        ActionKind.NUDGE, InterventionOutcome.DONE, unhealthy_since=40.0, at=130.0
    )
    metrics_page.record_intervention(
        ActionKind.ESCALATE, InterventionOutcome.DONE, unhealthy_since=40.0, at=900.0
    )
    metrics_page.record_intervention(
        ActionKind.NUDGE, InterventionOutcome.DONE, unhealthy_since=2000.0, at=2010.0
    )

    assert metrics_page.read_value("time_to_intervention_seconds_count", kind="nudge") == 2
    assert metrics_page.read_value("time_to_intervention_seconds_sum", kind="nudge") == 100
    assert metrics_page.read_value("time_to_intervention_seconds_count", kind="escalate") == 0


@pytest.mark.parametrize(
    "outcome",
    [
        InterventionOutcome.REFUSED,
        InterventionOutcome.DRY_RUN,
        InterventionOutcome.FAILED,
        InterventionOutcome.UNREACHABLE,
    ],
)
def test_undelivered_intervention_has_no_delay(
    metrics_page: MetricsPage, outcome: InterventionOutcome
) -> None:
    metrics_page.record_intervention(ActionKind.NUDGE, outcome, unhealthy_since=40.0)

    assert metrics_page.read_value("time_to_intervention_seconds_count", kind="nudge") == 0


def test_recoveries_are_counted_by_outcome(metrics_page: MetricsPage) -> None:
    outcomes = ("initiated", "from_start", "completed", "failed", "exhausted")
    assert [metrics_page.read_value("recoveries_total", outcome=outcome) for outcome in outcomes] == [
        0,
        0,
        0,
        0,
        0,
    ]

    metrics_page.record_event(EventType.RECOVERY_INITIATED, recovery_id="r", from_checkpoint="c1")
    metrics_page.record_event(EventType.RECOVERY_INITIATED, recovery_id="q", from_checkpoint=None)
    metrics_page.record_event(EventType.RECOVERY_COMPLETED, recovery_id="r")
    metrics_page.record_event(EventType.RECOVERY_FAILED, recovery_id="q", exhausted=False)
    metrics_page.record_event(EventType.RECOVERY_FAILED, recovery_id="q", exhausted=True)

    assert [metrics_page.read_value("recoveries_total", outcome=outcome) for outcome in outcomes] == [
        1,
        1,
        1,
        1,
        1,
    ]


class Respawner:
    """Restarts workers from the given checkpoints."""

    def __init__(self, *links: CheckpointRef) -> None:
        self.links = links

    def can_reach(self, target: Target) -> bool:
        return True

    async def chain(self, target: Target) -> Sequence[CheckpointRef]:
        return self.links

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
        return Target(agent_id=target.agent_id, session_id=target.session_id, incarnation_id="two")


DAMAGED_CHECKPOINT = CheckpointRef(checkpoint_id="c2", created_at=2.0, valid=False, reason="torn")
VALID_CHECKPOINT = CheckpointRef(checkpoint_id="c1", created_at=1.0, valid=True)


@pytest.mark.parametrize(
    ("links", "counted_outcome"),
    [
        ((DAMAGED_CHECKPOINT, VALID_CHECKPOINT), "initiated"),
        ((DAMAGED_CHECKPOINT,), "from_start"),
        ((), "from_start"),
    ],
    ids=["one-is-valid", "none-is-valid", "there-are-none"],
)
async def test_recovery_from_the_start_of_a_task_is_counted_separately(
    metrics_page: MetricsPage, tmp_path: Path, links: tuple[CheckpointRef, ...], counted_outcome: str
) -> None:
    """B74: without a valid checkpoint, the task starts again, and an alert notifies a person."""

    async def stop(target: Target, reason: str) -> None:
        raise AssertionError("only a repeated recovery stops a worker")

    store = Store.open(f"sqlite:///{tmp_path / 'q.db'}")
    service = RecoveryService(
        store,
        settings=HealthSettings(),
        monitor=HealthMonitor(HealthSettings()),
        respawners=[Respawner(*links)],
        clock=lambda: 100.0,
        publish=lambda *events: metrics_page.metrics.interventions.count_events(events),
    )
    try:
        lost_target = Target(agent_id="bee", session_id="s", incarnation_id="one")
        assert (await service.request(lost_target, "it crashed", by="ada", from_start=True)).accepted
        await service.advance(100.0, stop=stop)
        await service.wait_until_idle()
    finally:
        await service.close()
        await store.close()

    outcomes = ("initiated", "from_start", "completed")
    assert {
        outcome for outcome in outcomes if metrics_page.read_value("recoveries_total", outcome=outcome) == 1
    } == {
        counted_outcome,
        "completed",
    }


def test_breaker_has_one_series_per_state_and_its_transition_counters_start_at_0(
    metrics_page: MetricsPage,
) -> None:
    metrics_page.breakers = [Breaker("tool_execution:bee", "half_open")]

    states = {
        state: metrics_page.read_value("circuit_breaker_state", breaker="tool_execution:bee", state=state)
        for state in BREAKER_STATES
    }
    initial_count = metrics_page.read_value(
        "circuit_breaker_transitions_total", breaker="tool_execution:bee", to="open"
    )
    metrics_page.record_event(
        EventType.CIRCUIT_BREAKER_STATE_CHANGED, name="tool_execution:bee", to="open", **{"from": "half_open"}
    )

    assert states == {"closed": 0, "open": 0, "half_open": 1}
    assert initial_count == 0
    assert (
        metrics_page.read_value("circuit_breaker_transitions_total", breaker="tool_execution:bee", to="open")
        == 1
    )


def test_above_the_limit_only_breakers_that_are_not_closed_have_series(metrics_page: MetricsPage) -> None:
    metrics_page.breakers = [Breaker(f"external_api:a{number}") for number in range(MAX_BREAKERS)]
    metrics_page.breakers.append(Breaker("external_api:z", "open"))

    [family] = [
        metric_family
        for metric_family in metrics_page.registry.collect()
        if metric_family.name == "queenright_circuit_breaker_state"
    ]

    assert {sample.labels["breaker"] for sample in family.samples} == {"external_api:z"}
    assert (
        metrics_page.read_value("series_left_out", metric="queenright_circuit_breaker_state") == MAX_BREAKERS
    )
    assert (
        metrics_page.read_value("series_limited_total", metric="queenright_circuit_breaker_transitions_total")
        == 0
    )
    metrics_page.breakers = metrics_page.breakers[-1:]
    assert metrics_page.read_value("series_left_out", metric="queenright_circuit_breaker_state") == 0


def test_transitions_of_breakers_above_the_limit_are_counted_as_other(metrics_page: MetricsPage) -> None:
    for number in (*range(MAX_BREAKERS + 5), MAX_BREAKERS):  # The last breaker changes a second time.
        metrics_page.record_event(
            EventType.CIRCUIT_BREAKER_STATE_CHANGED,
            name=f"external_api:a{number}",
            to="open",
            **{"from": "closed"},
        )

    assert metrics_page.read_value("circuit_breaker_transitions_total", breaker="other", to="open") == 6
    assert (
        metrics_page.read_value("series_limited_total", metric="queenright_circuit_breaker_transitions_total")
        == 5
    )


def test_breaker_series_has_failures_and_retry_time(metrics_page: MetricsPage) -> None:
    metrics_page.breakers = [
        Breaker("llm:bee", failures=2),
        Breaker("tool:bee", "open", failures=3, half_open_at=160.0),
        Breaker("mcp:bee", "half_open", failures=3, half_open_at=90.0),
    ]

    failures = [
        metrics_page.read_value("circuit_breaker_failures", breaker=breaker.name)
        for breaker in metrics_page.breakers
    ]
    opens = [
        metrics_page.read_value("circuit_breaker_half_open_timestamp_seconds", breaker=breaker.name)
        for breaker in metrics_page.breakers
    ]

    assert failures == [2.0, 3.0, 3.0]
    assert opens == [None, 160.0, None]


def test_unfinished_recoveries_are_counted_by_current_state() -> None:
    registry, active_recoveries = CollectorRegistry(), ["one", "two"]
    ServiceMetrics(registry, list, list_recoveries=lambda: active_recoveries)

    initial_count = registry.get_sample_value("queenright_recoveries_active")
    active_recoveries.clear()

    assert (initial_count, registry.get_sample_value("queenright_recoveries_active")) == (2.0, 0.0)


def test_first_scrape_that_shows_a_breaker_shows_its_transitions_at_0(metrics_page: MetricsPage) -> None:
    metrics_page.breakers = [Breaker("llm:bee")]

    exposition = generate_latest(metrics_page.registry).decode()

    assert 'queenright_circuit_breaker_transitions_total{breaker="llm:bee",to="open"} 0.0' in exposition
