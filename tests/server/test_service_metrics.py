"""The service's own metrics: initial values and formats."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from queenright.health.detection.health_state import HealthState
from queenright.health.findings import Finding, FindingKind, Severity
from queenright.health.monitoring.monitor import WorkerHealth
from queenright.health.vitals.vital_signs import VitalSigns
from queenright.server.metrics.event_metrics import EventMetrics
from queenright.server.metrics.metrics import (
    OPENMETRICS,
    PROMETHEUS_TEXT,
    ServiceMetrics,
    choose_content_type,
    render_families,
)

PROMETHEUS_2 = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.1"
)


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        (PROMETHEUS_2, OPENMETRICS),
        (PROMETHEUS_3, OPENMETRICS),
        ("", PROMETHEUS_TEXT),
        ("*/*", PROMETHEUS_TEXT),
        ("text/html, text/plain;q=0.5", PROMETHEUS_TEXT),
        ("application/openmetrics-text; q=0, text/plain", PROMETHEUS_TEXT),
        (";;,=,", PROMETHEUS_TEXT),
    ],
)
def test_scraper_gets_its_requested_format(accept: str, content_type: str) -> None:
    assert choose_content_type(accept) == content_type


async def test_page_is_cached_for_a_second_in_each_format() -> None:
    metrics = ServiceMetrics(CollectorRegistry(), list)
    plain, open_ = await metrics.render(now=10.0), await metrics.render(OPENMETRICS, now=10.0)

    metrics.record_sweep(3, 0.1)

    assert await metrics.render(now=10.9) is plain
    assert await metrics.render(OPENMETRICS, now=10.9) is open_
    assert await metrics.render(now=11.0) != plain
    assert (await metrics.render(OPENMETRICS, now=11.0)).endswith(b"# EOF\n")


@pytest.mark.parametrize("content_type", [PROMETHEUS_TEXT, OPENMETRICS])
def test_page_escapes_agent_names_as_the_library_does(content_type: str) -> None:
    registry = CollectorRegistry()
    names = ("plain", 'with "quotes"', "with \\ and\nline", "naïve")
    workers = [
        WorkerHealth(
            vitals=VitalSigns(name, "s", 1.0),
            findings=(),
            state=state,
            state_since=n / 3,
            reason="",
        )
        for n, (name, state) in enumerate(zip(names, HealthState, strict=False))
    ]
    ServiceMetrics(registry, lambda: workers)
    library = generate_openmetrics if content_type == OPENMETRICS else generate_latest

    page = render_families(registry.collect(), content_type)

    assert page == library(registry)
    assert page.endswith(b"# EOF\n") is (content_type == OPENMETRICS)


def test_counters_start_at_0() -> None:
    registry = CollectorRegistry()
    ServiceMetrics(registry, list)
    EventMetrics(registry).add_subscribers(["traces"])

    def sample_value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, labels)

    assert sample_value("queenright_health_checks_total", outcome="error") == 0
    assert sample_value("queenright_event_bus_dropped_total", subscriber="traces") == 0
    for kind in FindingKind:
        assert sample_value("queenright_detection_delay_seconds_count", kind=kind.value) == 0


def make_worker(agent: str, *kinds: FindingKind, session: str = "s") -> WorkerHealth:
    """Return a worker with findings of these kinds."""
    findings = tuple(Finding(kind=k, severity=Severity.HIGH, evidence="e", since=1.0) for k in kinds)
    state = HealthState.STUCK if kinds else HealthState.HEALTHY
    return WorkerHealth(VitalSigns(agent, session, 1.0), findings, state, 1.0, "")


def test_agents_with_an_open_finding_are_counted_by_kind_starting_at_0() -> None:
    registry = CollectorRegistry()
    workers: list[WorkerHealth] = []
    ServiceMetrics(registry, lambda: workers)

    def read_counts() -> dict[FindingKind, float | None]:
        name = "queenright_agents_with_finding"
        return {kind: registry.get_sample_value(name, {"kind": kind.value}) for kind in FindingKind}

    assert set(read_counts().values()) == {0}

    workers += [
        make_worker("a", FindingKind.PROVIDER_FAILURE, FindingKind.STALL),
        make_worker("a", FindingKind.PROVIDER_FAILURE, session="t"),  # the same agent again
        make_worker("b", FindingKind.PROVIDER_FAILURE),
        make_worker("well"),
        make_worker("gone", FindingKind.PROVIDER_FAILURE),
        make_worker("tried-on"),
    ]
    workers[4].vitals.ended_at = 2.0
    workers[5].shadow = workers[2].findings

    seen = {kind: number for kind, number in read_counts().items() if number}
    assert seen == {FindingKind.PROVIDER_FAILURE: 2, FindingKind.STALL: 1}


def test_unpaged_agents_in_trouble_are_counted() -> None:
    """B104: agents paged about by a ticket do not count as fleet trouble."""
    registry = CollectorRegistry()
    workers = [
        make_worker("paged", FindingKind.PROVIDER_FAILURE),
        make_worker("late", FindingKind.PROVIDER_FAILURE),
        make_worker("late", FindingKind.STALL, session="t"),  # the same agent again
        make_worker("slow", FindingKind.TOKEN_SPIKE),
        make_worker("lacks", FindingKind.MCP_SERVER_MISSING),
        make_worker("well"),
        make_worker("gone", FindingKind.STALL),
    ]
    for one in workers[:3]:
        one.state = HealthState.FAILING
    for one in workers[3:5]:
        one.state = HealthState.DEGRADED
    workers[6].vitals.ended_at = 2.0
    ServiceMetrics(registry, lambda: workers, list_paged=lambda: {"paged", "well", "somebody"})

    assert registry.get_sample_value("queenright_unpaged_agents") == 2  # late and slow
    listed = {
        agent: registry.get_sample_value("queenright_agent_unpaged", {"agent": agent})
        for agent in ("paged", "late", "slow", "lacks", "well", "gone")
    }
    assert listed == {"paged": 0, "late": 1, "slow": 1, "lacks": None, "well": None, "gone": None}


def test_degraded_agents_are_counted_per_finding_kind() -> None:
    """An agent that lacks an MCP server and is also stuck, in any session, is in trouble."""
    registry = CollectorRegistry()
    missing = FindingKind.MCP_SERVER_MISSING
    workers = [
        make_worker("a", missing),
        make_worker("a", missing, session="t"),
        make_worker("b", missing),
        make_worker("b", FindingKind.TOKEN_SPIKE, session="t"),
        make_worker("stuck", missing),
        make_worker("well"),
    ]
    for agent_worker in workers[:4]:
        agent_worker.state = HealthState.DEGRADED
    ServiceMetrics(registry, lambda: workers)

    name = "queenright_degraded_agents_with_one_kind"
    seen = {kind: registry.get_sample_value(name, {"kind": kind.value}) for kind in FindingKind}
    assert {kind: number for kind, number in seen.items() if number != 0} == {missing: 1}


async def test_agents_omitted_by_design_are_not_counted_as_folded() -> None:
    registry = CollectorRegistry()
    workers = [make_worker("a")]
    metrics = ServiceMetrics(registry, lambda: workers)

    def omitted() -> float | None:
        return registry.get_sample_value("queenright_series_left_out", {"metric": "queenright_agent_state"})

    assert omitted() == 0

    workers += [make_worker(f"b{number}") for number in range(1000)]
    pages = [(await metrics.render(now=moment)).decode() for moment in (10.0, 20.0)]

    for page in pages:
        limited = [line for line in page.splitlines() if line.startswith("queenright_series_limited_total{")]
        assert limited
        assert all(line.endswith(" 0.0") for line in limited)
        assert 'queenright_series_left_out{metric="queenright_agent_state"} 1001.0' in page
        assert 'queenright_series_left_out{metric="queenright_circuit_breaker_state"} 0.0' in page
    workers.clear()
    assert omitted() == 0
